// Selection in a row without sorting it: the k-th largest value, and the likeliest masses of a given share.
//
// Both are one search: for the largest value such that what is at least as large weighs enough, be it in numbers or in
// masses. A pass over the row weighs what reaches each of several trial thresholds. First the passes are made short:
// the k-th largest of the row's lane maxima is a lower bound for its k-th largest element, masses below
// (1 - share) * total / size are together too little to matter, and where that leaves many, a sample gives the
// first thresholds. What lies between the closest two is picked out of the row, and the search ends there.
#pragma once

#include <cstdint>
#include <limits>

#include "ddtree/sample_search.h"

namespace ddtree {

// ---- picking ----

// Picks the elements of scratch.values that lie in [least, end), each chunk's into its own part of picked_values, where
// they are padded to whole groups with -inf. in_chunk(chunk) is false where there is none.
template <class Block, class InChunk>
DDTREE_HD void pick(const Block& block, std::int64_t size, float least, float end, const RowScratch& scratch,
                    InChunk in_chunk) {
    using Lanes = LanesOf<Block>;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        std::int32_t count = 0;
        if (in_chunk(chunk)) {
            const float* const values = scratch.values + first;
            float* const out = scratch.picked_values + first;
            count = Lanes::select(
                groups,
                [&](std::int64_t i) __attribute__((always_inline)) {
                    const auto x = load<typename Lanes::Vec>(values + i);
                    return (x >= least) & (x < end);
                },
                [&](std::int64_t i, std::int32_t place) __attribute__((always_inline)) {
                    out[place] = values[i];
                    scratch.picked[first + place] = static_cast<std::int32_t>(first + i);
                });
            Lanes::pad(out, count, -std::numeric_limits<float>::infinity());
        }
        Lanes::put(scratch.counts + chunk, count);
    });
    block.sync(kSitePicked);
}

// The picked elements side by side, if they are few.
template <class Block>
DDTREE_HD Chunks gathered(const Block& block, std::int64_t size, const RowScratch& scratch) {
    const std::int64_t chunks = chunks_of(size);
    std::int64_t total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += scratch.counts[chunk];
    if (total > size / kFew) return {scratch.picked_values, size, scratch.counts};
    std::int64_t before = 0, passed = 0;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t) {
        for (; passed < chunk; ++passed) before += scratch.counts[passed];
        LanesOf<Block>::move(scratch.picked_values + first, scratch.counts[chunk], scratch.gathered + before);
    });
    if (LanesOf<Block>::team(block) == 0)
        LanesOf<Block>::pad(scratch.gathered, total, -std::numeric_limits<float>::infinity());
    block.sync(kSiteGathered);
    return {scratch.gathered, total, nullptr};
}

// A lower bound of the k-th largest element, from the lane maxima.
template <class Block>
DDTREE_HD float bound_of_kth(const Block& block, std::int64_t size, std::int64_t k, const RowScratch& scratch) {
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    const std::int64_t lanes = kLanes * chunks_of(size);
    if (k > lanes) return kLowest;
    Bracket bracket = {ordered_key(kLowest), ordered_key(std::numeric_limits<float>::infinity()), 0.0, 0.0};
    search<Weight::number>(block, {scratch.lane_maxima, lanes, nullptr}, static_cast<double>(k), scratch, bracket);
    return key_value(bracket.reaching);
}

// Picks the k largest elements of the row, those equal to the k-th, and maybe some smaller ones: all that reach a
// bound. The row stands in scratch.values, padded with -inf, its lane maxima beside it. Elements of -inf are never
// picked, so there may be fewer than k.
template <class Block>
DDTREE_HD void pick_likeliest(const Block& block, std::int64_t size, std::int64_t k, const RowScratch& scratch) {
    const float least = bound_of_kth(block, size, k, scratch);
    pick(block, size, least, std::numeric_limits<float>::infinity(), scratch, [&](std::int64_t chunk) {
        return LanesOf<Block>::highest(scratch.lane_maxima + chunk * kLanes) >= least;
    });
}

// ---- the search ----

// Draws a sample of the row and puts it in order, if more than a sixteenth of it reaches `least`; whether it does.
template <class Block>
DDTREE_HD bool is_crowded(const Block& block, std::int64_t size, float least, const RowScratch& scratch) {
    const std::int64_t stride = size / kSample;
    if (stride < 4) return false;
    float* const drawn = scratch.sample;
    float* const sorted = scratch.sample + kSample;
    for (int i = block.rank(); i < kSample; i += block.size()) drawn[i] = scratch.values[i * stride];
    block.sync(kSiteSampled);
    int reaching = 0;
    for (int i = 0; i < kSample; ++i) reaching += drawn[i] >= least ? 1 : 0;
    if (reaching * 16 <= kSample) return false;
    for (int i = block.rank(); i < kSample; i += block.size()) {
        int place = 0;
        for (int j = 0; j < kSample; ++j) place += drawn[j] < drawn[i] || (drawn[j] == drawn[i] && j < i) ? 1 : 0;
        sorted[place] = drawn[i];
    }
    block.sync(kSiteSampleSorted);
    return true;
}

