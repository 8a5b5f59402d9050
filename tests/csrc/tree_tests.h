// Tree build, encoding, visibility and topology check on threads against the serial executor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ddtree/retrieve.h"
#include "ddtree/tree.h"
#include "ddtree/tree_padded.h"
#include "harness.h"

namespace tree_cases {

using Words = std::vector<std::int64_t>;

// Candidate rows, often with equal log-weights, sometimes with a fault.
struct Rows {
    int rows, ranks;
    std::vector<double> log_probs;
    Words token_ids, child_rows;

    explicit Rows(Harness& h) : rows(h.integer(1, 6)), ranks(h.integer(1, 9)) {
        const bool coarse = h.chance(0.5);
        for (int row = 0; row < rows; ++row) {
            std::vector<double> values(ranks);
            for (double& value : values) value = coarse ? -0.25 * h.integer(0, 4) : -4.0 * h.uniform();
            std::sort(values.rbegin(), values.rend());
            for (int rank = h.integer(1, 2 * ranks); rank < ranks; ++rank)
                values[rank] = -std::numeric_limits<double>::infinity();
            log_probs.insert(log_probs.end(), values.begin(), values.end());
            const int first = h.integer(0, 100);
            for (int rank = 0; rank < ranks; ++rank) token_ids.push_back(first + (rank * 5) % 11);
        }
        if (h.chance(0.4))
            for (int entry = 0; entry < rows * ranks; ++entry) child_rows.push_back(h.integer(-1, rows - 1));
        if (h.chance(0.2)) spoil(h);
    }

    ddtree::CandidateRows<double> view() const {
        return {log_probs.data(), token_ids.data(), child_rows.empty() ? nullptr : child_rows.data(), rows, ranks};
    }

   private:
    void spoil(Harness& h) {
        using Limits = std::numeric_limits<double>;
        const double bad[] = {Limits::quiet_NaN(), Limits::infinity(), 0.5, -1.0};
        for (int times = h.integer(1, 3); times > 0; --times) {
            const int entry = h.integer(0, rows * ranks - 1);
            if (h.chance(0.5))
                log_probs[entry] = bad[h.integer(0, 3)];
            else
                token_ids[entry] = token_ids[h.integer(0, rows * ranks - 1)];
            if (!child_rows.empty() && h.chance(0.3)) child_rows[entry] = rows;
        }
    }
};

struct Scratch {
    std::vector<ddtree::Candidate> nodes;
    std::vector<std::uint64_t> costs;
    std::vector<std::int64_t> places;
    std::vector<std::int32_t> next_rows, heads, links;
    std::int32_t count = -1;
    int bucket_bits;

    Scratch(Harness& h, const Rows& rows, int budget, int workers)
        : nodes(budget + 1),
          costs(budget + 1 + 2 * workers),
          places(budget + 1 + 2 * workers),
          next_rows(budget + 1),
          links(rows.rows * rows.ranks),
          bucket_bits(h.integer(1, 5)) {
        heads.resize(std::size_t{1} << bucket_bits);
    }
    ddtree::TreeScratch view() {
        return {nodes.data(),  next_rows.data(), costs.data(),
                places.data(), &count,           {heads.data(), links.data(), bucket_bits}};
    }
};

// Status, then the arrays.
struct Built {
    Words status, fields;

    explicit Built(int budget) : status(2), fields(ddtree::TreeArrays::kFields * (budget + 1)) {}

    template <class Block>
    void build(const Block& block, const Rows& rows, int budget, const ddtree::TreeScratch& scratch) {
        const auto out = ddtree::TreeArrays::over(fields.data(), budget, status.data());
        ddtree::build_tree(block, rows.view(), budget, scratch, out);
    }
    bool operator==(const Built&) const = default;
};

inline void test_build(Harness& h) {
    const Rows rows(h);
    const int budget = h.integer(0, 40);
    Built serial(budget), threads(budget);
    Scratch one(h, rows, budget, 1), many(h, rows, budget, ddtree::kTeam);
    serial.build(ddtree::SerialBlock{}, rows, budget, one.view());
    h.on_threads([&](const auto& block) { threads.build(block, rows, budget, many.view()); });
    h.expect(serial == threads, "tree of " + std::to_string(serial.status[0]) + " nodes");
}

// A batch of two trees with all that is written of them.
struct PaddedBatch {
    Words fields, retrieve, status;
    std::vector<std::uint8_t> visible;

    explicit PaddedBatch(int budget)
        : fields(2 * ddtree::TreeArrays::kFields * (budget + 1), -7),
          retrieve(2 * 3 * (budget + 1), -7),
          status(4, -7),
          visible(2 * (budget + 1) * (budget + 1), 7) {}

