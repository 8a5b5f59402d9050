// The vectorised part of top-k with log-sum-exp over a row, in vectors of W floats.
//
// The row is streamed once, chunk by chunk: the mass, and the maximum of every *cell* of 8 elements. The k-th
// largest of these maxima is a floor that at least k elements reach, and hardly more: only the few cells whose
// maximum reaches it are looked at again, and what reaches it in them is collected. Among those cpu/topk.cpp selects.
//
// The drafter's top-k is a CPU kernel only; on CUDA it is torch's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "ddtree/lanes.h"

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

inline constexpr int kCellHeight = 8;                        // its elements stand 32 apart
inline constexpr int kCells = kChunk / kCellHeight;          // of a chunk

struct TopkRow {
    bool sound;          // neither NaN nor +inf, and some mass; else the rest means nothing
    float maximum;
    double mass;         // the sum of exp((x - maximum) / temperature)
    std::int64_t count;  // of the keys collected: all that can be among the first k, and perhaps more
};

namespace detail {

// Bit i: whether value[i] >= floor.
template <int W>
DDTREE_INLINE std::uint32_t reaching(const typename Vectors<W>::Float& value, float floor) {
#if defined(__AVX512F__)
    if constexpr (W == 16)
        return _mm512_cmp_ps_mask(std::bit_cast<__m512>(value), _mm512_set1_ps(floor), _CMP_GE_OQ);
#endif
#if defined(__AVX__)
    if constexpr (W == 8)
        return static_cast<std::uint32_t>(_mm256_movemask_ps(
            _mm256_cmp_ps(std::bit_cast<__m256>(value), _mm256_set1_ps(floor), _CMP_GE_OQ)));
#endif
#if defined(__SSE2__)
    if constexpr (W == 4)
        return static_cast<std::uint32_t>(
            _mm_movemask_ps(_mm_cmpge_ps(std::bit_cast<__m128>(value), _mm_set1_ps(floor))));
#endif
    std::uint32_t bits = 0;
    for (int i = 0; i < W; ++i) bits |= static_cast<std::uint32_t>(value[i] >= floor) << i;
    return bits;
}

template <int W, class T>
DDTREE_INLINE float topk_read(const T* from) {
    if constexpr (std::is_same_v<T, float>) return *from;
    const T alone[W] = {*from};
    return load<Vectors<W>>(alone)[0];
}

// A chunk in float32, padded with -inf to whole groups of 32 lanes; `scratch` is where it is put if it must be.
template <int W, class T>
DDTREE_INLINE const float* topk_values(const T* row, int size, float* scratch) {
    using Vec = Vectors<W>;
    if constexpr (std::is_same_v<T, float>) {
        if (size == kChunk) return row;
    }
    const int whole = size / W * W;
    for (int i = 0; i < whole; i += W) write_vector(scratch + i, load<Vec>(row + i));
    if (whole < size) {
        T tail[W] = {};
        for (int i = whole; i < size; ++i) tail[i - whole] = row[i];
        write_vector(scratch + whole, load<Vec>(tail));
    }
    for (int i = size; i < padded(size); ++i) scratch[i] = -std::numeric_limits<float>::infinity();
    return scratch;
}

// Cell maxima of a chunk into `maxima` [kCells]; returns the largest. `finite` loses the lanes where NaN or +inf is.
template <int W>
DDTREE_INLINE float topk_maxima(const float* values, std::int64_t groups, float* maxima,
                                typename Vectors<W>::Int (&finite)[kLanes / W]) {
    using Lanes = CpuLanes<W>;
    using Float = typename Lanes::Float;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    Float largest[Lanes::kVectors];
    for (Float& lanes : largest) lanes = splat<Float>(-kInfinity);
    for (std::int64_t first = 0; first < kChunk / kLanes; first += kCellHeight) {
        Float cells[Lanes::kVectors];
        for (Float& lanes : cells) lanes = splat<Float>(-kInfinity);
        const std::int64_t height = groups - first < kCellHeight ? groups - first : kCellHeight;
        Lanes::each(height, [&](std::int64_t i, int j) __attribute__((always_inline)) {
            const Float value = read_vector<Float>(values + first * kLanes + i);
            cells[j] = cells[j] > value ? cells[j] : value;
            finite[j] &= value < kInfinity;
        });
        for (int j = 0; j < Lanes::kVectors; ++j) {
            write_vector(maxima + first / kCellHeight * kLanes + j * W, cells[j]);
            largest[j] = largest[j] > cells[j] ? largest[j] : cells[j];
        }
    }
    float flat[kLanes];
    __builtin_memcpy(flat, largest, sizeof flat);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane)
            flat[lane] = flat[lane] > flat[lane + half] ? flat[lane] : flat[lane + half];
    return flat[0];
}

