// The cases from the field, as they stand in words in tests/ddtree/test_sampling_batch.py: a root with children, one
// row for all nodes, and what must come of it, on threads as on the serial executor.
#pragma once

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "sample_cases.h"

namespace sample_cases {

inline constexpr float kAlmostOne = 1.0f - 0x1p-24f;

struct FieldCase {
    const char* name;
    std::vector<float> row;
    Words children;
    float coin, final_coin;
    double threshold_single, threshold_acc;
    int accepted;
    std::int64_t bonus;  // -1: not looked at
};

inline Words first_tokens(int count) {
    Words tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

inline std::vector<FieldCase> field_cases() {
    const auto flat = [](int size) { return std::vector<float>(size, 1.0f / static_cast<float>(size)); };
    return {
        {"a child without mass", {0, 1, 0}, {2}, 0, 0, 1, 1, 0, 1},
        {"a child without mass, threshold 0", {0, 1, 0}, {2}, 0, 0, 0, 0, 0, 1},
        {"a coin of 0", {0, .25f, .75f}, {1}, 0, 0, 1, 1, 1, -1},
        {"the highest coin", {0, 1}, {1}, kAlmostOne, 0, 1, 1, 1, -1},
        {"exhausted support", {0, .5f, .25f, .24999994f, 0, 0}, {1, 2, 3}, kAlmostOne, 0, 1, 1, 0, 3},
        {"exhausted, the last has no mass", {0, .5f, .25f, .24999994f, 0, 0}, {1, 2, 3, 5}, kAlmostOne, 0, 1, 1, 0, 3},
        {"40 siblings", flat(64), first_tokens(40), .99f, 0, 1, 1, 0, 40},
        {"33 siblings", flat(64), first_tokens(33), .99f, 0, 1, 1, 0, 33},
        {"64 siblings", flat(1024), first_tokens(64), .9f, 0, 1, 1, 0, 64},
        {"257 siblings", flat(1024), first_tokens(257), .9f, 0, 1, 1, 0, 257},
        {"equal siblings count once", {.5f, .3f, .2f}, {1, 1}, .45f, 0, 1, 1, 0, 0},
        {"equal siblings, then another", {.5f, .3f, .2f}, {1, 1, 2}, .45f, 0, 1, 1, 1, -1},
        {"a lossy threshold accepts", {.3f, .7f}, {0}, .5f, 0, 1, .5, 1, -1},
        {"threshold 1 rejects", {.3f, .7f}, {0}, .5f, 0, 1, 1, 0, 1},
        {"threshold 0 and no mass", {0, 1}, {0}, 0, 0, 1, 0, 0, 1},
        {"threshold 0 and hardly any mass", {1e-30f, 1}, {0}, 0, 0, 1, 0, 1, -1},
        {"rounding leaves no running sum above the mark", flat(49152), {}, 0, 1, 1, 1, 0, 49151},
    };
}

inline void test_field_cases(Harness& h) {
    const std::vector<FieldCase> cases = field_cases();
    const FieldCase& c = cases[h.integer(0, static_cast<int>(cases.size()) - 1)];
    const int nodes = static_cast<int>(c.children.size()) + 1;
    const auto size = static_cast<std::int64_t>(c.row.size());
    Words tokens = {0}, next_token(nodes, -1), next_sibling(nodes, -1);
    tokens.insert(tokens.end(), c.children.begin(), c.children.end());
    if (nodes > 1) next_token[0] = 1;
    for (int node = 1; node + 1 < nodes; ++node) next_sibling[node] = node + 1;
    const std::vector<float> coins(nodes, c.coin);
    const Memory<ddtree::WalkScratch> serial(size, nodes), threads(size, nodes);
    const auto walk = [&](const auto& block, const ddtree::WalkScratch& scratch) {
        ddtree::walk_tree(block, {tokens.data(), next_token.data(), next_sibling.data(), nodes, nodes, false},
                          {coins.data(), c.final_coin, c.threshold_single, c.threshold_acc}, size, scratch,
                          [&](std::int32_t) {
                              return ddtree::masses_of_probs(block, c.row.data(), size, scratch.row);
                          });
    };
    walk(ddtree::SerialBlock{}, serial.view());
    h.on_threads([&](const auto& block) { walk(block, threads.view()); });
    for (const auto* memory : {&serial, &threads}) {
        const ddtree::WalkVerdict& verdict = *memory->view().verdict;
        h.expect(verdict.fault == ddtree::SampleFault::none && verdict.accepted == c.accepted, c.name);
        h.expect(c.bonus < 0 || verdict.bonus_token == c.bonus, std::string(c.name) + ": the bonus token");
    }
}

}  // namespace sample_cases
