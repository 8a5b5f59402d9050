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
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

// ---- a worker's share of a chunk's lanes ----
//
// `LanesOf<Block>` is how a block's teams hold the 32 lanes of a chunk: Block::Lanes where a block brings its
// own (WarpLanes, warp.h), else CpuLanes. Algorithms see only what is public here. All workers of a team call the
// same functions in the same order; what is found is handed to all of them, but for count(), which is a worker's
// share.

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

    // Calls use(i, place) for the elements of a chunk that hold, in index order; place counts from 0. How many they are.
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
