// The walk down a draft tree with the target's rows (the interface of EAGLE's and SGLang's
// tree_speculative_sampling_target_only): accept a path, then draw the bonus token from what is left.
//
// Rows are prepared by all workers; the few decisions are made by worker 0, in float64 and from the very numbers
// that are reported, so that whoever reads them can make them again.
#pragma once

#include <cstdint>

#include "ddtree/arithmetic.h"
#include "ddtree/retrieve.h"
#include "ddtree/sample_row.h"

namespace ddtree {

struct WalkTree {
    const std::int64_t* candidates;    // [nodes] token ids; the root's is not read
    const std::int64_t* next_token;    // [nodes] first child, -1: none
    const std::int64_t* next_sibling;  // [nodes] next sibling, -1: none
    int nodes;
    int depth;                         // most drafts that may be accepted
    bool tokens_checked;               // siblings with equal tokens are a fault
};

struct WalkCoins {
    const float* nodes;  // [nodes], null: all 0
    float final;
    double threshold_single;
    double threshold_acc;
};

// A child that was tried.
struct Tried {
    double prob;        // in the row of its parent
    double cumulative;  // with its earlier siblings
    float coin;
    std::int32_t node;
    std::int32_t accepted;
};

enum class BonusSource : std::int32_t { full_row = 0, residual = 1, argmax = 2, last_tried = 3 };

struct WalkVerdict {
    SampleFault fault;
    std::int32_t fault_node;
    std::int32_t accepted;  // drafts on the path
    std::int32_t tried;
    BonusSource bonus_source;
    std::int64_t bonus_token;
    double bonus_prob;        // in the whole row
    double bonus_cumulative;  // the running sum of what is left, at the bonus token
    double residual_mass;     // that running sum's own end
};

// What the other workers learn of worker 0's decisions at a node.
struct WalkMove {
    std::int32_t next;  // the node moved to, -1: none
    std::int32_t failed;
    std::int32_t rejected;  // a child was tried and none accepted: the row has lost mass
};

// Memory the workers share for one walk.
struct WalkScratch {
    RowScratch row;
    WalkVerdict* verdict;     // [1] worker 0's alone, as are the two below
    std::int32_t* path;       // [nodes] root first
    Tried* tried;             // [nodes]
    WalkMove* move;           // [1]
    std::int32_t* topology;   // [topology_scratch_words(nodes)]

    DDTREE_HD static DDTREE_INLINE WalkScratch over(Carver& carver, std::int64_t size, int nodes) {
        WalkScratch scratch;
        scratch.row = RowScratch::over(carver, size);
        scratch.verdict = carver.take<WalkVerdict>(1);
        scratch.path = carver.take<std::int32_t>(nodes);
        scratch.tried = carver.take<Tried>(nodes);
        scratch.move = carver.take<WalkMove>(1);
        scratch.topology = carver.take<std::int32_t>(topology_scratch_words(nodes));
        return scratch;
    }
};

namespace detail {

// Worker 0's part of the walk; the others keep out of it.
class Walker {
   public:
    DDTREE_HD DDTREE_INLINE Walker(const WalkTree& tree, const WalkCoins& coins, std::int64_t size,
                                   const WalkScratch& scratch)
        : tree_(tree), coins_(coins), size_(size), values_(scratch.row.values), scratch_(scratch) {}

    DDTREE_HD DDTREE_INLINE void begin() {
        *scratch_.verdict = {};
        scratch_.verdict->fault_node = -1;
        scratch_.verdict->bonus_token = -1;
        scratch_.path[0] = 0;
    }

    DDTREE_HD DDTREE_INLINE void fail(SampleFault fault, std::int64_t node) {
        scratch_.verdict->fault = fault;
        scratch_.verdict->fault_node = static_cast<std::int32_t>(node);
    }

    // Tries the children of `node`, whose masses stand in the scratch, and takes the mass from those that fail: a
    // token that was tried adds nothing when it comes again, and what is left is the row to draw from.
    DDTREE_HD DDTREE_INLINE void try_children(std::int32_t node, double norm) {
        WalkVerdict& verdict = *scratch_.verdict;
        WalkMove& move = *scratch_.move;
        move = {-1, false, false};
        if (verdict.accepted == tree_.depth) return;
        double cumulative = 0.0;
        const float coin = coins_.nodes == nullptr ? 0.0f : coins_.nodes[node];
        for (std::int64_t child = tree_.next_token[node]; child != -1; child = tree_.next_sibling[child]) {
            const std::int64_t token = tree_.candidates[child];
            if (token < 0 || token >= size_) {
                move.failed = true;
                return fail(SampleFault::bad_token, child);
            }
            const double prob = static_cast<double>(values_[token]) / norm;
            cumulative += prob;
            const bool accepted = accepts(prob, cumulative, static_cast<double>(coin));
            scratch_.tried[verdict.tried++] = {prob, cumulative, coin, static_cast<std::int32_t>(child), accepted};
            if (accepted) {
                scratch_.path[++verdict.accepted] = static_cast<std::int32_t>(child);
                move = {static_cast<std::int32_t>(child), false, false};
                return;
            }
            move.rejected = true;
            if (!(prob > 0.0)) continue;
            values_[token] = 0.0f;
            verdict.bonus_token = token;  // for now: it is what is drawn if no mass is left at all
            verdict.bonus_prob = prob;
        }
    }

