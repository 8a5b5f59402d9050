// A search for the largest value such that what is at least as large weighs enough, be it in numbers or in masses. A
// pass over the elements weighs what reaches each of several trial thresholds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ddtree/lanes.h"

namespace ddtree {

inline constexpr int kMostTrials = 7;  // thresholds of one pass
inline constexpr int kSample = 128;    // elements
inline constexpr int kFew = 4;         // of the elements of a row at most one in so many is gathered

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
    float* trials;         // [2 * kMostTrials * chunks] chunk weights of two passes in turn
    float* sample;         // [2 * kSample] as it was drawn, in order
    std::int32_t* counts;  // [chunks] picked in each chunk; during a walk, whether the chunk lost a token
    std::int32_t* equals;  // [chunks] of them equal to the least
    float* picked_values;  // [padded] elements picked out of the row, each chunk's from the chunk's own place on
    std::int32_t* picked;  // [padded] where they stand in it, ascending
    float* gathered;       // [padded(size / kFew)] the picked values side by side

    DDTREE_HD static DDTREE_INLINE RowScratch over(Carver& carver, std::int64_t size) {
        const std::int64_t chunks = chunks_of(size);
        RowScratch scratch;
        scratch.values = carver.take<float>(padded(size));
        scratch.lane_maxima = carver.take<float>(kLanes * chunks);
        scratch.chunk_masses = carver.take<float>(chunks);
        scratch.trials = carver.take<float>(2 * kMostTrials * chunks);
        scratch.sample = carver.take<float>(2 * kSample);
        scratch.counts = carver.take<std::int32_t>(chunks);
        scratch.equals = carver.take<std::int32_t>(chunks);
        scratch.picked_values = carver.take<float>(padded(size));
        scratch.picked = carver.take<std::int32_t>(padded(size));
        scratch.gathered = carver.take<float>(padded(size / kFew));
        return scratch;
    }
};

// ---- weighing ----

enum class Weight { number, mass };

// Elements in chunks of a row, padded to whole groups with -inf; `counts` says how many each has, null: all are full.
struct Chunks {
    const float* values;
    std::int64_t size;
    const std::int32_t* counts;

    DDTREE_HD DDTREE_INLINE std::int64_t groups(std::int64_t chunk, std::int64_t full) const {
        return counts == nullptr ? full : (counts[chunk] + kLanes - 1) / kLanes;
    }
};

// What the elements weigh that are at least least[t], for each trial t. `trials` is not that of the pass before.
template <Weight kWeight, class Block, int kTrials>
DDTREE_HD void weigh(const Block& block, const Chunks& in, const float (&least)[kTrials], float* trials,
                     double (&weights)[kTrials]) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    const std::int64_t chunks = chunks_of(in.size);
    each_chunk(block, in.size, [&](std::int64_t chunk, std::int64_t first, std::int64_t full) {
        const std::int64_t groups = in.groups(chunk, full);
        if (groups == 0) return;
        Float lanes[kTrials][Lanes::kVectors] = {};
        Lanes::each(groups, [&](std::int64_t i, int j) __attribute__((always_inline)) {
            const Float x = load<typename Lanes::Vec>(in.values + first + i);
            const Float weight = kWeight == Weight::mass ? x : Float{} + 1.0f;
            for (int t = 0; t < kTrials; ++t) lanes[t][j] += x >= least[t] ? weight : Float{};
        });
        for (int t = 0; t < kTrials; ++t) Lanes::put(trials + t * chunks + chunk, Lanes::pairwise(lanes[t]));
    });
    block.sync(kSiteWeighed);
    for (double& weight : weights) weight = 0.0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        if (in.groups(chunk, 1) == 0) continue;
        for (int t = 0; t < kTrials; ++t) weights[t] += static_cast<double>(trials[t * chunks + chunk]);
    }
}

// Where a search stands, in ordered keys.
struct Bracket {
    std::int32_t reaching;  // what is from here on weighs enough
    std::int32_t missing;   // what is from here on does not
    double reached;         // what is from `reaching` on weighs
    double beyond;          // and from `missing` on

    DDTREE_HD DDTREE_INLINE bool is_open() const { return std::int64_t{missing} - reaching > 1; }

    // Weights of keys that do not descend, within the bracket.
    template <int kTrials>
    DDTREE_HD DDTREE_INLINE void narrow(const std::int32_t (&keys)[kTrials], const double (&weights)[kTrials],
                                        double goal) {
        for (int t = 0; t < kTrials; ++t) {
            if (weights[t] < goal) {
                missing = keys[t];
                beyond = weights[t];
                return;
            }
            reaching = keys[t];
            reached = weights[t];
        }
    }

    // One next to the end, since many elements may be equal to that; the others at equal distances.
    template <int kTrials>
    DDTREE_HD DDTREE_INLINE void divide(std::int32_t (&keys)[kTrials]) const {
        const std::int64_t length = std::int64_t{missing} - reaching;
        for (int t = 0; t < kTrials; ++t)
            keys[t] = static_cast<std::int32_t>(reaching + Maximum{}(std::int64_t{1}, length * t / kTrials));
    }
};

// One pass of a search over `in`, to whose weights `more` is added.
template <Weight kWeight, class Block, int kTrials>
DDTREE_HD void search_pass(const Block& block, const Chunks& in, const std::int32_t (&keys)[kTrials], double more,
                           double goal, float* trials, Bracket& bracket) {
    float least[kTrials];
    double weights[kTrials];
    for (int t = 0; t < kTrials; ++t) least[t] = key_value(keys[t]);
    weigh<kWeight>(block, in, least, trials, weights);
    for (double& weight : weights) weight += more;
    bracket.narrow(keys, weights, goal);
}

// Closes the bracket over `in`, which holds all elements between its ends. How many trials a pass has changes nothing
// but the time: a CPU has more to do for each, a GPU pays more for each pass.
template <Weight kWeight, class Block>
DDTREE_HD void search(const Block& block, const Chunks& in, double goal, const RowScratch& scratch, Bracket& bracket) {
    const double beyond = bracket.beyond;
    std::int32_t keys[LanesOf<Block>::kTrials];
    for (int pass = 0; bracket.is_open(); ++pass) {
        bracket.divide(keys);
        float* const trials = scratch.trials + pass % 2 * kMostTrials * chunks_of(in.size);
        search_pass<kWeight>(block, in, keys, beyond, goal, trials, bracket);
    }
}

}  // namespace ddtree
