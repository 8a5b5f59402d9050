// The block executor: what an algorithm may ask of the workers that run it.
//
// Every algorithm of this directory is a function template over a `Block`: size() workers
// run the same function on the same arguments and share the memory that they are handed.
// A Block offers
//
//   int  rank(), size()            which worker this is, and of how many
//   void sync(int site)            a barrier; `site` is the number of this call (below)
//   T    reduce(T v, Op op, site)  op over every worker's v, handed to all of them; op is exact
//                                  (max, min, integer sums), so the order does not matter
//   int  scan(int v, int* total, site)  exclusive prefix sum of v by rank, and the sum of all
//
// reduce and scan synchronise: what was written to shared memory before them is seen after.
// Floating-point sums do not go through reduce: see arithmetic.h for the one order they have.
//
// Sites are numbered once for the whole project, in the enum below. A test executor can skip one;
// the ThreadSanitizer run must then report a race. That is how it is shown that each is needed.
#pragma once

#if defined(__CUDACC__)
#define DDTREE_HD __host__ __device__
#else
#define DDTREE_HD
#endif

namespace ddtree {

enum Site : int {
    // tree.h: 1..19, retrieve.h: 20..29, sample.h: 30..59, topk.h: 60..69
    kNoSite = 0,
};

// One worker: every primitive is the identity.
struct SerialBlock {
    int rank() const { return 0; }
    int size() const { return 1; }
    void sync(int) const {}
    template <class T, class Op>
    T reduce(T value, Op, int) const {
        return value;
    }
    int scan(int value, int* total, int) const {
        *total = value;
        return 0;
    }
};

}  // namespace ddtree
