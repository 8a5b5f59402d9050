// The best-first draft tree over candidate rows (DDTree, arXiv 2604.12989), on a block executor.
//
// A row holds the likeliest tokens of one position, in descending log-probability; entry = row * ranks + rank
// names one of them, and child_rows[entry] the row its own children are taken from. A node's log-weight is its
// parent's plus its own log-probability, in float64. The node with the highest log-weight comes next; among
// equal ones that with the lexicographically smaller path of ranks.
//
// Every node (and the root) offers its best child that is not in the tree yet. Since neither a child nor a
// later sibling can come before its parent or its earlier sibling, the best of these offers is the best of all
// nodes. Worker w keeps the offers of the nodes w, w + size, w + 2 * size, ... in a binary heap of its own, and
// one reduction over the heaps' tops picks the next node: a single worker has the classic heap, many workers
// have short ones.
#pragma once

#include <cstdint>
#include <limits>

#include "ddtree/executor.h"

namespace ddtree {

enum class RowsFault : std::int64_t {
    none = 0,
    not_a_number = 1,
    plus_infinity = 2,
    above_zero = 3,
    not_descending = 4,
    negative_token = 5,
    token_twice = 6,
    bad_child_row = 7,
};

// Above this a log-probability is a fault; from 0 up to this it is rounding and counts as 0.
inline constexpr double kLogProbSlack = 1e-6;

template <class T>
struct CandidateRows {
    const T* log_probs;              // [rows, ranks], natural log, each row descending
    const std::int64_t* token_ids;   // [rows, ranks]
    const std::int64_t* child_rows;  // [rows, ranks], -1: no children; null: row r's children stand in row r + 1
    int rows;
    int ranks;

    DDTREE_HD int child_row(int entry) const {
        if (child_rows != nullptr) return static_cast<int>(child_rows[entry]);
        const int row = entry / ranks + 1;
        return row < rows ? row : -1;
    }
    DDTREE_HD double log_prob(int entry) const {
        const double value = static_cast<double>(log_probs[entry]);
        return value < 0.0 ? value : 0.0;
    }
};

// A child on offer, and, once it is taken, a node.
struct Candidate {
    double log_weight;
    std::int32_t parent;  // -1: no candidate at all
    std::int32_t entry;
};

inline constexpr Candidate kNoCandidate = {-std::numeric_limits<double>::infinity(), -1, -1};

// Node i stands at index i, the root at 0; entries past num_nodes are padding. All lie in one buffer.
struct TreeArrays {
    static constexpr int kHeader = 4;
    static constexpr int kFields = 6;

    std::int64_t* header;  // num_nodes, RowsFault, and where: row, column
    std::int64_t* token_ids;
    std::int64_t* depths;
    std::int64_t* parents;
    std::int64_t* ranks;
    std::int64_t* rows;
    double* log_weights;

    DDTREE_HD static std::int64_t words(int budget) { return kHeader + kFields * (static_cast<std::int64_t>(budget) + 1); }

