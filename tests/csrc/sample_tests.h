// Samplers and row views on threads, and in vectors of every width, against the serial executor.
#pragma once

#include <bit>
#include <string>
#include <type_traits>
#include <vector>

#include "counting_block.h"
#include "sample_cases.h"
#include "sample_field_cases.h"

namespace sample_cases {

inline Record walk_record(const ddtree::WalkScratch& scratch) {
    const ddtree::WalkVerdict& verdict = *scratch.verdict;
    Record record;
    record.add(static_cast<int>(verdict.fault));
    record.add(verdict.fault_node);
    if (verdict.fault != ddtree::SampleFault::none) return record;
    record.add(static_cast<int>(verdict.bonus_source));
    record.add(verdict.bonus_token);
    record.add(verdict.bonus_prob);
    record.add(verdict.bonus_cumulative);
    record.add(verdict.residual_mass);
    for (int i = 0; i <= verdict.accepted; ++i) record.add(scratch.path[i]);
    for (int i = 0; i < verdict.tried; ++i) {
        const ddtree::Tried& tried = scratch.tried[i];
        record.add(tried.node);
        record.add(tried.prob);
        record.add(tried.cumulative);
        record.add(tried.coin);
        record.add(tried.accepted);
    }
    return record;
}

// Runs `work(block, scratch)` serially in each width and on threads; all must leave the record that the first left.
template <class Scratch, class Work, class Look, class... Sizes>
void expect_equal(Harness& h, const std::string& what, Work work, Look look, Sizes... sizes) {
    const Memory<Scratch> serial(sizes...), wide(sizes...), wider(sizes...), threads(sizes...);
    work(ddtree::SerialBlock{}, serial.view());
    const Record expected = look(serial.view());
    work(Wide<8>{}, wide.view());
    h.expect(look(wide.view()) == expected, what + " in vectors of 8");
    work(Wide<16>{}, wider.view());
    h.expect(look(wider.view()) == expected, what + " in vectors of 16");
    h.on_threads([&](const auto& block) { work(block, threads.view()); });
    h.expect(look(threads.view()) == expected, what + " on threads");
}

inline void test_verify(Harness& h) {
    const std::int64_t size = random_size(h);
    const Tree tree(h, size, 12);
    const std::vector<float> logits = random_logits(h, tree.nodes, size);
    const ddtree::SamplingRule rule = random_rule(h, size);
    const double thresholds[] = {0.0, 0.5, 1.0, 1.0, 1.0};
    const ddtree::WalkCoins coins = {tree.coins.data(), static_cast<float>(h.uniform()), thresholds[h.integer(0, 4)],
                                     thresholds[h.integer(0, 4)]};
    const bool tokens_checked = h.chance(0.3);
    expect_equal<ddtree::WalkScratch>(
        h, "verify_tree",
        [&](const auto& block, const ddtree::WalkScratch& scratch) {
            ddtree::verify_tree(block, ddtree::LogitRows{logits.data(), size, size}, rule,
                                tree.view(tree.nodes, tokens_checked), coins, scratch);
        },
        walk_record, size, tree.nodes);
}

// Everything that walks of a batch leave, as it is compared.
struct PaddedOutcome {
    static constexpr std::int64_t kUnwritten = -77;
    Words path, outcome, tried;
    std::vector<double> bonus, decisions;
    std::vector<std::int32_t> status;

    PaddedOutcome(int batch, int nodes)
        : path(batch * nodes, kUnwritten),
          outcome(4 * batch, kUnwritten),
          tried(2 * batch * nodes, kUnwritten),
          bonus(3 * batch, kUnwritten),
          decisions(3 * batch * nodes, kUnwritten),
          status(batch, kUnwritten) {}

    Record record() const {
        Record record;
        const auto add = [&](const auto& values) {
            for (const auto value : values) record.add(value);
        };
        add(path), add(outcome), add(tried), add(bonus), add(decisions), add(status);
        return record;
    }
};

template <class T>
T narrowed(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if constexpr (std::is_same_v<T, ddtree::BFloat16>)
        return {static_cast<std::uint16_t>(bits >> 16)};
    else if constexpr (std::is_same_v<T, ddtree::Float16>)
        return {std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))};
    else
        return value;
}