// The mass of a chunk: exp((x - maximum) / temperature), summed. Meanwhile the chunk at `next` is fetched.
template <int W, class T>
DDTREE_INLINE float topk_mass(const float* values, std::int64_t groups, float maximum, float temperature,
                              const T* next) {
    using Lanes = CpuLanes<W>;
    using Float = typename Lanes::Float;
    using Int = typename Lanes::Int;
    const Float subtracted = splat<Float>(maximum), divisor = splat<Float>(temperature);
    if (temperature == 1.0f) {
        return Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            __builtin_prefetch(next + i);
            return exp_nonpositive<Float, Int>(read_vector<Float>(values + i) - subtracted);
        });
    }
    return Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
        return exp_nonpositive<Float, Int>((read_vector<Float>(values + i) - subtracted) / divisor);
    });
}

// By bisection, a value that at least k of the cell maxima reach, but not many more if that can be had; -inf if
// there are fewer than k.
template <int W>
DDTREE_INLINE float topk_floor(const float* maxima, std::int64_t cells, std::int64_t k, float maximum) {
    using Lanes = CpuLanes<W>;
    using Float = typename Lanes::Float;
    std::int64_t low = ordered_key(-std::numeric_limits<float>::infinity());
    std::int64_t high = static_cast<std::int64_t>(ordered_key(maximum)) + 1;
    while (high - low > 1) {
        const auto middle = static_cast<std::int32_t>((low + high) >> 1);
        const Float floor = splat<Float>(key_value(middle));
        const std::int64_t count = Lanes::count(cells / kLanes, [&](std::int64_t i) __attribute__((always_inline)) {
            return read_vector<Float>(maxima + i) >= floor;
        });
        (count < k ? high : low) = middle;
        if (count >= k && count <= k + k / 8) break;
    }
    return key_value(static_cast<std::int32_t>(low));
}

// Collects the keys of all elements that reach `floor`; returns their number.
template <int W, class T>
DDTREE_INLINE std::int64_t topk_collect(const T* row, std::int64_t size, const float* maxima, std::int64_t cells,
                                        float floor, std::uint64_t* keys) {
    std::int64_t count = 0;
    for (std::int64_t first = 0; first < cells; first += W) {
        std::uint32_t bits = reaching<W>(read_vector<typename Vectors<W>::Float>(maxima + first), floor);
        for (; bits != 0; bits &= bits - 1) {
            const std::int64_t cell = first + std::countr_zero(bits);
            const std::int64_t top = cell / kLanes * kLanes * kCellHeight + cell % kLanes;
            for (std::int64_t id = top; id < top + kCellHeight * kLanes && id < size; id += kLanes) {
                const float value = topk_read<W>(row + id);
                keys[count] = topk_key(value, id);
                count += value >= floor;
            }
        }
    }
    return count;
}

}  // namespace detail

// `maxima` has room for kCells floats for each chunk of the row, `keys` for size + 1.
template <int W, class T>
DDTREE_INLINE TopkRow topk_row(const T* row, std::int64_t size, std::int64_t k, double temperature, float* maxima,
                               std::uint64_t* keys) {
    using Int = typename Vectors<W>::Int;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    alignas(64) float scratch[kChunk];
    Int finite[kLanes / W];
    for (Int& lanes : finite) lanes = Int{} - 1;

    TopkRow result = {false, -kInfinity, 0.0, 0};
    for (std::int64_t first = 0; first < size; first += kChunk) {
        const int length = static_cast<int>(size - first < kChunk ? size - first : kChunk);
        const float* const values = detail::topk_values<W>(row + first, length, scratch);
        const std::int64_t groups = padded(length) / kLanes;
        const float maximum = detail::topk_maxima<W>(values, groups, maxima + first / kCellHeight, finite);
        if (maximum > result.maximum) {
            const double lower = static_cast<double>(result.maximum) - maximum;
            if (result.mass > 0.0) result.mass *= std::exp(lower / temperature);
            result.maximum = maximum;
        }
        if (result.maximum > -kInfinity)
            result.mass += detail::topk_mass<W>(values, groups, result.maximum, static_cast<float>(temperature),
                                                row + first + kChunk);
    }
    Int all_finite = finite[0];
    for (const Int& lanes : finite) all_finite &= lanes;
    for (int lane = 0; lane < W; ++lane) {
        if (all_finite[lane] == 0) return result;
    }
    result.sound = result.mass > 0.0;
    if (!result.sound) return result;
    const std::int64_t cells = chunks_of(size) * kCells;
    const float floor = detail::topk_floor<W>(maxima, cells, k, result.maximum);
    result.count = detail::topk_collect<W>(row, size, maxima, cells, floor, keys);
    return result;
}

}  // namespace ddtree
