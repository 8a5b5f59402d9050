// The walk down a draft tree with the target's rows (the interface of EAGLE's and SGLang's
// tree_speculative_sampling_target_only): accept a path, then draw the bonus token from what is left.
//
// Rows are prepared by all workers, the bonus token is drawn by the first team; the few decisions at nodes are made by
// worker 0. All is decided in float64 and from the very numbers that are reported, so that whoever reads them can make
// the decisions again.
#pragma once

#include <cstdint>

#include "ddtree/lanes.h"
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
        if (verdict.accepted == tree_.depth || tree_.next_token[node] == -1) return;
        std::int32_t* const lost = scratch_.row.counts;
        for (std::int64_t chunk = 0; chunk < chunks_of(size_); ++chunk) lost[chunk] = false;
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
            lost[token / kChunk] = true;
            verdict.bonus_token = token;  // for now: it is what is drawn if no mass is left at all
            verdict.bonus_prob = prob;
        }
    }

   private:
    DDTREE_HD DDTREE_INLINE bool accepts(double prob, double cumulative, double coin) const {
        if (!(prob > 0.0)) return false;
        return coin < cumulative / coins_.threshold_acc || prob >= coins_.threshold_single;
    }

    const WalkTree& tree_;
    const WalkCoins& coins_;
    const std::int64_t size_;
    float* const values_;
    const WalkScratch& scratch_;
};

// The masses of the chunks that lost a token, added up again, all workers together.
template <class Block>
DDTREE_HD void add_up_what_is_left(const Block& block, std::int64_t size, const RowScratch& scratch) {
    using Lanes = LanesOf<Block>;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        if (scratch.counts[chunk] == 0) return;
        const float mass = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            return load<typename Lanes::Vec>(scratch.values + first + i);
        });
        Lanes::put(scratch.chunk_masses + chunk, mass);
    });
    block.sync(kSiteMassesLeft);
}

// Draws the bonus token from the masses in the scratch: the first team's part, all its workers together. Of the
// running sum the chunk is found first, in the chunk the group of 32 tokens, in the group the token.
template <class Lanes>
class Draw {
   public:
    DDTREE_HD DDTREE_INLINE Draw(const RowScratch& row, std::int64_t size, double norm)
        : row_(row), size_(size), norm_(norm) {}

    DDTREE_HD DDTREE_INLINE void into(WalkVerdict& verdict, float coin, bool rejected, bool writes) {
        const std::int64_t chunks = chunks_of(size_);
        double end = sum_of_chunks(row_.chunk_masses, chunks);
        const double residual = end / norm_;
        if (writes) {
            verdict.residual_mass = residual;
            verdict.bonus_source = rejected ? BonusSource::residual : BonusSource::full_row;
            if (!(end > 0.0)) verdict.bonus_source = BonusSource::last_tried;
        }
        if (!(end > 0.0)) return;
        mark_ = static_cast<double>(coin) * residual;
        near_ = mark_ * norm_ * (1.0 - 0x1p-40);
        const std::int64_t chunk =
            pass(chunks, [&](std::int64_t i) __attribute__((always_inline)) { return row_.chunk_masses[i]; });
        end = before_ + static_cast<double>(row_.chunk_masses[chunk]);
        const std::int64_t first = chunk * kChunk + pass_groups(chunk) * kLanes;
        const std::int64_t tokens = Minimum{}(size_ - first, std::int64_t{kLanes});
        const float* const values = row_.values + first;
        const std::int64_t token =
            pass(tokens, [&](std::int64_t i) __attribute__((always_inline)) { return values[i]; });
        if (!writes) return;
        const auto mass = static_cast<double>(values[token]);
        verdict.bonus_token = first + token;
        verdict.bonus_prob = mass / norm_;
        verdict.bonus_cumulative = (found_ ? before_ + mass : end) / norm_;
    }

   private:
    // Whether a running sum is above the mark; the division is left out where it cannot be.
    DDTREE_HD DDTREE_INLINE bool above(double running) const { return running >= near_ && running / norm_ > mark_; }

    // The first of `count` masses whose running sum, from before_ on, is above the mark; if rounding leaves none, the
    // last with mass. before_ becomes the sum before it.
    template <class Mass>
    DDTREE_HD DDTREE_INLINE std::int64_t pass(std::int64_t count, Mass mass_of) {
        double running = before_;
        std::int64_t last = 0;
        found_ = false;
        for (std::int64_t i = 0; i < count && !found_; ++i) {
            const float mass = mass_of(i);
            if (!(mass > 0.0f)) continue;
            last = i;
            before_ = running;
            running += static_cast<double>(mass);
            found_ = above(running);
        }
        return last;
    }

    DDTREE_HD DDTREE_INLINE std::int64_t pass_groups(std::int64_t chunk) {
        const float* const values = row_.values + chunk * kChunk;
        const std::int64_t groups = (Minimum{}(size_ - chunk * kChunk, std::int64_t{kChunk}) + kLanes - 1) / kLanes;
        float masses[kChunk / kLanes];  // at once, so that the loads are under way together
        DDTREE_UNROLL(32)
        for (int group = 0; group < kChunk / kLanes; ++group) {
            masses[group] = 0.0f;
            if (group < groups)
                masses[group] = Lanes::sum(1, [&](std::int64_t i) __attribute__((always_inline)) {
                    return load<typename Lanes::Vec>(values + group * kLanes + i);
                });
        }
        return pass(groups, [&](std::int64_t i) __attribute__((always_inline)) { return masses[i]; });
    }

    const RowScratch& row_;
    const std::int64_t size_;
    const double norm_;
    double mark_ = 0.0;
    double near_ = 0.0;
    double before_ = 0.0;  // the running sum
    bool found_ = false;
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
    using Lanes = LanesOf<Block>;
    const bool rejected = scratch.move->rejected;
    if (rejected) detail::add_up_what_is_left(block, size, scratch.row);
    if (Lanes::team(block) == 0)
        detail::Draw<Lanes>(scratch.row, size, row.norm).into(*scratch.verdict, coins.final, rejected, first);
}

}  // namespace ddtree
