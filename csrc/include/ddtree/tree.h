// The best-first draft tree over candidate rows (DDTree, arXiv 2604.12989), on a block executor.
//
// A node's log-weight is its parent's plus its own log-probability, in float64. The node with the highest
// log-weight comes next; among equal ones that with the lexicographically smaller path of ranks.
//
// Every node (and the root) offers its best child that is not in the tree yet. Since neither a child nor a
// later sibling can come before its parent or its earlier sibling, the best of these offers is the best of all
// nodes. Worker w keeps the offers of the nodes w, w + size, w + 2 * size, ... in a binary heap of its own, and
// one reduction over the heaps' tops picks the next node: a single worker has the classic heap, many workers
// have short ones. The first team picks; all workers check the rows and write what is known of the nodes.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "ddtree/executor.h"
#include "ddtree/rows.h"

namespace ddtree {

// A child on offer, and, once it is taken, a node. Its cost, minus the log-weight, is never negative, so the bits
// of costs compare as the costs do. Parent and entry share a word.
struct Candidate {
    std::uint64_t cost;
    std::int64_t place;

    // No candidate: comes after all others.
    DDTREE_HD static Candidate none() { return {~std::uint64_t{0}, -1}; }
    DDTREE_HD static Candidate of(double cost, int parent, int entry) {
        return {std::bit_cast<std::uint64_t>(cost), static_cast<std::int64_t>(parent) << 32 | entry};
    }
    DDTREE_HD double log_weight() const { return 0.0 - std::bit_cast<double>(cost); }
    DDTREE_HD int parent() const { return static_cast<int>(place >> 32); }
    DDTREE_HD int entry() const { return static_cast<int>(place); }
    DDTREE_HD bool exists() const { return place >= 0; }
};

// Node i stands at index i, the root at 0; entries past num_nodes are padding.
struct TreeArrays {
    static constexpr int kFields = 6;

    std::int64_t* status;  // [2]: num_nodes, and 0 or the rows' fault, packed
    std::int64_t* token_ids;
    std::int64_t* depths;
    std::int64_t* parents;
    std::int64_t* ranks;
    std::int64_t* rows;
    double* log_weights;

    // In a buffer of kFields * (budget + 1) words.
    DDTREE_HD static TreeArrays over(std::int64_t* buffer, int budget, std::int64_t* status) {
        const std::int64_t length = static_cast<std::int64_t>(budget) + 1;
        return {status,
                buffer,
                buffer + length,
                buffer + 2 * length,
                buffer + 3 * length,
                buffer + 4 * length,
                reinterpret_cast<double*>(buffer + 5 * length)};
    }
};

// Memory the workers share; its contents need not be initialised.
struct TreeScratch {
    Candidate* nodes;           // [budget + 1]
    std::int32_t* next_rows;    // [budget + 1], the row of a node's children, -1: none
    std::uint64_t* heap_costs;  // [budget + 1 + 2 * size], size: of the first team
    std::int64_t* heap_places;  // as many
    std::int32_t* count;        // [1]
    RowsScratch rows;
};

// ---- which of two candidates comes first ----

// Of two paths that differ, whether a's ranks are lexicographically smaller. Neither may be a prefix of the
// other. Ancestors have smaller numbers, so climbing from the larger number meets at the fork.
DDTREE_HD inline bool path_before(std::int64_t a, std::int64_t b, const Candidate* nodes) {
    const auto parent = [](std::int64_t place) { return static_cast<int>(place >> 32); };
    while (parent(a) != parent(b)) {
        if (parent(a) > parent(b))
            a = nodes[parent(a)].place;
        else
            b = nodes[parent(b)].place;
    }
    return a < b;  // siblings: entries of one row
}

struct ComesFirst {
    const Candidate* nodes;

    DDTREE_HD bool before(const Candidate& a, const Candidate& b) const {
        if (a.cost == b.cost) [[unlikely]]
            return path_before(a.place, b.place, nodes);
        return a.cost < b.cost;
    }
    // As a reduction.
    DDTREE_HD Candidate operator()(const Candidate& a, const Candidate& b) const {
        if (!a.exists()) return b;
        if (!b.exists()) return a;
        return before(b, a) ? b : a;
    }
};

// A worker's offers as a binary heap, the first on top. What stands behind the last is none, so that both
// children of a slot may be compared even if there is only one.
class Frontier {
   public:
    DDTREE_HD Frontier(std::uint64_t* costs, std::int64_t* places, ComesFirst order)
        : costs_(costs), places_(places), order_(order) {
        set(0, Candidate::none());
    }

    DDTREE_HD Candidate top() const { return at(0); }

    DDTREE_HD void push(const Candidate& offer) {
        int hole = count_++;
        for (; hole > 0; hole = (hole - 1) / 2) {
            const Candidate above = at((hole - 1) / 2);
            if (!order_.before(offer, above)) break;
            set(hole, above);
        }
        set(hole, offer);
        set(count_, Candidate::none());
    }

