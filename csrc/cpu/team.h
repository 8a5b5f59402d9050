// A few threads that work on one pass together and meet often.
//
// The caller is worker 0. Between passes the others sleep; while one runs, whoever arrives first at a meeting
// waits by looking: a pass meets 150 times, and falling asleep costs more than most of its parts.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ddtree::cpu {

class Team {
   public:
    ~Team();

    // Runs work(worker) on `size` workers and returns when all have. One caller at a time.
    void run(int size, const std::function<void(int)>& work);

    // Inside work: waits until all workers are here.
    void meet();

   private:
    void serve(int worker, unsigned seen);  // seen: passes begun before this thread
    void dismiss();

    std::vector<std::thread> threads_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<unsigned> called_{0};   // passes begun, dismissals counted too
    std::atomic<unsigned> met_{0};      // meetings over
    std::atomic<int> arrived_{0};       // at the meeting that is on
    std::atomic<bool> closing_{false};
    int size_ = 1;
};

}  // namespace ddtree::cpu