// Two trees of one shape in rows that begin at any element, or where 16 bytes can be read at once.
template <class T>
void test_verify_batch_of(Harness& h) {
    const std::int64_t size = random_size(h);
    const Tree tree(h, size, 6);
    const std::int64_t stride = h.chance(0.5) ? (size + 7) / 8 * 8 : size + h.integer(0, 3);
    const std::vector<float> drawn = random_logits(h, 2 * tree.nodes, stride);
    std::vector<T> logits;
    for (const float value : drawn) logits.push_back(narrowed<T>(value));
    Words tokens = tree.tokens, next_token = tree.next_token, next_sibling = tree.next_sibling;
    std::vector<float> coins = tree.coins;
    for (Words* words : {&tokens, &next_token, &next_sibling})
        words->insert(words->end(), words->begin(), words->end());
    for (int node = 0; node < tree.nodes; ++node) coins.push_back(static_cast<float>(h.uniform()));
    const float final_coins[] = {static_cast<float>(h.uniform()), static_cast<float>(h.uniform())};
    const ddtree::SamplingRule rule = random_rule(h, size);
    const auto run = [&](const auto& block, const ddtree::WalkScratch& scratch, PaddedOutcome& out, int at) {
        ddtree::verify_batch_tree<T>(block,
                                     ddtree::VerifyBatch{.logits = logits.data(),
                                                         .element = {},
                                                         .size = size,
                                                         .row_stride = stride,
                                                         .tree_stride = tree.nodes * stride,
                                                         .candidates = tokens.data(),
                                                         .next_token = next_token.data(),
                                                         .next_sibling = next_sibling.data(),
                                                         .coins = coins.data(),
                                                         .final_coins = final_coins,
                                                         .rule = rule,
                                                         .threshold_single = 1.0,
                                                         .threshold_acc = 1.0,
                                                         .batch = 2,
                                                         .nodes = tree.nodes,
                                                         .path = out.path.data(),
                                                         .outcome = out.outcome.data(),
                                                         .bonus = out.bonus.data(),
                                                         .tried = out.tried.data(),
                                                         .decisions = out.decisions.data(),
                                                         .status = out.status.data()},
                                     at, scratch);
    };
    PaddedOutcome serial(2, tree.nodes), threads(2, tree.nodes);
    for (int at = 0; at < 2; ++at) {
        const Memory<ddtree::WalkScratch> one(size, tree.nodes), many(size, tree.nodes);
        run(ddtree::SerialBlock{}, one.view(), serial, at);
        h.on_threads([&](const auto& block) { run(block, many.view(), threads, at); });
    }
    h.expect(serial.record() == threads.record(), "verify_batch on threads");
}

inline void test_verify_batch(Harness& h) {
    const int element = h.integer(0, 2);
    if (element == 0) return test_verify_batch_of<float>(h);
    if (element == 1) return test_verify_batch_of<ddtree::BFloat16>(h);
    test_verify_batch_of<ddtree::Float16>(h);
}

// How often the elements of the visited rows are read: at most 3 times, and 8 with top-k and top-p (11 where top-k
// keeps more than a 32nd of the vocabulary, for which the lane maxima give no bound).
inline void test_reads(Harness& h) {
    const std::int64_t size = h.integer(20'000, 60'000);
    const Tree tree(h, size, 4);
    const std::vector<float> logits = random_logits(h, tree.nodes, size);
    ddtree::SamplingRule rule = {h.chance(0.2) ? 0.0f : 1.2f, 0, 1.0};
    if (h.chance(0.4)) rule.top_k = h.integer(1, static_cast<int>(h.chance(0.5) ? size / 32 : size));
    if (h.chance(0.6)) rule.top_p = h.chance(0.3) ? 0.5 : 1.0 - h.uniform() * h.uniform();
    const Memory<ddtree::WalkScratch> memory(size, tree.nodes);
    elements_read = 0;
    ddtree::verify_tree(CountingBlock{}, ddtree::LogitRows{logits.data(), size, size}, rule,
                        tree.view(tree.nodes, false), {tree.coins.data(), 0.5f, 1.0, 1.0}, memory.view());
    const ddtree::WalkVerdict& verdict = *memory.view().verdict;
    if (verdict.fault != ddtree::SampleFault::none) return;
    const bool filtered = !rule.greedy() && (rule.top_k > 0 || rule.top_p < 1.0);
    const int most = !filtered ? 3 : rule.top_k > size / 32 && rule.top_p < 1.0 ? 11 : 8;
    const double times = static_cast<double>(elements_read) / static_cast<double>((verdict.accepted + 1) * size);
    h.expect(times <= most, "each element of the visited rows was read " + std::to_string(times) + " times");
}