    // In a buffer of that many words.
    DDTREE_HD static TreeArrays over(std::int64_t* buffer, int budget) {
        std::int64_t* fields = buffer + kHeader;
        const std::int64_t length = static_cast<std::int64_t>(budget) + 1;
        return {buffer,
                fields,
                fields + length,
                fields + 2 * length,
                fields + 3 * length,
                fields + 4 * length,
                reinterpret_cast<double*>(fields + 5 * length)};
    }
};

// Memory the workers share; its contents need not be initialised.
struct TreeScratch {
    Candidate* nodes;     // [budget + 1]
    Candidate* heaps;     // [budget + 1 + size]
    std::int32_t* heads;  // [buckets]
    std::int32_t* links;  // [rows * ranks]
    int bucket_bits;      // 2^bucket_bits buckets, at least `ranks` of them is fast
};

// ---- are the rows what they should be ----

// A fault and its place as one number: the smallest is the first in reading order.
inline constexpr std::int64_t kNoFault = std::numeric_limits<std::int64_t>::max();

DDTREE_HD inline std::int64_t pack_fault(int entry, RowsFault fault) {
    return static_cast<std::int64_t>(entry) * 8 + static_cast<std::int64_t>(fault);
}

template <class T>
DDTREE_HD RowsFault entry_fault(const CandidateRows<T>& in, int entry) {
    const T value = in.log_probs[entry];
    if (value != value) return RowsFault::not_a_number;
    if (value == std::numeric_limits<T>::infinity()) return RowsFault::plus_infinity;
    if (value > static_cast<T>(kLogProbSlack)) return RowsFault::above_zero;
    if (entry % in.ranks != 0 && in.log_prob(entry) > in.log_prob(entry - 1)) return RowsFault::not_descending;
    if (in.token_ids[entry] < 0 && value != -std::numeric_limits<T>::infinity()) return RowsFault::negative_token;
    if (in.child_rows != nullptr && (in.child_rows[entry] < -1 || in.child_rows[entry] >= in.rows))
        return RowsFault::bad_child_row;
    return RowsFault::none;
}

// Whether any of this worker's entries may be at fault: a branch-free look in loops that vectorise.
template <class Block, class T>
DDTREE_HD bool any_suspect(const Block& block, const CandidateRows<T>& in) {
    const int entries = in.rows * in.ranks;
    int sound = 1;
    for (int entry = block.rank(); entry < entries; entry += block.size())
        sound &= in.log_probs[entry] <= static_cast<T>(kLogProbSlack);
    for (int row = 0; row < in.rows; ++row) {
        const T* values = in.log_probs + static_cast<std::int64_t>(row) * in.ranks;
        for (int rank = block.rank(); rank < in.ranks - 1; rank += block.size()) sound &= values[rank + 1] <= values[rank];
    }
    std::uint64_t signs = 0;  // the highest bit: something was negative
    for (int entry = block.rank(); entry < entries; entry += block.size())
        signs |= static_cast<std::uint64_t>(in.token_ids[entry]);
    if (in.child_rows != nullptr) {
        const auto last = static_cast<std::uint64_t>(in.rows - 1);
        for (int entry = block.rank(); entry < entries; entry += block.size()) {
            const auto row = static_cast<std::uint64_t>(in.child_rows[entry]);
            signs |= (row + 1) | (last - row);
        }
    }
    return sound == 0 || signs >> 63 != 0;
}

template <class Block, class T>
DDTREE_HD std::int64_t first_entry_fault(const Block& block, const CandidateRows<T>& in) {
    if (!any_suspect(block, in)) return kNoFault;
    for (int entry = 0; entry < in.rows * in.ranks; ++entry) {  // others may look as well: they find the same
        const RowsFault fault = entry_fault(in, entry);
        if (fault != RowsFault::none) return pack_fault(entry, fault);
    }
    return kNoFault;
}

// The first token that stands twice in its row, among those whose bucket is this worker's. heads[b] is the
// last entry + 1 that fell into bucket b; entries of earlier rows are told by their number, so that nothing
// is cleared between rows. Entries of probability 0 are no candidates and do not count.
template <class Block, class T>
DDTREE_HD std::int64_t first_token_twice(const Block& block, const CandidateRows<T>& in, const TreeScratch& scratch) {
    for (int bucket = block.rank(); bucket < (1 << scratch.bucket_bits); bucket += block.size())
        scratch.heads[bucket] = 0;
    for (int row = 0; row < in.rows; ++row) {
        const int first = row * in.ranks;
        int end = first + in.ranks;
        while (end > first && in.log_probs[end - 1] == -std::numeric_limits<T>::infinity()) --end;
        for (int entry = first; entry < end; ++entry) {
            const std::int64_t token = in.token_ids[entry];
            const auto mixed = static_cast<std::uint64_t>(token) * 0x9E3779B97F4A7C15u;
            const auto bucket = static_cast<std::uint32_t>(mixed >> (64 - scratch.bucket_bits));
            if (bucket % static_cast<std::uint32_t>(block.size()) != static_cast<std::uint32_t>(block.rank())) continue;
            for (int seen = scratch.heads[bucket]; seen > first; seen = scratch.links[seen - 1]) {
                if (in.token_ids[seen - 1] == token) return pack_fault(entry, RowsFault::token_twice);
            }
            scratch.links[entry] = scratch.heads[bucket];
            scratch.heads[bucket] = entry + 1;
        }
    }
    return kNoFault;
}

// ---- which of two candidates comes first ----

// Of two paths that differ, whether a's ranks are lexicographically smaller. Neither may be a prefix of the
// other. Ancestors have smaller numbers, so climbing from the larger number meets at the fork.
DDTREE_HD inline bool path_before(const Candidate& a, const Candidate& b, const Candidate* nodes) {
    int from_a = a.parent, from_b = b.parent;
    int entry_a = a.entry, entry_b = b.entry;
    while (from_a != from_b) {
        if (from_a > from_b) {
            entry_a = nodes[from_a].entry;
            from_a = nodes[from_a].parent;
        } else {
            entry_b = nodes[from_b].entry;
            from_b = nodes[from_b].parent;
        }
    }
    return entry_a < entry_b;  // siblings: entries of one row
}

struct ComesFirst {
    const Candidate* nodes;

