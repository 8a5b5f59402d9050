// A team of 32 workers, each of which holds one lane of a chunk: a warp of a GPU.
//
// `Warp` is what the device gives: static functions that all 32 workers call together.
//
//   int           lane()
//   void          sync(site)               what they wrote before is seen by all of them after
//   float         pairwise_sum(v)          lanes l and l + 16 added, then l and l + 8, ...: CpuLanes' order
//   float         highest(v, stride)       the largest among the lanes that are equal modulo stride
//   std::int32_t  sum(v)
//   std::uint32_t ballot(bool)             bit l: lane l's
#pragma once

#include <cstdint>
#include <limits>

#include "ddtree/arithmetic.h"

namespace ddtree {

// What can be read at once.
inline constexpr int kPackBytes = 16;

template <class T>
struct alignas(kPackBytes) Pack {
    static constexpr int kSize = kPackBytes / static_cast<int>(sizeof(T));
    T values[kSize];
};

template <class T>
DDTREE_HD DDTREE_INLINE bool is_packed(const T* from) {
    return reinterpret_cast<std::uintptr_t>(from) % kPackBytes == 0;
}

template <class Warp>
struct WarpLanes {
    using Vec = Vectors<1>;
    using Float = float;
    using Int = std::int32_t;
    static constexpr int kVectors = 1;
    static constexpr int kTrials = 7;

    template <class Block>
    DDTREE_HD static DDTREE_INLINE int team(const Block& block) {
        return block.rank() / kLanes;
    }
    template <class Block>
    DDTREE_HD static DDTREE_INLINE int teams(const Block& block) {
        return block.size() / kLanes;
    }
    DDTREE_HD static DDTREE_INLINE void meet(int site) { Warp::sync(site); }

    template <class T>
    DDTREE_HD static DDTREE_INLINE void put(T* to, T found) {
        if (Warp::lane() == 0) *to = found;
    }

    template <class Use>
    DDTREE_HD static DDTREE_INLINE void each(std::int64_t groups, Use use) {
        const int lane = Warp::lane();
        DDTREE_UNROLL(8)
        for (std::int64_t group = 0; group < groups; ++group) use(group * kLanes + lane, 0);
    }

    template <class Value>
    DDTREE_HD static DDTREE_INLINE float sum(std::int64_t groups, Value value) {
        float mine = 0.0f;
        each(groups, [&](std::int64_t i, int) __attribute__((always_inline)) { mine += value(i); });
        return Warp::pairwise_sum(mine);
    }

    template <class Hold>
    DDTREE_HD static DDTREE_INLINE std::int32_t count(std::int64_t groups, Hold hold) {
        std::int32_t mine = 0;
        each(groups, [&](std::int64_t i, int) __attribute__((always_inline)) { mine += hold(i) ? 1 : 0; });
        return mine;
    }

    DDTREE_HD static DDTREE_INLINE std::int32_t total(std::int32_t count) { return Warp::sum(count); }

    template <class Hold, class Use>
    DDTREE_HD static DDTREE_INLINE std::int32_t select(std::int64_t groups, Hold hold, Use use) {
        const std::uint32_t below = (std::uint32_t{1} << Warp::lane()) - 1;
        std::int32_t before = 0;
        each(groups, [&](std::int64_t i, int) __attribute__((always_inline)) {
            const bool holds = hold(i);
            const std::uint32_t bits = Warp::ballot(holds);
            if (holds) use(i, before + ones(bits & below));
            before += ones(bits);
        });
        return before;
    }

    DDTREE_HD static DDTREE_INLINE void move(const float* from, std::int64_t count, float* to) {
        for (std::int64_t i = Warp::lane(); i < count; i += kLanes) to[i] = from[i];
    }

    DDTREE_HD static DDTREE_INLINE void pad(float* values, std::int64_t count, float fill) {
        const std::int64_t place = count + Warp::lane();
        if (place < padded(count)) values[place] = fill;
    }

    DDTREE_HD static DDTREE_INLINE float highest(const float* maxima) {
        return Warp::highest(maxima[Warp::lane()], 1);
    }

    DDTREE_HD static DDTREE_INLINE float pairwise(const Float (&lanes)[kVectors]) {
        return Warp::pairwise_sum(lanes[0]);
    }

    DDTREE_HD static DDTREE_INLINE bool any(Int flags) { return Warp::ballot(flags != 0) != 0; }

    DDTREE_HD static DDTREE_INLINE Int numbers(std::int64_t i) { return static_cast<Int>(i); }

    // Whole chunks that begin where 16 bytes can be read at once are read so, others element by element; either way
    // the workers read what lies side by side.
    template <class T, class Flag>
    DDTREE_HD static DDTREE_INLINE float copy(const T* row, std::int64_t count, T fill, float* out, float* maxima,
                                              Int& flags, Flag flag) {
        if (count == kChunk && is_packed(row)) return copy_packs(row, out, maxima, flags, flag);
        float highest = -std::numeric_limits<float>::infinity();
        each((count + kLanes - 1) / kLanes, [&](std::int64_t i, int) __attribute__((always_inline)) {
            const float x = load<Vec>(i < count ? row + i : &fill);
            out[i] = x;
            highest = highest > x ? highest : x;
            flags |= flag(x);
        });
        if (maxima == nullptr) return 0.0f;
        maxima[Warp::lane()] = highest;
        return Warp::highest(highest, 1);
    }

   private:
    DDTREE_HD static DDTREE_INLINE std::int32_t ones(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
        return __popc(bits);
#else
        return __builtin_popcount(bits);
#endif
    }

    // A worker's packs hold the lanes from kSize * lane on, modulo 32.
    template <class T, class Flag>
    DDTREE_HD static DDTREE_INLINE float copy_packs(const T* row, float* out, float* maxima, Int& flags, Flag flag) {
        constexpr int kSize = Pack<T>::kSize;
        const int lane = Warp::lane();
        float highest[kSize];
        for (float& value : highest) value = -std::numeric_limits<float>::infinity();
        DDTREE_UNROLL(8)
        for (int i = lane * kSize; i < kChunk; i += kLanes * kSize) {
            const auto pack = *reinterpret_cast<const Pack<T>*>(row + i);
            Pack<float> floats;
            for (int at = 0; at < kSize; ++at) {
                const float x = load<Vec>(pack.values + at);
                floats.values[at % Pack<float>::kSize] = x;
                highest[at] = highest[at] > x ? highest[at] : x;
                flags |= flag(x);
                if (at % Pack<float>::kSize == Pack<float>::kSize - 1)
                    *reinterpret_cast<Pack<float>*>(out + i + at - at % Pack<float>::kSize) = floats;
            }
        }
        if (maxima == nullptr) return 0.0f;
        float best = -std::numeric_limits<float>::infinity();
        for (int at = 0; at < kSize; ++at) {
            const float value = Warp::highest(highest[at], kLanes / kSize);
            if (lane < kLanes / kSize) maxima[lane * kSize + at] = value;
            best = best > value ? best : value;
        }
        return Warp::highest(best, 1);
    }
};

}  // namespace ddtree