inline void test_target_only(Harness& h) {
    const std::int64_t size = random_size(h);
    const Tree tree(h, size, 12);
    const std::vector<float> probs = random_probs(h, tree.nodes, size);
    const float final_coin = static_cast<float>(h.uniform());
    const int path = h.integer(1, tree.nodes);
    const std::int64_t slots = tree.nodes - (h.chance(0.1) ? 1 : 0);
    std::vector<std::int32_t> out(slots + path + 2);
    const auto run = [&](const auto& block, const ddtree::WalkScratch& scratch) {
        if (block.rank() == 0) out.assign(out.size(), -9);
        block.sync(ddtree::kNoSite);
        ddtree::sample_target_only(block,
                                   ddtree::TargetOnlyBatch{.predicts = out.data(),
                                                           .accept_index = out.data() + slots,
                                                           .accept_token_num = out.data() + slots + path,
                                                           .candidates = tree.tokens.data(),
                                                           .retrieve_index = tree.index.data(),
                                                           .next_token = tree.next_token.data(),
                                                           .next_sibling = tree.next_sibling.data(),
                                                           .uniform_samples = tree.coins.data(),
                                                           .uniform_samples_final = &final_coin,
                                                           .target_probs = probs.data(),
                                                           .status = out.data() + slots + path + 1,
                                                           .slots = slots,
                                                           .size = size,
                                                           .batch = 1,
                                                           .nodes = tree.nodes,
                                                           .path = path,
                                                           .threshold_single = 1.0,
                                                           .threshold_acc = 1.0},
                                   0, scratch);
    };
    const auto look = [&](const ddtree::WalkScratch&) {
        Record record;
        for (const std::int32_t value : out) record.add(value);
        return record;
    };
    expect_equal<ddtree::WalkScratch>(h, "target_only", run, look, size, tree.nodes);
}

inline void test_observe(Harness& h) {
    const std::int64_t size = random_size(h);
    const std::vector<float> logits = random_logits(h, 1, size);
    const std::vector<float> draft = random_logits(h, 1, size);
    const bool has_draft = h.chance(0.7);
    const ddtree::SamplingRule rule = random_rule(h, size);
    const int most_shown = h.integer(1, 9);
    ddtree::RowView view;
    std::vector<ddtree::ShownToken> likeliest(most_shown), children(4);
    Words tokens;
    for (std::size_t i = 0; i < children.size(); ++i) tokens.push_back(h.integer(0, static_cast<int>(size) - 1));
    const auto run = [&](const auto& block, const ddtree::ObserveScratch& scratch) {
        if (block.rank() == 0)
            for (std::size_t i = 0; i < children.size(); ++i) children[i] = {tokens[i], 0.0, 0.0};
        const ddtree::RowToObserve<float, float> row = {
            logits.data(), has_draft ? draft.data() : nullptr, size, 0.7f, rule, most_shown,
            static_cast<int>(children.size())};
        ddtree::observe_row(block, row, {&view, likeliest.data(), children.data()}, scratch);
    };
    const auto look = [&](const ddtree::ObserveScratch&) {
        Record record;
        record.add(static_cast<int>(view.fault));
        if (view.fault != ddtree::SampleFault::none) return record;
        record.add(view.entropy);
        record.add(view.total_variation);
        for (int i = 0; i < view.shown; ++i) record.add(likeliest[i].token);
        for (int i = 0; i < view.shown; ++i) record.add(likeliest[i].prob);
        for (const ddtree::ShownToken& child : children) record.add(child.prob + 8.0 * child.raw_prob);
        return record;
    };
    expect_equal<ddtree::ObserveScratch>(h, "observe_row", run, look, size);
}

}  // namespace sample_cases

inline std::vector<Test> sample_tests() {
    using namespace ddtree;
    return {
        {"verify_tree",
         {kSiteRowLook, kSiteChunkMasses, kSiteLikeliest, kSitePicked, kSiteWeighed, kSiteSampled, kSiteSampleSorted,
          kSiteNucleusEqual, kSiteGathered, kSiteTried, kSiteMassesLeft},
         sample_cases::test_verify,
         {kSiteLogitsCopied, kSiteOneHot}},
        {"verify_batch", {kSiteWalked}, sample_cases::test_verify_batch},
        {"field_cases", {kSiteProbsFault, kSiteTried}, sample_cases::test_field_cases},
        {"reads", {}, sample_cases::test_reads},
        {"target_only",
         {kSiteProbsFault, kSiteTried, kSiteMassesLeft},
         sample_cases::test_target_only,
         {kSiteProbsCopied}},
        {"observe_row",
         {kSiteRowLook, kSiteChunkMasses, kSitePicked, kSiteWeighed, kSiteVariation},
         sample_cases::test_observe},
    };
}
