// The one arithmetic of every device: how a row is read, how exp is taken, in which order masses add up.
//
// Integer outputs (tokens, paths) must agree between CUDA, every vector width of a CPU and any number of
// workers, so the floating-point numbers behind them must agree to the last bit:
//
//   * exp is one function, made of additions and multiplications alone; contraction is off.
//   * A row is cut into chunks of 1,024 elements. A chunk has 32 lanes; lane l adds up the elements l, l + 32,
//     l + 64, ... of its chunk in this order, then lanes l and l + 16, l + 8, ... are added pairwise, in float32.
//     Chunk masses are added in index order, in float64.
//
// A chunk is the work of one *team*: on a CPU one worker that holds all 32 lanes in vectors, on CUDA a warp
// that has a lane in each thread.
#pragma once

#include <bit>
#include <cstdint>

#include "ddtree/executor.h"

#define DDTREE_INLINE inline __attribute__((always_inline))

// In front of a loop whose loads should be under way together.
#if defined(__CUDACC__)
#define DDTREE_PRAGMA(text) _Pragma(#text)
#define DDTREE_UNROLL(times) DDTREE_PRAGMA(unroll times)
#else
#define DDTREE_UNROLL(times)
#endif

namespace ddtree {

inline constexpr int kLanes = 32;
inline constexpr int kChunk = 1024;

DDTREE_HD DDTREE_INLINE constexpr std::int64_t chunks_of(std::int64_t size) { return (size + kChunk - 1) / kChunk; }

// The masses of `chunks` chunks in index order.
DDTREE_HD DDTREE_INLINE double sum_of_chunks(const float* masses, std::int64_t chunks) {
    double total = 0.0;
    DDTREE_UNROLL(8)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += static_cast<double>(masses[chunk]);
    return total;
}

// Rows in scratch are padded to whole groups of 32 lanes with elements that change nothing.
DDTREE_HD DDTREE_INLINE constexpr std::int64_t padded(std::int64_t size) {
    return (size + kLanes - 1) / kLanes * kLanes;
}

// ---- element types of a row ----

struct BFloat16 {
    std::uint16_t bits;
};

struct Float16 {
    std::uint16_t bits;
};

// ---- vectors of W floats ----

// A block says how wide its vectors are by `static constexpr int kWidth`; 4 fits every CPU.
template <class Block>
DDTREE_HD constexpr int width_of() {
    if constexpr (requires { Block::kWidth; })
        return Block::kWidth;
    else
        return 4;
}

template <int W>
struct Vectors {
    static constexpr int kWidth = W;
    typedef float Float __attribute__((vector_size(W * sizeof(float))));
    typedef std::int32_t Int __attribute__((vector_size(W * sizeof(std::int32_t))));
    typedef std::uint16_t Short __attribute__((vector_size(W * sizeof(std::uint16_t))));
};

// A single lane: what a thread of a warp holds.
template <>
struct Vectors<1> {
    static constexpr int kWidth = 1;
    using Float = float;
    using Int = std::int32_t;
    using Short = std::uint16_t;
};

template <class V>
DDTREE_HD DDTREE_INLINE V read_vector(const void* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
}

template <class V>
DDTREE_HD DDTREE_INLINE void write_vector(void* to, const V& value) {
    __builtin_memcpy(to, &value, sizeof(V));
}

template <class V>
DDTREE_HD DDTREE_INLINE V splat(float value) {
    return V{} + value;
}

template <class Vec>
DDTREE_HD DDTREE_INLINE typename Vec::Int read_shorts(const void* from) {
    const auto shorts = read_vector<typename Vec::Short>(from);
    if constexpr (Vec::kWidth == 1)
        return shorts;
    else
        return __builtin_convertvector(shorts, typename Vec::Int);
}

template <class Vec>
DDTREE_HD DDTREE_INLINE typename Vec::Float load(const float* from) {
    return read_vector<typename Vec::Float>(from);
}

template <class Vec>
DDTREE_HD DDTREE_INLINE typename Vec::Float load(const BFloat16* from) {
    return std::bit_cast<typename Vec::Float>(read_shorts<Vec>(from) << 16);
}

template <class Vec>
DDTREE_HD DDTREE_INLINE typename Vec::Float load(const Float16* from) {
    using Float = typename Vec::Float;
    using Int = typename Vec::Int;
    const Int half = read_shorts<Vec>(from);
    const Int exponent = half & 0x7c00;
    const Int sign = (half & 0x8000) << 16;
    const Int shifted = (half & 0x7fff) << 13;
    const Int normal = shifted + (112 << 23);
    const Int special = shifted | 0x7f800000;
    // A subnormal half is mantissa * 2^-24: an exponent is put in front of it and taken off again.
    const Float subnormal =
        std::bit_cast<Float>(shifted + (113 << 23)) - std::bit_cast<Float>(Int{} + (113 << 23));
    const Int bits = exponent == 0 ? std::bit_cast<Int>(subnormal) : exponent == 0x7c00 ? special : normal;
    return std::bit_cast<Float>(bits | sign);
}

// A float as an integer that has the same order; -0 equals 0.
template <class Vec>
DDTREE_HD DDTREE_INLINE typename Vec::Int ordered_keys(typename Vec::Float value) {
    const auto bits = std::bit_cast<typename Vec::Int>(value + 0.0f);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

DDTREE_HD DDTREE_INLINE std::int32_t ordered_key(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

DDTREE_HD DDTREE_INLINE float key_value(std::int32_t key) {
    return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

// ---- exp ----

// exp(x) for x <= 0, within one unit in the last place; 0 where it would be subnormal (x < -87.33). Of a NaN
// or a positive x it gives nothing meaningful. x = n ln 2 + r, |r| <= ln(2) / 2; the polynomial is the
// minimax one of (exp(r) - 1 - r) / r^2.
template <class Float, class Int>
DDTREE_HD DDTREE_INLINE Float exp_nonpositive(Float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    const Float shifted = x * 1.44269504f + kRound;
    const Float n = shifted - kRound;
    const Float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Float p = r * 0x1.6a3ffcp-10f + 0x1.1239ecp-7f;
    p = p * r + 0x1.5558bep-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * r * r + r) + 1.0f;
    const Int scale = (std::bit_cast<Int>(shifted) << 23) + (127 << 23);
    return x < -87.33f ? Float{} : p * std::bit_cast<Float>(scale);
}

}  // namespace ddtree
