// A worker's share of a chunk's lanes.
//
// `LanesOf<Block>` is how a block's teams hold the 32 lanes of a chunk: Block::Lanes where a block brings its
// own (WarpLanes, warp.h), else CpuLanes. Algorithms see only what is public here. All workers of a team call the
// same functions in the same order; what is found is handed to all of them, but for count(), which is a worker's
// share.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ddtree/arithmetic.h"

namespace ddtree {

// All 32 lanes in vectors: what a CPU worker holds.
template <int W>
struct CpuLanes {
    using Vec = Vectors<W>;
    using Float = typename Vec::Float;
    using Int = typename Vec::Int;
    static constexpr int kVectors = kLanes / W;  // that one worker holds
    static constexpr int kTrials = 3;            // thresholds that a pass of a search tries

    template <class Block>
    static DDTREE_INLINE int team(const Block& block) {
        return block.rank();
    }
    template <class Block>
    static DDTREE_INLINE int teams(const Block& block) {
        return block.size();
    }
    // What the team's workers wrote before is seen by all of them after.
    static DDTREE_INLINE void meet(int) {}

    // One of the team writes what all of them found.
    template <class T>
    static DDTREE_INLINE void put(T* to, T found) {
        *to = found;
    }

    // Copies `count` elements of a row to `out` as floats, filled up to whole groups of 32 with `fill`, and each
    // lane's maximum to `maxima`, unless that is null; or's the flags that flag(vector) gives into `flags`. The
    // largest element.
    template <class T, class Flag>
    static DDTREE_INLINE float copy(const T* row, std::int64_t count, T fill, float* out, float* maxima, Int& flags,
                                    Flag flag) {
        Float lanes[kVectors];
        for (Float& lane : lanes) lane = Float{} - std::numeric_limits<float>::infinity();
        const auto take = [&](const T* from, std::int64_t i, int j) __attribute__((always_inline)) {
            const Float x = load<Vec>(from);
            write_vector(out + i, x);
            lanes[j] = lanes[j] > x ? lanes[j] : x;
            flags |= flag(x);
        };
        const std::int64_t whole = count / kLanes;
        each(whole, [&](std::int64_t i, int j) __attribute__((always_inline)) { take(row + i, i, j); });
        if (const std::int64_t begin = whole * kLanes; begin < count) {
            T rest[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) rest[lane] = begin + lane < count ? row[begin + lane] : fill;
            each(1, [&](std::int64_t i, int j) __attribute__((always_inline)) { take(rest + i, begin + i, j); });
        }
        if (maxima == nullptr) return 0.0f;
        __builtin_memcpy(maxima, lanes, sizeof lanes);
        return highest(maxima);
    }

    // The numbers of the elements of the vector that begins with element i.
    static DDTREE_INLINE Int numbers(std::int64_t i) {
        Int numbers = {};
        for (int w = 0; w < W; ++w) numbers[w] = static_cast<std::int32_t>(i) + w;
        return numbers;
    }

    // Calls use(i, j) for every vector j of `groups` whole groups; i is its first element.
    template <class Use>
    static DDTREE_INLINE void each(std::int64_t groups, Use use) {
        for (std::int64_t group = 0; group < groups; ++group)
            for (int j = 0; j < kVectors; ++j) use(group * kLanes + j * W, j);
    }

    // The mass of a chunk of `groups` groups; value(i) gives the vector that begins with element i.
    template <class Value>
    static DDTREE_INLINE float sum(std::int64_t groups, Value value) {
        Float lanes[kVectors] = {};
        each(groups, [&](std::int64_t i, int j) __attribute__((always_inline)) { lanes[j] += value(i); });
        return pairwise(lanes);
    }

    // How many elements of a chunk hold(i), a vector of 0 and -1, among the lanes of this worker.
    template <class Hold>
    static DDTREE_INLINE std::int32_t count(std::int64_t groups, Hold hold) {
        Int lanes[kVectors] = {};
        each(groups, [&](std::int64_t i, int j) __attribute__((always_inline)) { lanes[j] -= hold(i); });
        std::int32_t flat[kLanes];
        __builtin_memcpy(flat, lanes, sizeof flat);
        return pairwise(flat);
    }

