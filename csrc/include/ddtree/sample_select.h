// Selection in a row without sorting it: the k-th largest value, and the likeliest masses of a given share.
//
// Both search a threshold, since floats can be compared as integers: counting (or adding up) what reaches a trial
// threshold is a vectorised pass, and 32 passes find any float. First the passes are made short: the k-th largest
// of the row's lane maxima is a lower bound for its k-th largest element, and all masses below
// (1 - share) * total / size together are too little to matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ddtree/arithmetic.h"

namespace ddtree {

// Hands out parts of one buffer, each aligned to 64 bytes. Over a null buffer it only counts.
struct Carver {
    std::byte* buffer;
    std::int64_t used = 0;

    template <class T>
    DDTREE_HD DDTREE_INLINE T* take(std::int64_t count) {
        T* const part = buffer == nullptr ? nullptr : reinterpret_cast<T*>(buffer + used);
        used += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
        return part;
    }
};

// Memory the workers share for one row of `size` elements; its contents need not be initialised.
struct RowScratch {
    float* values;         // [padded] the row in float32, then its masses
    float* lane_maxima;    // [32 * chunks] of the row as it was read
    float* chunk_masses;   // [chunks]
    float* trial_masses;   // [2 * chunks] chunk masses of two passes in turn
    std::int32_t* counts;  // [chunks] of what is picked; during a walk, whether the chunk lost a token
    float* picked_values;  // [padded] elements picked out of the row
    std::int32_t* picked;  // [padded] where they stand in it, ascending

    DDTREE_HD static DDTREE_INLINE RowScratch over(Carver& carver, std::int64_t size) {
        const std::int64_t chunks = chunks_of(size);
        RowScratch scratch;
        scratch.values = carver.take<float>(padded(size));
        scratch.lane_maxima = carver.take<float>(kLanes * chunks);
        scratch.chunk_masses = carver.take<float>(chunks);
        scratch.trial_masses = carver.take<float>(2 * chunks);
        scratch.counts = carver.take<std::int32_t>(chunks);
        scratch.picked_values = carver.take<float>(padded(size));
        scratch.picked = carver.take<std::int32_t>(padded(size));
        return scratch;
    }
};

// Picks the values that are at least `least` into scratch.picked_values and picked, in index order, padded with
// -inf; returns how many, to every worker. `values` is padded with what is below `least`; in_chunk(chunk) is false
// where no value of that chunk can be picked.
template <class Block, class InChunk>
DDTREE_HD std::int64_t pick(const Block& block, const float* values, std::int64_t size, float least,
                            const RowScratch& scratch, InChunk in_chunk) {
    using Lanes = LanesOf<Block>;
    const auto reaches = [&](std::int64_t i) __attribute__((always_inline)) {
        return load<typename Lanes::Vec>(values + i) >= least;
    };
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        const auto here = [&](std::int64_t i) __attribute__((always_inline)) { return reaches(first + i); };
        Lanes::put(scratch.counts + chunk, in_chunk(chunk) ? Lanes::total(Lanes::count(groups, here)) : 0);
    });
    block.sync(kSitePickCounts);
    std::int64_t before = 0, counted = 0;
    const auto count_to = [&](std::int64_t chunk) {
        while (counted < chunk) before += scratch.counts[counted++];
    };
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        count_to(chunk);
        if (scratch.counts[chunk] == 0) return;
        float* const out_values = scratch.picked_values + before;
        std::int32_t* const out = scratch.picked + before;
        Lanes::select(
            groups,
            [&](std::int64_t i) __attribute__((always_inline)) { return reaches(first + i); },
            [&](std::int64_t i, std::int32_t place) __attribute__((always_inline)) {
                out_values[place] = values[first + i];
                out[place] = static_cast<std::int32_t>(first + i);
            });
    });
    count_to(chunks_of(size));
    if (block.rank() == 0) {
        for (std::int64_t i = before; i < padded(before); ++i)
            scratch.picked_values[i] = -std::numeric_limits<float>::infinity();
    }
    block.sync(kSitePicked);
    return before;
}

