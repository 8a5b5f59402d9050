// Threads whose teams are warps: what runs the code of csrc/include/ddtree/warp.h without a GPU.
//
// As on a GPU, workers of a warp exchange registers without ordering what they write to memory: only Warp::sync does,
// and the sanitizer sees where it is missing.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>

#include "ddtree/warp.h"
#include "threads_block.h"

// What a warp's 32 threads share.
class WarpOfThreads {
   public:
    static constexpr int kLanes = ddtree::kLanes;

    WarpOfThreads() { pthread_barrier_init(&barrier_, nullptr, kLanes); }
    ~WarpOfThreads() { pthread_barrier_destroy(&barrier_); }
    WarpOfThreads(const WarpOfThreads&) = delete;
    WarpOfThreads& operator=(const WarpOfThreads&) = delete;

    void wait() { pthread_barrier_wait(&barrier_); }

    // Every lane's 32 bits to every lane. A slot holds its round's number beside them; two sets of slots in turn,
    // because a lane may enter the next round while others still read this one.
    void exchange(int lane, std::uint32_t round, std::uint32_t mine, std::uint32_t (&all)[kLanes]) {
        auto& slots = slots_[round % 2];
        slots[lane].store(std::uint64_t{round} << 32 | mine, std::memory_order_relaxed);
        for (int other = 0; other < kLanes; ++other) {
            std::uint64_t seen;
            while ((seen = slots[other].load(std::memory_order_relaxed)) >> 32 != round) sched_yield();
            all[other] = static_cast<std::uint32_t>(seen);
        }
    }

   private:
    pthread_barrier_t barrier_;
    std::atomic<std::uint64_t> slots_[2][kLanes] = {};
};

// The thread's own place; set before it works.
struct PlaceInWarp {
    WarpOfThreads* warp = nullptr;
    int lane = 0;
    int skipped_site = 0;
    std::uint32_t round = 0;
};
inline thread_local PlaceInWarp place_in_warp;

struct ThreadsWarp {
    static int lane() { return place_in_warp.lane; }
    static void sync(int site) {
        if (site != place_in_warp.skipped_site) place_in_warp.warp->wait();
    }
    static float pairwise_sum(float value) {
        float lanes[ddtree::kLanes];
        exchange(value, lanes);
        for (int half = ddtree::kLanes / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
        return lanes[0];
    }
    static float highest(float value, int stride) {
        float lanes[ddtree::kLanes];
        exchange(value, lanes);
        for (int other = lane() % stride; other < ddtree::kLanes; other += stride)
            value = value > lanes[other] ? value : lanes[other];
        return value;
    }
    static std::int32_t sum(std::int32_t value) {
        std::int32_t lanes[ddtree::kLanes], total = 0;
        exchange(value, lanes);
        for (const std::int32_t part : lanes) total += part;
        return total;
    }
    static std::uint32_t ballot(bool value) {
        std::uint32_t lanes[ddtree::kLanes], bits = 0;
        exchange(std::uint32_t{value}, lanes);
        for (int other = 0; other < ddtree::kLanes; ++other) bits |= lanes[other] << other;
        return bits;
    }

   private:
    template <class T>
    static void exchange(T mine, T (&all)[ddtree::kLanes]) {
        std::uint32_t bits[ddtree::kLanes];
        place_in_warp.warp->exchange(lane(), ++place_in_warp.round, std::bit_cast<std::uint32_t>(mine), bits);
        for (int other = 0; other < ddtree::kLanes; ++other) all[other] = std::bit_cast<T>(bits[other]);
    }
};

class WarpsBlock : public ThreadsBlock {
   public:
    using Lanes = ddtree::WarpLanes<ThreadsWarp>;
    using ThreadsBlock::ThreadsBlock;
};

// Runs `work(block)` on `workers` threads and waits for them: whole warps of 32, or fewer threads that are a team each.
template <class Work>
void run_on_threads(int workers, int skipped_site, Work work) {
    ThreadsBlock::Team team(workers, skipped_site);
    std::deque<WarpOfThreads> warps(workers / ddtree::kTeam);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < workers; ++rank)
        threads.emplace_back([&, rank] {
            if (warps.empty()) return work(ThreadsBlock(team, rank));
            place_in_warp = {&warps[rank / ddtree::kTeam], rank % ddtree::kTeam, skipped_site, 0};
            work(WarpsBlock(team, rank));
        });
    for (auto& thread : threads) thread.join();
}