    DDTREE_HD void replace_top(const Candidate& offer) {
        int hole = 0;
        for (int child = 1; child < count_; child = 2 * hole + 1) {
            child += order_.before(at(child + 1), at(child));
            if (!order_.before(at(child), offer)) break;
            set(hole, at(child));
            hole = child;
        }
        set(hole, offer);
    }

    DDTREE_HD void pop() {
        const Candidate last = at(--count_);
        set(count_, Candidate::none());
        if (count_ > 0) replace_top(last);
    }

   private:
    DDTREE_HD Candidate at(int slot) const { return {costs_[slot], places_[slot]}; }
    DDTREE_HD void set(int slot, const Candidate& candidate) {
        costs_[slot] = candidate.cost;
        places_[slot] = candidate.place;
    }

    std::uint64_t* costs_;
    std::int64_t* places_;
    ComesFirst order_;
    int count_ = 0;
};

// ---- the build ----

// The candidate `entry` under `parent`, if its log-weight is above -inf.
template <class T>
DDTREE_HD Candidate offer(const CandidateRows<T> in, int parent, double parent_cost, int entry) {
    const double cost = parent_cost - in.log_prob(entry);
    if (cost == std::numeric_limits<double>::infinity()) return Candidate::none();
    return Candidate::of(cost, parent, entry);
}

// Takes up to `budget` nodes into scratch.nodes, out.depths, out.rows and out.ranks; returns their number, to every
// worker. What is written of a node comes from the worker that owns its number.
template <class Block, class T>
DDTREE_HD int take_best(const Block& block, const CandidateRows<T> in, int budget, const TreeScratch scratch,
                        const TreeArrays out) {
    Candidate* const nodes = scratch.nodes;
    std::int32_t* const next_rows = scratch.next_rows;
    const int heap_length = (budget + block.size()) / block.size() + 1;  // ceil((budget + 1) / size), and the end
    const std::int64_t heap = static_cast<std::int64_t>(block.rank()) * heap_length;
    Frontier frontier(scratch.heap_costs + heap, scratch.heap_places + heap, ComesFirst{nodes});
    if (owns(block, 0)) {
        nodes[0] = {0, -1};
        out.depths[0] = 0;
        next_rows[0] = 0;
        const Candidate first = in.rows > 0 && in.ranks > 0 ? offer(in, 0, 0.0, 0) : Candidate::none();
        if (first.exists()) frontier.push(first);
    }
    int count = 0;
    while (count < budget) {
        const Candidate best = block.reduce(frontier.top(), ComesFirst{nodes}, kSiteTreePick);
        if (!best.exists()) break;
        ++count;
        const int parent = best.parent(), entry = best.entry();
        const int row = next_rows[parent];
        const int rank = entry - row * in.ranks;
        if (owns(block, parent)) {
            Candidate sibling = Candidate::none();
            if (rank + 1 < in.ranks) sibling = offer(in, parent, std::bit_cast<double>(nodes[parent].cost), entry + 1);
            if (sibling.exists())
                frontier.replace_top(sibling);
            else
                frontier.pop();
        }
        if (owns(block, count)) {
            nodes[count] = best;
            next_rows[count] = in.next_row(row, entry);
            out.depths[count] = out.depths[parent] + 1;
            out.rows[count] = row;
            out.ranks[count] = rank;
            const int first = next_rows[count] * in.ranks;
            Candidate child = Candidate::none();
            if (first >= 0) child = offer(in, count, std::bit_cast<double>(best.cost), first);
            if (child.exists()) frontier.push(child);
        }
    }
    return count;
}

// Builds the tree of at most `budget` nodes into `out`; if something is wrong with the rows, the root alone, and the
// status says what. Entries past num_nodes are 0, in parents, ranks and rows -1. Returns num_nodes, to every worker.
template <class Block, class T>
DDTREE_HD int build_tree(const Block& block, const CandidateRows<T>& in, int budget, const TreeScratch& scratch,
                         const TreeArrays& out) {
    const std::int64_t fault = first_rows_fault(block, in, scratch.rows);
    const bool sound = fault == kNoFault;
    if (block.rank() < kTeam) {
        const int taken = sound ? take_best(block.first_team(), in, budget, scratch, out) : 0;
        if (block.rank() == 0) {
            *scratch.count = taken;
            out.status[0] = taken;
            out.status[1] = sound ? 0 : fault;
        }
    }
    block.sync(kSiteTreeTaken);
    const int count = *scratch.count;
    if (owns(block, 0)) {
        out.token_ids[0] = out.depths[0] = 0;
        out.parents[0] = out.ranks[0] = out.rows[0] = -1;
        out.log_weights[0] = 0.0;
    }
    const int first = block.rank() > 0 ? block.rank() : block.size();
    for (int node = first; node <= count; node += block.size()) {
        const Candidate& taken = scratch.nodes[node];
        out.token_ids[node] = in.token_ids[taken.entry()];
        out.parents[node] = taken.parent();
        out.log_weights[node] = taken.log_weight();
    }
    for (int node = count + 1 + block.rank(); node <= budget; node += block.size()) {
        out.token_ids[node] = out.depths[node] = 0;
        out.parents[node] = out.ranks[node] = out.rows[node] = -1;
        out.log_weights[node] = 0.0;
    }
    return count;
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