// The k-th largest of `count` values, 1 <= k <= count; memory up to padded(count) is -inf or part of the values.
template <class Block>
DDTREE_HD float kth_largest(const Block& block, const float* values, std::int64_t count, std::int64_t k) {
    using Lanes = LanesOf<Block>;
    using Vec = typename Lanes::Vec;
    std::uint32_t found = 0;  // keys in unsigned order: the sign bit is turned
    for (int bit = 31; bit >= 0; --bit) {
        const std::uint32_t trial = found | (std::uint32_t{1} << bit);
        const auto least = static_cast<std::int32_t>(trial ^ 0x80000000u);
        std::int64_t reaching = 0;
        each_chunk(block, count, [&](std::int64_t, std::int64_t first, std::int64_t groups) {
            reaching += Lanes::count(groups, [&](std::int64_t i) __attribute__((always_inline)) {
                return ordered_keys<Vec>(load<Vec>(values + first + i)) >= least;
            });
        });
        if (block.reduce(reaching, Sum{}, kSiteKthLargest) >= k) found = trial;
    }
    return key_value(static_cast<std::int32_t>(found ^ 0x80000000u));
}

// Picks the k largest elements of the row, those equal to the k-th, and maybe some smaller ones: all that reach
// *least. The row stands in scratch.values, padded with -inf, its lane maxima beside it. Elements of -inf are never
// picked, so there may be fewer than k.
template <class Block>
DDTREE_HD std::int64_t pick_likeliest(const Block& block, std::int64_t size, std::int64_t k, const RowScratch& scratch,
                                      float* least) {
    const std::int64_t lanes = kLanes * chunks_of(size);
    *least = std::numeric_limits<float>::lowest();
    if (k <= lanes) *least = Maximum{}(*least, kth_largest(block, scratch.lane_maxima, lanes, k));
    return pick(block, scratch.values, size, *least, scratch, [&](std::int64_t chunk) {
        return LanesOf<Block>::highest(scratch.lane_maxima + chunk * kLanes) >= *least;
    });
}

// What an element must reach to be one of the k largest of the row or equal to the k-th.
template <class Block>
DDTREE_HD float top_k_threshold(const Block& block, std::int64_t size, std::int64_t k, const RowScratch& scratch) {
    float least;
    const std::int64_t count = pick_likeliest(block, size, k, scratch, &least);
    return count <= k ? least : kth_largest(block, scratch.picked_values, count, k);
}

// The sum of the masses that are at least `least` > 0.
template <class Block>
DDTREE_HD double mass_from(const Block& block, const float* masses, std::int64_t size, float least,
                           float* chunk_masses) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        const float mass = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            const Float x = load<typename Lanes::Vec>(masses + first + i);
            return x >= least ? x : Float{};
        });
        Lanes::put(chunk_masses + chunk, mass);
    });
    block.sync(kSiteMassFrom);
    return sum_of_chunks(chunk_masses, chunks_of(size));
}

// A mass stays if it is above `least`, or equal to it in a token up to `last_token`.
struct Cut {
    float least;
    std::int32_t last_token;
};

namespace detail {

// The token of the last of the picked masses equal to `least` when the highest `spared` tokens among them are left
// out.
DDTREE_HD DDTREE_INLINE std::int32_t last_equal(const RowScratch& scratch, std::int64_t count, float least,
                                                std::int64_t spared) {
    for (std::int64_t at = count - 1;; --at)
        if (scratch.picked_values[at] == least && spared-- == 0) return scratch.picked[at];
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
    const std::int64_t count = pick(block, scratch.values, size, bound, scratch, [](std::int64_t) { return true; });

    auto reaching = std::bit_cast<std::uint32_t>(bound);  // the masses from here on reach the goal
    auto missing = std::bit_cast<std::uint32_t>(1.0f) + 1;  // those from here on do not
    double reached = goal;
    for (int pass = 0; missing - reaching > 1; ++pass) {
        const std::uint32_t middle = reaching + (missing - reaching) / 2;
        float* const chunk_masses = scratch.trial_masses + (pass % 2) * chunks_of(size);
        const double mass = mass_from(block, scratch.picked_values, count, std::bit_cast<float>(middle), chunk_masses);
        if (mass >= goal) {
            reaching = middle;
            reached = mass;
        } else {
            missing = middle;
        }
    }
    const auto least = std::bit_cast<float>(reaching);
    std::int64_t equal = 0;
    each_chunk(block, count, [&](std::int64_t, std::int64_t first, std::int64_t groups) {
        equal += Lanes::count(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            return load<typename Lanes::Vec>(scratch.picked_values + first + i) == least;
        });
    });
    equal = block.reduce(equal, Sum{}, kSiteNucleusEqual);
    std::int64_t spared = 0;  // of the equal ones, those that are not needed
    while (spared + 1 < equal && reached - static_cast<double>(spared + 1) * static_cast<double>(least) >= goal)
        ++spared;
    return {least, spared == 0 ? kAll : detail::last_equal(scratch, count, least, spared)};
}

}  // namespace ddtree