// Divides the bracket by elements of the sample, if more than a sixteenth of that lies in it.
DDTREE_HD DDTREE_INLINE bool divide_by_sample(const Bracket& bracket, const float* sorted,
                                              std::int32_t (&keys)[kMostTrials]) {
    int first = 0, inside = 0;
    for (int i = 0; i < kSample; ++i) {
        const std::int32_t key = ordered_key(sorted[i]);
        first += key < bracket.reaching ? 1 : 0;
        inside += key >= bracket.reaching && key < bracket.missing ? 1 : 0;
    }
    if (inside * 16 <= kSample) return false;
    for (int t = 0; t < kMostTrials; ++t) {
        keys[t] = ordered_key(sorted[first + (t + 1) * inside / (kMostTrials + 1)]);
        if (t > 0) keys[t] = Maximum{}(keys[t], keys[t - 1] + 1);  // many are equal: look right above them
    }
    return true;
}

// Closes the bracket over the row in scratch.values. Of masses, those that are between its last two ends are picked.
template <Weight kWeight, class Block, class InChunk>
DDTREE_HD void search_row(const Block& block, std::int64_t size, double goal, const RowScratch& scratch,
                          Bracket& bracket, InChunk in_chunk) {
    std::int32_t keys[kMostTrials];
    const bool crowded = is_crowded(block, size, key_value(bracket.reaching), scratch);
    for (int pass = 0; crowded && pass < 2 && bracket.is_open(); ++pass) {
        if (!divide_by_sample(bracket, scratch.sample + kSample, keys)) break;
        float* const trials = scratch.trials + pass * kMostTrials * chunks_of(size);
        search_pass<kWeight>(block, {scratch.values, size, nullptr}, keys, 0.0, goal, trials, bracket);
    }
    if (kWeight == Weight::number && !bracket.is_open()) return;
    pick(block, size, key_value(bracket.reaching), key_value(bracket.missing), scratch, in_chunk);
    search<kWeight>(block, gathered(block, size, scratch), goal, scratch, bracket);
}

// What an element must reach to be one of the k largest of the row or equal to the k-th.
template <class Block>
DDTREE_HD float top_k_threshold(const Block& block, std::int64_t size, std::int64_t k, const RowScratch& scratch) {
    const float least = bound_of_kth(block, size, k, scratch);
    Bracket bracket = {ordered_key(least), ordered_key(std::numeric_limits<float>::infinity()), 0.0, 0.0};
    search_row<Weight::number>(block, size, static_cast<double>(k), scratch, bracket, [&](std::int64_t chunk) {
        return LanesOf<Block>::highest(scratch.lane_maxima + chunk * kLanes) >= least;
    });
    return key_value(bracket.reaching);
}

// A mass stays if it is above `least`, or equal to it in a token up to `last_token`.
struct Cut {
    float least;
    std::int32_t last_token;
};

namespace detail {

// The token of the last of the picked elements equal to `least` when the highest `spared` tokens among them are left
// out.
DDTREE_HD DDTREE_INLINE std::int32_t last_equal(const RowScratch& scratch, std::int64_t size, float least,
                                                std::int64_t spared) {
    std::int64_t chunk = chunks_of(size) - 1;
    for (; scratch.equals[chunk] <= spared; --chunk) spared -= scratch.equals[chunk];
    for (std::int64_t at = chunk * kChunk + scratch.counts[chunk] - 1;; --at)
        if (scratch.picked_values[at] == least && spared-- == 0) return scratch.picked[at];
}

// Of `equal` masses, how many the goal can spare.
DDTREE_HD DDTREE_INLINE std::int64_t spared_of(std::int64_t equal, double mass, double reached, double goal) {
    const auto is_spared = [&](std::int64_t count) { return reached - static_cast<double>(count) * mass >= goal; };
    const double fitting = (reached - goal) / mass;
    std::int64_t spared = fitting < static_cast<double>(equal - 1) ? static_cast<std::int64_t>(fitting) : equal - 1;
    while (spared > 0 && !is_spared(spared)) --spared;
    while (spared + 1 < equal && is_spared(spared + 1)) ++spared;
    return spared;
}

}  // namespace detail

// The shortest run of masses, in descending order and equal ones by ascending token, that reaches `share` (below
// 1) of `total`, which is the sum of them all. The masses, at most 1, stand in scratch.values.
template <class Block>
DDTREE_HD Cut nucleus(const Block& block, std::int64_t size, double share, double total, const RowScratch& scratch) {
    using Lanes = LanesOf<Block>;
    constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
    const double goal = share * total;
    const auto too_little = static_cast<float>(0.999 * (1.0 - share) * total / static_cast<double>(size));
    const float bound = Maximum{}(too_little, std::numeric_limits<float>::min());
    Bracket bracket = {ordered_key(bound), ordered_key(1.0f) + 1, goal, 0.0};
    search_row<Weight::mass>(block, size, goal, scratch, bracket, [](std::int64_t) { return true; });

    const float least = key_value(bracket.reaching);
    const Chunks picked = {scratch.picked_values, size, scratch.counts};
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t full) {
        const std::int32_t equal = Lanes::count(picked.groups(chunk, full), [&](std::int64_t i) __attribute__((
                                                                                always_inline)) {
            return load<typename Lanes::Vec>(picked.values + first + i) == least;
        });
        Lanes::put(scratch.equals + chunk, Lanes::total(equal));
    });
    block.sync(kSiteNucleusEqual);
    std::int64_t equal = 0;
    for (std::int64_t chunk = 0; chunk < chunks_of(size); ++chunk) equal += scratch.equals[chunk];
    const std::int64_t spared = detail::spared_of(equal, static_cast<double>(least), bracket.reached, goal);
    return {least, spared > 0 ? detail::last_equal(scratch, size, least, spared) : kAll};
}

}  // namespace ddtree