    ddtree::PaddedTrees<double> over(const Rows& rows, const Rows& twice, int budget) {
        return {twice.log_probs.data(),
                twice.token_ids.data(),
                twice.child_rows.empty() ? nullptr : twice.child_rows.data(),
                2,
                rows.rows,
                rows.ranks,
                budget,
                fields.data(),
                retrieve.data(),
                visible.data(),
                status.data()};
    }
    bool operator==(const PaddedBatch&) const = default;
};

inline void test_padded(Harness& h) {
    const Rows rows(h);
    Rows twice = rows;
    for (Words* words : {&twice.token_ids, &twice.child_rows})
        words->insert(words->end(), words->begin(), words->end());
    twice.log_probs.insert(twice.log_probs.end(), rows.log_probs.begin(), rows.log_probs.end());
    twice.log_probs[h.integer(0, 2 * rows.rows * rows.ranks - 1)] = -1.0;
    const int budget = h.integer(0, 40);
    PaddedBatch serial(budget), threads(budget);
    Scratch one(h, rows, budget, 1), many(h, rows, budget, ddtree::kTeam);
    for (int tree = 0; tree < 2; ++tree) {
        ddtree::build_padded_tree(ddtree::SerialBlock{}, serial.over(rows, twice, budget), tree, one.view());
        h.on_threads([&](const auto& block) {
            ddtree::build_padded_tree(block, threads.over(rows, twice, budget), tree, many.view());
        });
    }
    h.expect(serial == threads, "padded trees");
    h.expect(std::count(serial.fields.begin(), serial.fields.end(), -7) == 0, "something was not written");
}

// Parents of a random tree of `nodes` nodes.
inline Words random_parents(Harness& h, int nodes) {
    Words parents(nodes, -1);
    for (int node = 1; node < nodes; ++node)
        parents[node] = h.integer(std::max(0, node - 1 - h.integer(0, 8)), node - 1);
    return parents;
}

struct Encoded {
    Words index, next_token, next_sibling;
    std::vector<std::uint8_t> visible;

    explicit Encoded(int length) : index(length), next_token(length), next_sibling(length), visible(length * length) {}

    template <class Block>
    void encode(const Block& block, const Words& parents) {
        const int nodes = static_cast<int>(parents.size()), length = static_cast<int>(index.size());
        ddtree::encode_tree(block, parents.data(), nodes, length, 7, index.data(), next_token.data(),
                            next_sibling.data());
        ddtree::write_visibility(block, parents.data(), nodes, length, visible.data());
    }
    bool operator==(const Encoded&) const = default;
};

inline void test_encode(Harness& h) {
    const Words parents = random_parents(h, h.integer(1, 40));
    const int length = static_cast<int>(parents.size()) + h.integer(0, 5);
    Encoded serial(length), threads(length);
    serial.encode(ddtree::SerialBlock{}, parents);
    h.on_threads([&](const auto& block) { threads.encode(block, parents); });
    h.expect(serial == threads, "retrieve arrays");
}

inline void test_topology(Harness& h) {
    const Words parents = random_parents(h, h.integer(1, 40));
    const int length = static_cast<int>(parents.size()) + h.integer(0, 3);
    Encoded arrays(length);
    arrays.encode(ddtree::SerialBlock{}, parents);
    Words tokens(length);
    for (int node = 0; node < length; ++node) tokens[node] = h.chance(0.9) ? node : h.integer(0, 5);
    if (h.chance(0.5)) {
        Words& broken = h.chance(0.5) ? arrays.next_token : arrays.next_sibling;
        broken[h.integer(0, length - 1)] = h.integer(-2, length);
    }
    const std::int64_t* const compared = h.chance(0.7) ? tokens.data() : nullptr;
    const auto check = [&](const auto& block, std::vector<std::int32_t>& scratch) {
        return ddtree::check_topology(block, arrays.next_token.data(), arrays.next_sibling.data(), compared, length,
                                      scratch.data());
    };
    std::vector<std::int32_t> one(ddtree::topology_scratch_words(length)), many = one;
    const std::int64_t serial = check(ddtree::SerialBlock{}, one);
    std::vector<std::int64_t> verdicts(Harness::kMostWorkers, serial);
    h.on_threads([&](const auto& block) { verdicts[block.rank()] = check(block, many); });
    for (const std::int64_t verdict : verdicts) h.expect(verdict == serial, "topology verdict");
}

}  // namespace tree_cases

inline std::vector<Test> tree_tests() {
    using namespace ddtree;
    return {
        {"tree_build", {kSiteRowsChecked, kSiteTreePick, kSiteTreeTaken}, tree_cases::test_build},
        {"tree_padded",
         {kSiteRowsChecked, kSiteTreePick, kSiteTreeTaken, kSiteTreeWritten},
         tree_cases::test_padded},
        {"tree_encode", {}, tree_cases::test_encode},
        {"topology",
         {kSiteTopologyRange, kSiteTopologyPointed, kSiteTopologyPredecessors, kSiteTopologyJump, kSiteTopologyReached,
          kSiteSiblingTokens, kSiteSiblingVerdict},
         tree_cases::test_topology},
    };
}
