// What a test of the standalone program is made of. A test draws one random case, runs it on the
// serial executor and on threads, and expects equal results; the program repeats it.
//
// To add tests: write a header with a function that returns them (see tree_tests.h) and append its
// result in `all_tests` of executors.cpp.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "warps_block.h"

class Harness {
   public:
    static constexpr int kMostWorkers = 256;

    // workers 0: 2 to 5, drawn anew for each run; else 32, 64, ... in warps.
    Harness(std::uint64_t seed, int workers, int skipped_site)
        : random_(seed), workers_(workers), skipped_site_(skipped_site) {}

    // Uniform integer in [low, high].
    int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
    // Uniform in [0, 1).
    double uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }
    bool chance(double probability) { return uniform() < probability; }

    // Runs `work(block)` on threads; a site may be skipped.
    template <class Work>
    void on_threads(Work work) {
        run_on_threads(workers_ == 0 ? integer(2, 5) : workers_, skipped_site_, work);
    }

    void expect(bool holds, const std::string& what) {
        if (holds) return;
        failed_ = true;
        std::printf("different: %s\n", what.c_str());
    }
    bool failed() const { return failed_; }

   private:
    std::mt19937_64 random_;
    int workers_;
    int skipped_site_;
    bool failed_ = false;
};

struct Test {
    const char* name;
    std::vector<int> sites;       // the sites it passes: skipping any of them must be noticed
    void (*run)(Harness&);
    std::vector<int> warp_sites = {};  // those that it passes on warps alone
};
