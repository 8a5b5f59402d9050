// The vectorised part of top-k with log-sum-exp: one look at a chunk of a row, in vectors of W floats.
//
// The drafter's top-k is a CPU kernel only (on CUDA it is torch's). The row loop that calls this, and the
// selection among what it collects, are cpu/topk.cpp.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "ddtree/arithmetic.h"

namespace ddtree {

// An element as one number: larger value first, then lower id. No two elements of a row have the same.
DDTREE_INLINE std::uint64_t topk_key(float value, std::int64_t id) {
    const auto high = static_cast<std::uint32_t>(ordered_key(value)) ^ 0x80000000u;
    return static_cast<std::uint64_t>(high) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

DDTREE_INLINE float topk_value(std::uint64_t key) {
    return key_value(static_cast<std::int32_t>(static_cast<std::uint32_t>(key >> 32) ^ 0x80000000u));
}

DDTREE_INLINE std::int64_t topk_id(std::uint64_t key) { return 0xffffffffu - static_cast<std::uint32_t>(key); }

// What is carried along a row.
struct TopkScan {
    float temperature;
    bool sound = true;                                        // neither NaN nor +inf so far
    float maximum = -std::numeric_limits<float>::infinity();  // of the row so far
    float mass = 0.0f;      // of the last chunk: the sum of exp((x - maximum) / temperature)
    bool take_all = true;   // collect every element, else those above `threshold`
    float threshold = 0.0f;
    std::uint64_t* keys;    // where the collected go: at least a chunk's room behind `count`
    std::int64_t count = 0;
};

namespace detail {

// Bit i: whether value[i] > threshold.
template <int W>
DDTREE_INLINE std::uint32_t above(const typename Vectors<W>::Float& value, float threshold) {
#if defined(__AVX512F__)
    if constexpr (W == 16)
        return _mm512_cmp_ps_mask(std::bit_cast<__m512>(value), _mm512_set1_ps(threshold), _CMP_GT_OQ);
#endif
#if defined(__AVX__)
    if constexpr (W == 8)
        return static_cast<std::uint32_t>(_mm256_movemask_ps(
            _mm256_cmp_ps(std::bit_cast<__m256>(value), _mm256_set1_ps(threshold), _CMP_GT_OQ)));
#endif
#if defined(__SSE2__)
    if constexpr (W == 4)
        return static_cast<std::uint32_t>(
            _mm_movemask_ps(_mm_cmpgt_ps(std::bit_cast<__m128>(value), _mm_set1_ps(threshold))));
#endif
    std::uint32_t bits = 0;
    for (int i = 0; i < W; ++i) bits |= static_cast<std::uint32_t>(value[i] > threshold) << i;
    return bits;
}

}  // namespace detail

// Takes in the elements first_id .. first_id + size - 1 of a row, at `row`; size <= kChunk.
template <int W, class T>
DDTREE_INLINE void topk_scan_chunk(const T* row, int size, std::int64_t first_id, TopkScan& scan) {
    using Lanes = CpuLanes<W>;
    using Float = typename Lanes::Float;
    using Int = typename Lanes::Int;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();

    alignas(64) float values[kChunk];
    const int groups = (size + kLanes - 1) / kLanes;
    const int whole = size / W * W;
    Float maxima[Lanes::kVectors];
    Int finite[Lanes::kVectors];
    for (int j = 0; j < Lanes::kVectors; ++j) {
        maxima[j] = splat<Float>(-kInfinity);
        finite[j] = Int{} - 1;
    }
    if (size < kChunk) {
        alignas(64) T tail[kLanes] = {};
        for (int i = whole; i < size; ++i) tail[i - whole] = row[i];
        for (int i = 0; i < whole; i += W) write_vector(values + i, load<Vectors<W>>(row + i));
        if (whole < size) {
            const Float last = load<Vectors<W>>(tail);
            for (int i = whole; i < size; ++i) values[i] = last[i - whole];
        }
        for (int i = size; i < groups * kLanes; ++i) values[i] = -kInfinity;
    }
    Lanes::each(groups, [&](std::int64_t i, int j) __attribute__((always_inline)) {
        Float value;
        if (size == kChunk) {
            value = load<Vectors<W>>(row + i);
            write_vector(values + i, value);
        } else {
            value = read_vector<Float>(values + i);
        }
        maxima[j] = maxima[j] > value ? maxima[j] : value;
        finite[j] &= value < kInfinity;
    });
    float chunk_maximum = -kInfinity;
    for (int j = 0; j < Lanes::kVectors; ++j) {
        for (int i = 0; i < W; ++i) {
            chunk_maximum = maxima[j][i] > chunk_maximum ? maxima[j][i] : chunk_maximum;
            scan.sound &= finite[j][i] != 0;
        }
    }
    if (!scan.sound) return;

    if (chunk_maximum > scan.maximum) scan.maximum = chunk_maximum;
    const Float maximum = splat<Float>(scan.maximum);
    scan.mass = 0.0f;
    if (chunk_maximum != -kInfinity) {
        if (scan.temperature == 1.0f) {
            scan.mass = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
                return exp_nonpositive<Float, Int>(read_vector<Float>(values + i) - maximum);
            });
        } else {
            const Float temperature = splat<Float>(scan.temperature);
            scan.mass = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
                return exp_nonpositive<Float, Int>((read_vector<Float>(values + i) - maximum) / temperature);
            });
        }
    }

    if (scan.take_all) {
        for (int i = 0; i < size; ++i) scan.keys[scan.count++] = topk_key(values[i], first_id + i);
    } else if (chunk_maximum > scan.threshold) {
        for (int i = 0; i < groups * kLanes; i += W) {
            std::uint32_t bits = detail::above<W>(read_vector<Float>(values + i), scan.threshold);
            for (; bits != 0; bits &= bits - 1) {
                const int at = i + std::countr_zero(bits);
                scan.keys[scan.count++] = topk_key(values[at], first_id + at);
            }
        }
    }
}

}  // namespace ddtree