    DDTREE_HD bool before(const Candidate& a, const Candidate& b) const {
        if (a.log_weight != b.log_weight) return a.log_weight > b.log_weight;
        return path_before(a, b, nodes);
    }
    // As a reduction.
    DDTREE_HD Candidate operator()(const Candidate& a, const Candidate& b) const {
        if (a.parent < 0) return b;
        if (b.parent < 0) return a;
        return before(b, a) ? b : a;
    }
};

// A worker's offers, the first on top.
class Frontier {
   public:
    DDTREE_HD Frontier(Candidate* slots, ComesFirst order) : slots_(slots), order_(order) {}

    DDTREE_HD Candidate top() const { return count_ > 0 ? slots_[0] : kNoCandidate; }

    DDTREE_HD void push(const Candidate& offer) {
        int hole = count_++;
        while (hole > 0 && order_.before(offer, slots_[(hole - 1) / 2])) {
            slots_[hole] = slots_[(hole - 1) / 2];
            hole = (hole - 1) / 2;
        }
        slots_[hole] = offer;
    }

    DDTREE_HD void replace_top(const Candidate& offer) {
        int hole = 0;
        for (int child = 1; child < count_; child = 2 * hole + 1) {
            if (child + 1 < count_ && order_.before(slots_[child + 1], slots_[child])) ++child;
            if (!order_.before(slots_[child], offer)) break;
            slots_[hole] = slots_[child];
            hole = child;
        }
        slots_[hole] = offer;
    }

    DDTREE_HD void pop() {
        const Candidate last = slots_[--count_];
        if (count_ > 0) replace_top(last);
    }

