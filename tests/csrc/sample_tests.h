// Samplers and row views on threads, and in vectors of every width, against the serial executor.
#pragma once

#include <string>
#include <vector>

#include "sample_cases.h"

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
    h.on_threads([&](const ThreadsBlock& block) { work(block, threads.view()); });
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
         {kSiteRowLook, kSiteChunkMasses, kSiteLikeliest, kSitePickCounts, kSitePicked, kSiteKthLargest, kSiteMassFrom,
          kSiteNucleusEqual, kSiteTried},
         sample_cases::test_verify},
        {"target_only", {kSiteProbsFault, kSiteChunkMasses, kSiteTried}, sample_cases::test_target_only},
        {"observe_row",
         {kSiteRowLook, kSiteChunkMasses, kSitePickCounts, kSitePicked, kSiteKthLargest, kSiteMassFrom, kSiteVariation},
         sample_cases::test_observe},
    };
}
