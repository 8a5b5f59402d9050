// The CUDA executor: a thread block of kThreads threads, its reductions and scans from CUB, its teams warps.
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <cstddef>
#include <cstdint>

#include "ddtree/executor.h"
#include "ddtree/tree.h"
#include "ddtree/warp.h"

namespace ddtree::cuda {

inline constexpr std::uint32_t kWholeWarp = 0xffffffffu;

// What a warp gives to WarpLanes.
struct Warp {
    __device__ static DDTREE_INLINE int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
    __device__ static DDTREE_INLINE void sync(int) { __syncwarp(); }
    __device__ static DDTREE_INLINE float pairwise_sum(float value) {
        for (int half = kLanes / 2; half > 0; half /= 2) value += __shfl_down_sync(kWholeWarp, value, half);
        return __shfl_sync(kWholeWarp, value, 0);
    }
    __device__ static DDTREE_INLINE float highest(float value, int stride) {
        for (int step = stride; step < kLanes; step *= 2) {
            const float other = __shfl_xor_sync(kWholeWarp, value, step);
            value = value > other ? value : other;
        }
        return value;
    }
    __device__ static DDTREE_INLINE std::int32_t sum(std::int32_t value) {
        return static_cast<std::int32_t>(__reduce_add_sync(kWholeWarp, static_cast<unsigned>(value)));
    }
    __device__ static DDTREE_INLINE std::uint32_t ballot(bool value) { return __ballot_sync(kWholeWarp, value); }
};

// The first warp of a block as an executor of its own: what picks the nodes of a tree.
class WarpBlock {
   public:
    __device__ DDTREE_INLINE int rank() const { return Warp::lane(); }
    __device__ DDTREE_INLINE int size() const { return kTeam; }
    __device__ DDTREE_INLINE void sync(int) const { __syncwarp(); }

    // The first of the lanes' candidates. The two halves of its cost are found by the warp's own minimum; only
    // candidates of equal cost are compared by their paths.
    __device__ DDTREE_INLINE Candidate reduce(const Candidate& mine, ComesFirst order, int) const {
        __syncwarp();  // what follows exchanges registers and says nothing of memory
        const auto high = static_cast<std::uint32_t>(mine.cost >> 32), low = static_cast<std::uint32_t>(mine.cost);
        const std::uint32_t best_high = __reduce_min_sync(kWholeWarp, high);
        const std::uint32_t best_low = __reduce_min_sync(kWholeWarp, high == best_high ? low : ~std::uint32_t{0});
        std::uint32_t equal = __ballot_sync(kWholeWarp, high == best_high && low == best_low);
        Candidate best = of_lane(mine, __ffs(equal) - 1);
        while ((equal &= equal - 1) != 0) best = order(best, of_lane(mine, __ffs(equal) - 1));
        return best;
    }

   private:
    __device__ static DDTREE_INLINE Candidate of_lane(const Candidate& mine, int lane) {
        return {__shfl_sync(kWholeWarp, mine.cost, lane), __shfl_sync(kWholeWarp, mine.place, lane)};
    }
};

template <int kThreads>
class ThreadBlock {
   public:
    static_assert(kThreads % kLanes == 0 && kThreads <= 1024);
    using Lanes = WarpLanes<Warp>;

    // What its threads share to reduce and scan.
    struct Shared {
        alignas(16) std::byte storage[512];
        alignas(16) std::byte result[32];
    };

    __device__ DDTREE_INLINE explicit ThreadBlock(Shared& shared) : shared_(shared) {}

    __device__ DDTREE_INLINE int rank() const { return static_cast<int>(threadIdx.x); }
    __device__ DDTREE_INLINE int size() const { return kThreads; }
    __device__ DDTREE_INLINE void sync(int) const { __syncthreads(); }
    __device__ DDTREE_INLINE WarpBlock first_team() const { return {}; }

    template <class T, class Op>
    __device__ T reduce(const T& value, Op op, int) const {
        using Reduce = cub::BlockReduce<T, kThreads>;
        static_assert(sizeof(typename Reduce::TempStorage) <= sizeof(Shared::storage) &&
                      sizeof(T) <= sizeof(Shared::result));
        auto& storage = *reinterpret_cast<typename Reduce::TempStorage*>(shared_.storage);
        auto& result = *reinterpret_cast<T*>(shared_.result);
        const T reduced = Reduce(storage).Reduce(value, op);
        if (threadIdx.x == 0) result = reduced;
        __syncthreads();
        const T found = result;
        __syncthreads();  // before either is written again
        return found;
    }

    __device__ int scan(int value, int* total, int) const {
        using Scan = cub::BlockScan<int, kThreads>;
        static_assert(sizeof(typename Scan::TempStorage) <= sizeof(Shared::storage));
        auto& storage = *reinterpret_cast<typename Scan::TempStorage*>(shared_.storage);
        int before;
        Scan(storage).ExclusiveSum(value, before, *total);
        __syncthreads();
        return before;
    }

   private:
    Shared& shared_;
};

}  // namespace ddtree::cuda
