// The test executor: N real threads with a barrier. One of its synchronisation sites can be skipped,
// to show that it is needed: a skipped sync does not wait, a skipped reduce or scan neither waits
// nor exchanges (each worker gets its own value).
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "ddtree/executor.h"

class ThreadsBlock {
   public:
    static constexpr std::size_t kSlotBytes = 64;

    // What the workers share.
    struct Team {
        Team(int workers, int skipped_site) : workers(workers), skipped_site(skipped_site), slots(workers) {
            pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(workers));
            if (workers > ddtree::kTeam) first = std::make_unique<Team>(ddtree::kTeam, skipped_site);
        }
        ~Team() { pthread_barrier_destroy(&barrier); }
        Team(const Team&) = delete;
        Team& operator=(const Team&) = delete;

        struct alignas(64) Slot {
            std::byte bytes[kSlotBytes];
        };
        int workers;
        int skipped_site;
        pthread_barrier_t barrier;
        std::vector<Slot> slots;
        std::unique_ptr<Team> first;  // of the first workers, where these are many
    };

    ThreadsBlock(Team& team, int rank) : team_(&team), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return team_->workers; }
    ThreadsBlock first_team() const { return {team_->first ? *team_->first : *team_, rank_}; }

    void sync(int site) const {
        if (site != team_->skipped_site) wait();
    }

    template <class T, class Op>
    T reduce(T value, Op op, int site) const {
        if (site == team_->skipped_site) return value;
        publish(value);
        wait();
        T result = read<T>(0);
        for (int worker = 1; worker < size(); ++worker) result = op(result, read<T>(worker));
        wait();
        return result;
    }

    int scan(int value, int* total, int site) const {
        *total = value;
        if (site == team_->skipped_site) return 0;
        publish(value);
        wait();
        int before = 0;
        *total = 0;
        for (int worker = 0; worker < size(); ++worker) {
            if (worker == rank_) before = *total;
            *total += read<int>(worker);
        }
        wait();
        return before;
    }

   private:
    void wait() const { pthread_barrier_wait(&team_->barrier); }

    template <class T>
    void publish(const T& value) const {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kSlotBytes);
        std::memcpy(team_->slots[rank_].bytes, &value, sizeof(T));
    }

    template <class T>
    T read(int worker) const {
        T value;
        std::memcpy(&value, team_->slots[worker].bytes, sizeof(T));
        return value;
    }

    Team* team_;
    int rank_;
};