    // Draws the bonus token from the masses in the scratch.
    DDTREE_HD DDTREE_INLINE void draw(double norm) {
        WalkVerdict& verdict = *scratch_.verdict;
        const float* const chunk_masses = scratch_.row.chunk_masses;
        const std::int64_t chunks = chunks_of(size_);
        double end = 0.0;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) end += static_cast<double>(chunk_masses[chunk]);
        verdict.residual_mass = end / norm;
        verdict.bonus_source = scratch_.move->rejected ? BonusSource::residual : BonusSource::full_row;
        if (!(end > 0.0)) {
            verdict.bonus_source = BonusSource::last_tried;
            return;
        }
        const double mark = static_cast<double>(coins_.final) * verdict.residual_mass;
        double running = 0.0;
        double before = 0.0;
        std::int64_t last = 0;  // the first chunk whose end is above the mark; if there is none, the last with mass
        for (std::int64_t chunk = 0; chunk < chunks && !(running / norm > mark); ++chunk) {
            if (!(chunk_masses[chunk] > 0.0f)) continue;
            last = chunk;
            before = running;
            running += static_cast<double>(chunk_masses[chunk]);
        }
        draw_in_chunk(last, before, norm, mark);
    }

   private:
    DDTREE_HD DDTREE_INLINE bool accepts(double prob, double cumulative, double coin) const {
        if (!(prob > 0.0)) return false;
        return coin < cumulative / coins_.threshold_acc || prob >= coins_.threshold_single;
    }

    // The first token of the chunk whose running sum is above the mark; if rounding leaves none, its last with mass.
    DDTREE_HD DDTREE_INLINE void draw_in_chunk(std::int64_t chunk, double before, double norm, double mark) {
        WalkVerdict& verdict = *scratch_.verdict;
        const std::int64_t first = chunk * kChunk;
        const std::int64_t end = size_ < first + kChunk ? size_ : first + kChunk;
        double running = before;
        for (std::int64_t token = first; token < end; ++token) {
            const auto mass = static_cast<double>(values_[token]);
            if (!(mass > 0.0)) continue;
            running += mass;
            verdict.bonus_token = token;
            verdict.bonus_prob = mass / norm;
            verdict.bonus_cumulative = running / norm;
            if (verdict.bonus_cumulative > mark) return;
        }
        verdict.bonus_cumulative = (before + static_cast<double>(scratch_.row.chunk_masses[chunk])) / norm;
    }

    const WalkTree& tree_;
    const WalkCoins& coins_;
    const std::int64_t size_;
    float* const values_;
    const WalkScratch& scratch_;
};

}  // namespace detail

// Walks one tree over rows of `size` tokens. `masses(node)` makes the masses of a node's row in scratch.row, all
// workers together. The verdict, the path and the tries are left in the scratch, where worker 0 sees them.
template <class Block, class Masses>
DDTREE_HD void walk_tree(const Block& block, const WalkTree& tree, const WalkCoins& coins, std::int64_t size,
                         const WalkScratch& scratch, Masses masses) {
    detail::Walker walker(tree, coins, size, scratch);
    const bool first = block.rank() == 0;
    if (first) walker.begin();
    const std::int64_t fault = check_topology(block, tree.next_token, tree.next_sibling,
                                              tree.tokens_checked ? tree.candidates : nullptr, tree.nodes,
                                              scratch.topology);
    if (fault != kSoundTopology) {
        if (first) walker.fail(SampleFault::topology, fault / 8);
        return;
    }
    RowMasses row;
    for (std::int32_t node = 0; node >= 0; node = scratch.move->next) {
        row = masses(node);
        if (row.fault != SampleFault::none) {
            if (first) walker.fail(row.fault, node);
            return;
        }
        if (first) walker.try_children(node, row.norm);
        block.sync(kSiteTried);
        if (scratch.move->failed) return;
    }
    if (scratch.move->rejected)
        make_masses(block, size, scratch.row, [](auto mass) __attribute__((always_inline)) { return mass; });
    if (first) walker.draw(row.norm);
}

}  // namespace ddtree