   private:
    Candidate* slots_;
    ComesFirst order_;
    int count_ = 0;
};

// ---- the build ----

// The candidate of `entry` under `parent`, if its log-weight is above -inf.
template <class T>
DDTREE_HD Candidate offer(const CandidateRows<T>& in, int parent, double parent_log_weight, int entry) {
    const double log_weight = parent_log_weight + in.log_prob(entry);
    if (log_weight == -std::numeric_limits<double>::infinity()) return kNoCandidate;
    return {log_weight, parent, entry};
}

// Takes up to `budget` nodes into scratch.nodes and out.depths; returns their number, to every worker.
template <class Block, class T>
DDTREE_HD int take_best(const Block& block, const CandidateRows<T>& in, int budget, const TreeScratch& scratch,
                        std::int64_t* depths) {
    const auto is_mine = [&block](int node) {
        return static_cast<unsigned>(node) % static_cast<unsigned>(block.size()) == static_cast<unsigned>(block.rank());
    };
    Candidate* nodes = scratch.nodes;
    const int heap_length = (budget + block.size()) / block.size();  // ceil((budget + 1) / size)
    Frontier frontier(scratch.heaps + static_cast<std::int64_t>(block.rank()) * heap_length, ComesFirst{nodes});
    if (is_mine(0)) {
        nodes[0] = {0.0, -1, -1};
        depths[0] = 0;
        const Candidate first = in.rows > 0 && in.ranks > 0 ? offer(in, 0, 0.0, 0) : kNoCandidate;
        if (first.parent >= 0) frontier.push(first);
    }
    int count = 0;
    while (count < budget) {
        const Candidate best = block.reduce(frontier.top(), ComesFirst{nodes}, kSiteTreePick);
        if (best.parent < 0) break;
        ++count;
        if (is_mine(best.parent)) {
            Candidate sibling = kNoCandidate;
            if ((best.entry + 1) % in.ranks != 0)
                sibling = offer(in, best.parent, nodes[best.parent].log_weight, best.entry + 1);
            if (sibling.parent >= 0)
                frontier.replace_top(sibling);
            else
                frontier.pop();
        }
        if (is_mine(count)) {
            nodes[count] = best;
            depths[count] = depths[best.parent] + 1;
            const int row = in.child_row(best.entry);
            const Candidate child =
                row >= 0 ? offer(in, count, best.log_weight, row * in.ranks) : kNoCandidate;
            if (child.parent >= 0) frontier.push(child);
        }
    }
    return count;
}

// Builds the tree of at most `budget` nodes into `out`, or writes what is wrong with the rows to its header.
// Entries past num_nodes are 0, in parents, ranks and rows -1.
template <class Block, class T>
DDTREE_HD void build_tree(const Block& block, const CandidateRows<T>& in, int budget, const TreeScratch& scratch,
                          const TreeArrays& out) {
    const std::int64_t mine = Minimum{}(first_entry_fault(block, in), first_token_twice(block, in, scratch));
    const std::int64_t fault = block.reduce(mine, Minimum{}, kSiteRowsChecked);
    if (fault != kNoFault) {
        if (block.rank() != 0) return;
        out.header[0] = 0;
        out.header[1] = fault % 8;
        out.header[2] = fault / 8 / in.ranks;
        out.header[3] = fault / 8 % in.ranks;
        return;
    }
    const int count = take_best(block, in, budget, scratch, out.depths);
    for (int node = block.rank(); node <= budget; node += block.size()) {
        const bool taken = node > 0 && node <= count;
        const Candidate& from = scratch.nodes[node];
        out.token_ids[node] = taken ? in.token_ids[from.entry] : 0;
        out.parents[node] = taken ? from.parent : -1;
        out.ranks[node] = taken ? from.entry % in.ranks : -1;
        out.rows[node] = taken ? from.entry / in.ranks : -1;
        out.log_weights[node] = taken ? from.log_weight : 0.0;
        if (node > count) out.depths[node] = 0;
    }
    if (block.rank() == 0) {
        out.header[0] = count;
        out.header[1] = static_cast<std::int64_t>(RowsFault::none);
        out.header[2] = out.header[3] = -1;
    }
}

// Row i of out [length, length] marks what node i sees: its ancestors and itself; a row from `nodes` on is padding
// and sees the root and itself.
template <class Block>
DDTREE_HD void write_visibility(const Block& block, const std::int64_t* parents, int nodes, int length,
                                std::uint8_t* out) {
    for (int node = block.rank(); node < length; node += block.size()) {
        std::uint8_t* const row = out + static_cast<std::int64_t>(node) * length;
        for (int other = 0; other < length; ++other) row[other] = 0;
        row[0] = row[node] = 1;
        if (node >= nodes) continue;
        for (std::int64_t ancestor = parents[node]; ancestor > 0; ancestor = parents[ancestor]) row[ancestor] = 1;
    }
}

}  // namespace ddtree
