// The threads executor's own primitives.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "harness.h"

namespace executor_cases {

inline constexpr int kAnySite = 1000;  // of no kernel, so never skipped

inline void test_primitives(Harness& h) {
    constexpr int kMost = Harness::kMostWorkers;
    std::vector<int> values(kMost), before(kMost, -1), sums(kMost, -1), least(kMost, -1);
    for (int& value : values) value = h.integer(-100, 100);
    int workers = 0;
    h.on_threads([&](const auto& block) {
        const int rank = block.rank();
        if (rank == 0) workers = block.size();
        before[rank] = block.scan(values[rank], &sums[rank], kAnySite);
        least[rank] = block.reduce(values[rank], ddtree::Minimum{}, kAnySite);
    });
    const int sum = std::accumulate(values.begin(), values.begin() + workers, 0);
    for (int rank = 0; rank < workers; ++rank) {
        h.expect(before[rank] == std::accumulate(values.begin(), values.begin() + rank, 0), "exclusive prefix sum");
        h.expect(sums[rank] == sum, "sum of a scan");
        h.expect(least[rank] == *std::min_element(values.begin(), values.begin() + workers), "minimum");
    }
}

}  // namespace executor_cases

inline std::vector<Test> executor_tests() { return {{"executor", {}, executor_cases::test_primitives}}; }