    // The sum of the team's counts.
    static DDTREE_INLINE std::int32_t total(std::int32_t count) { return count; }

    // Calls use(i, place) for the elements of a chunk that hold, in index order; place counts from 0. Returns how many
    // they are.
    template <class Hold, class Use>
    static DDTREE_INLINE std::int32_t select(std::int64_t groups, Hold hold, Use use) {
        std::int32_t place = 0;
        each(groups, [&](std::int64_t i, int) __attribute__((always_inline)) {
            for (std::uint32_t bits = sign_bits(hold(i)); bits != 0; bits &= bits - 1)
                use(i + std::countr_zero(bits), place++);
        });
        return place;
    }

    static DDTREE_INLINE void move(const float* from, std::int64_t count, float* to) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
    }

    // Fills the last group up behind `count` elements.
    static DDTREE_INLINE void pad(float* values, std::int64_t count, float fill) {
        for (std::int64_t i = count; i < padded(count); ++i) values[i] = fill;
    }

    // The largest of 32 lane maxima.
    static DDTREE_INLINE float highest(const float* maxima) {
        Float best = load<Vec>(maxima);
        for (int j = 1; j < kVectors; ++j) {
            const Float other = load<Vec>(maxima + j * W);
            best = best > other ? best : other;
        }
        float flat[W];
        __builtin_memcpy(flat, &best, sizeof flat);
        for (int half = W / 2; half > 0; half /= 2)
            for (int w = 0; w < half; ++w) flat[w] = flat[w] > flat[w + half] ? flat[w] : flat[w + half];
        return flat[0];
    }

    // The sum of all lanes.
    static DDTREE_INLINE float pairwise(const Float (&lanes)[kVectors]) {
        float flat[kLanes];
        __builtin_memcpy(flat, lanes, sizeof flat);
        return pairwise(flat);
    }

    static DDTREE_INLINE bool any(Int flags) { return sign_bits(flags) != 0; }

   private:
    template <class T>
    static DDTREE_INLINE T pairwise(T (&lanes)[kLanes]) {
        for (int half = kLanes / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
        return lanes[0];
    }

    // Bit w is the sign of element w.
    static DDTREE_INLINE std::uint32_t sign_bits(Int flags) {
#if defined(__AVX512DQ__)
        if constexpr (W == 16) return _mm512_movepi32_mask(std::bit_cast<__m512i>(flags));
#endif
#if defined(__AVX2__)
        if constexpr (W == 8)
            return static_cast<std::uint32_t>(_mm256_movemask_ps(std::bit_cast<__m256>(flags)));
#endif
#if defined(__SSE2__)
        if constexpr (W == 4) return static_cast<std::uint32_t>(_mm_movemask_ps(std::bit_cast<__m128>(flags)));
#endif
        std::uint32_t bits = 0;
        for (int w = 0; w < W; ++w) bits |= static_cast<std::uint32_t>(flags[w] < 0) << w;
        return bits;
    }
};

namespace detail {

template <class Block>
struct LanesFor {
    using type = CpuLanes<width_of<Block>()>;
};

template <class Block>
    requires requires { typename Block::Lanes; }
struct LanesFor<Block> {
    using type = typename Block::Lanes;
};

}  // namespace detail

template <class Block>
using LanesOf = typename detail::LanesFor<Block>::type;

// Calls use(chunk, first element, groups of 32) for the chunks of this worker's team.
template <class Block, class Use>
DDTREE_HD DDTREE_INLINE void each_chunk(const Block& block, std::int64_t size, Use use) {
    const std::int64_t chunks = chunks_of(size);
    for (std::int64_t chunk = LanesOf<Block>::team(block); chunk < chunks; chunk += LanesOf<Block>::teams(block)) {
        const std::int64_t first = chunk * kChunk;
        const std::int64_t left = size - first;
        use(chunk, first, left >= kChunk ? kChunk / kLanes : (left + kLanes - 1) / kLanes);
    }
}

}  // namespace ddtree
