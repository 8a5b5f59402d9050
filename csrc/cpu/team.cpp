#include "cpu/team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddtree::cpu {

namespace {

// Looks until the number changes; gives the core away now and then, for whoever may need it to change the number.
void look_for_change(const std::atomic<unsigned>& number, unsigned seen) {
    for (unsigned looked = 1; number.load(std::memory_order_acquire) == seen; ++looked) {
#if defined(__x86_64__)
        _mm_pause();
#endif
        if (looked % 256 == 0) std::this_thread::yield();
    }
}

constexpr unsigned kLooksBeforeSleep = 2048;

}  // namespace

Team::~Team() { dismiss(); }

void Team::dismiss() {
    closing_.store(true);
    called_.fetch_add(1, std::memory_order_release);
    called_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    closing_.store(false);
}

void Team::run(int size, const std::function<void(int)>& work) {
    if (size != size_) {
        dismiss();
        size_ = size;
    }
    if (size == 1) return work(0);
    work_ = &work;
    while (static_cast<int>(threads_.size()) < size - 1) {
        const int worker = static_cast<int>(threads_.size()) + 1;
        threads_.emplace_back([this, worker, seen = called_.load()] { serve(worker, seen); });
    }
    called_.fetch_add(1, std::memory_order_release);
    called_.notify_all();
    work(0);
    meet();
}

void Team::meet() {
    if (size_ == 1) return;
    const unsigned meeting = met_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        met_.store(meeting + 1, std::memory_order_release);
        return;
    }
    look_for_change(met_, meeting);
}

void Team::serve(int worker, unsigned seen) {
    for (;;) {
        for (unsigned looked = 0; called_.load(std::memory_order_acquire) == seen && looked < kLooksBeforeSleep; ++looked) {
#if defined(__x86_64__)
            _mm_pause();
#endif
        }
        called_.wait(seen, std::memory_order_acquire);
        seen = called_.load(std::memory_order_acquire);
        if (closing_.load()) return;
        (*work_)(worker);
        meet();
    }
}

}  // namespace ddtree::cpu
