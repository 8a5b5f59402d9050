// The block executor: what an algorithm may ask of the workers that run it.
//
// Every algorithm of this directory is a function template over a `Block`: size() workers
// run the same function on the same arguments and share the memory that they are handed.
// A Block offers
//
//   int  rank(), size()            which worker this is, and of how many
//   void sync(int site)            a barrier; `site` is the number of this call (below)
//   T    reduce(T v, Op op, site)  op over every worker's v, handed to all of them; op is exact,
//                                  associative and commutative (max, min, integer sums, the better
//                                  of two candidates), so the order does not matter
//   int  scan(int v, int* total, site)  exclusive prefix sum of v by rank, and the sum of all
//   Block first_team()             for work that few do better than many: an executor of the workers
//                                  below rank kTeam (only they may call it); all of them in a small block
//
// reduce and scan synchronise: what was written to shared memory before them is seen after.
// Every worker makes the same calls in the same order: what decides whether one is made must be
// equal for all of them. Floating-point sums do not go through reduce: see arithmetic.h for the
// one order they have.
//
// Sites are numbered once for the whole project, in the enum below. A test executor can skip one;
// the ThreadSanitizer run must then report a race, or the result must differ. That is how it is
// shown that each is needed.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DDTREE_HD __host__ __device__
#else
#define DDTREE_HD
#endif

namespace ddtree {

enum Site : int {
    kNoSite = 0,
    // tree.h: 1..19
    kSiteRowsChecked = 1,
    kSiteTreePick = 2,
    kSiteTreeTaken = 3,
    kSiteTreeWritten = 4,
    // retrieve.h: 20..29
    kSiteTopologyRange = 20,
    kSiteTopologyPredecessors = 21,
    kSiteTopologyJump = 22,
    kSiteTopologyReached = 23,
    kSiteSiblingTokens = 24,
    kSiteSiblingVerdict = 25,
    kSiteTopologyPointed = 26,
    // sample_*.h: 30..59
    kSiteRowLook = 30,
    kSiteProbsFault = 31,
    kSiteChunkMasses = 32,
    kSiteLikeliest = 33,
    kSitePicked = 34,
    kSiteWeighed = 35,
    kSiteSampled = 36,
    kSiteSampleSorted = 37,
    kSiteNucleusEqual = 38,
    kSiteGathered = 39,
    kSiteTried = 40,
    kSiteMassesLeft = 41,
    kSiteWalked = 42,
    kSiteVariation = 50,
    // within a team of workers: 60..69
    kSiteLogitsCopied = 60,
    kSiteProbsCopied = 61,
    kSiteOneHot = 62,
};

struct Minimum {
    template <class T>
    DDTREE_HD T operator()(T a, T b) const {
        return b < a ? b : a;
    }
};

struct Maximum {
    template <class T>
    DDTREE_HD T operator()(T a, T b) const {
        return a < b ? b : a;
    }
};

struct Sum {
    template <class T>
    DDTREE_HD T operator()(T a, T b) const {
        return a + b;
    }
};

// Workers that can exchange values without a barrier of the whole block: a warp.
inline constexpr int kTeam = 32;

// One worker: every primitive is the identity.
struct SerialBlock {
    DDTREE_HD constexpr int rank() const { return 0; }
    DDTREE_HD constexpr int size() const { return 1; }
    DDTREE_HD void sync(int) const {}
    template <class T, class Op>
    DDTREE_HD T reduce(T value, Op, int) const {
        return value;
    }
    DDTREE_HD int scan(int value, int* total, int) const {
        *total = value;
        return 0;
    }
    DDTREE_HD SerialBlock first_team() const { return {}; }
};

// A write that other workers may make at the same time to the same place: one of them stands.
DDTREE_HD inline void write_raced(std::int32_t* to, std::int32_t value) {
#if defined(__CUDA_ARCH__)
    *static_cast<volatile std::int32_t*>(to) = value;
#else
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
#endif
}

// Of numbered work, worker w owns the numbers w, w + size, w + 2 * size, ...
template <class Block>
DDTREE_HD bool owns(const Block& block, std::int64_t number) {
    return static_cast<std::uint32_t>(number) % static_cast<std::uint32_t>(block.size()) ==
           static_cast<std::uint32_t>(block.rank());
}

}  // namespace ddtree
