// The samplers: a batch row of probabilities with SGLang's arrays, and a tree straight from logits.
#pragma once

#include <cstdint>

#include "ddtree/sample_walk.h"

namespace ddtree {

// ---- from probabilities ----

// The arrays of SGLang's tree_speculative_sampling_target_only, batch-major and contiguous.
struct TargetOnlyBatch {
    std::int32_t* predicts;          // [slots]
    std::int32_t* accept_index;      // [batch, path]
    std::int32_t* accept_token_num;  // [batch]
    const std::int64_t* candidates;  // [batch, nodes], as are the next three
    const std::int64_t* retrieve_index;
    const std::int64_t* next_token;
    const std::int64_t* next_sibling;
    const float* uniform_samples;        // [batch, nodes]
    const float* uniform_samples_final;  // [batch]
    const float* target_probs;           // [batch, nodes, size]
    std::int32_t* status;                // [batch] 0, or pack_status of what is wrong
    std::int64_t slots;
    std::int64_t size;
    int batch;
    int nodes;
    int path;
    double threshold_single;
    double threshold_acc;
};

// A fault and its node in one number: 8 * node + fault.
DDTREE_HD DDTREE_INLINE std::int32_t pack_status(SampleFault fault, std::int64_t node) {
    return fault == SampleFault::none ? 0 : static_cast<std::int32_t>(8 * node + static_cast<std::int64_t>(fault));
}

namespace detail {

// Worker 0: the walk's outcome into the caller's arrays, all of it or, where a slot does not exist, nothing.
template <class Block>
DDTREE_HD std::int32_t write_outputs(const TargetOnlyBatch& in, std::int64_t batch_row, const WalkScratch& scratch) {
    const WalkVerdict& verdict = *scratch.verdict;
    if (verdict.fault != SampleFault::none) return pack_status(verdict.fault, verdict.fault_node);
    const std::int64_t* const slots = in.retrieve_index + batch_row * in.nodes;
    for (int i = 0; i <= verdict.accepted; ++i) {
        const std::int64_t slot = slots[scratch.path[i]];
        if (slot < 0 || slot >= in.slots) return pack_status(SampleFault::bad_slot, scratch.path[i]);
    }
    const std::int64_t* const tokens = in.candidates + batch_row * in.nodes;
    for (int i = 0; i <= verdict.accepted; ++i) {
        const std::int64_t slot = slots[scratch.path[i]];
        const std::int64_t token = i < verdict.accepted ? tokens[scratch.path[i + 1]] : verdict.bonus_token;
        in.predicts[slot] = static_cast<std::int32_t>(token);
        in.accept_index[batch_row * in.path + i] = static_cast<std::int32_t>(slot);
    }
    in.accept_token_num[batch_row] = verdict.accepted;
    return 0;
}

}  // namespace detail

// Walks the tree of one batch row. A faulty row leaves its outputs as they are; its status says what and where.
template <class Block>
DDTREE_HD void sample_target_only(const Block& block, const TargetOnlyBatch& in, std::int64_t batch_row,
                                  const WalkScratch& scratch) {
    const std::int64_t offset = batch_row * in.nodes;
    const WalkTree tree = {in.candidates + offset, in.next_token + offset, in.next_sibling + offset,
                           in.nodes,               in.path - 1,            false};
    const WalkCoins coins = {in.uniform_samples + offset, in.uniform_samples_final[batch_row], in.threshold_single,
                             in.threshold_acc};
    walk_tree(block, tree, coins, in.size, scratch, [&](std::int32_t node) {
        return masses_of_probs(block, in.target_probs + (offset + node) * in.size, in.size, scratch.row);
    });
    if (block.rank() == 0) in.status[batch_row] = detail::write_outputs<Block>(in, batch_row, scratch);
}

// ---- from logits ----

template <class T>
struct LogitRows {
    const T* first;       // [nodes, size]
    std::int64_t stride;  // elements from one row to the next
    std::int64_t size;

    DDTREE_HD const T* row(std::int64_t node) const { return first + node * stride; }
};

enum class Element { float32 = 0, bfloat16 = 1, float16 = 2 };

// A batch of trees, batch-major, and what the walks leave, as a device keeps it.
struct VerifyBatch {
    const void* logits;  // [batch, nodes, size]
    Element element;
    std::int64_t size;
    std::int64_t row_stride;         // elements from one row to the next
    std::int64_t tree_stride;        // and from one tree's first row to the next one's
    const std::int64_t* candidates;  // [batch, nodes], as are the next three
    const std::int64_t* next_token;
    const std::int64_t* next_sibling;
    const float* coins;
    const float* final_coins;  // [batch]
    SamplingRule rule;
    double threshold_single;
    double threshold_acc;
    int batch;
    int nodes;
    // Entries that a walk does not use are -1, numbers 0; a faulty tree has nothing else.
    std::int64_t* path;     // [batch, nodes] root first
    std::int64_t* outcome;  // [batch, 4]: accepted drafts, tried nodes, bonus token, BonusSource
    double* bonus;          // [batch, 3]: bonus_prob, bonus_cumulative, residual_mass
    std::int64_t* tried;    // [batch, nodes, 2]: node, accepted
    double* decisions;      // [batch, nodes, 3]: prob, cumulative, coin
    std::int32_t* status;   // [batch] 0, or pack_status of what is wrong
};

// Walks one tree with the rows of logits; only those it visits are read. The outcome is left in the scratch.
template <class Block, class T>
DDTREE_HD void verify_tree(const Block& block, const LogitRows<T>& logits, const SamplingRule& rule,
                           const WalkTree& tree, const WalkCoins& coins, const WalkScratch& scratch) {
    walk_tree(block, tree, coins, logits.size, scratch, [&](std::int32_t node) {
        return masses_of_logits(block, logits.row(node), logits.size, rule, scratch.row);
    });
    const bool drawn = block.rank() == 0 && scratch.verdict->fault == SampleFault::none;
    if (drawn && rule.greedy()) scratch.verdict->bonus_source = BonusSource::argmax;
}

// Walks one tree of the batch, whose logits are T.
template <class T, class Block>
DDTREE_HD void verify_batch_tree(const Block& block, const VerifyBatch& in, std::int64_t at,
                                 const WalkScratch& scratch) {
    const std::int64_t offset = at * in.nodes;
    const LogitRows<T> logits = {static_cast<const T*>(in.logits) + at * in.tree_stride, in.row_stride, in.size};
    const WalkTree tree = {in.candidates + offset, in.next_token + offset, in.next_sibling + offset,
                           in.nodes,               in.nodes,               true};
    const WalkCoins coins = {in.coins + offset, in.final_coins[at], in.threshold_single, in.threshold_acc};
    verify_tree(block, logits, in.rule, tree, coins, scratch);
    block.sync(kSiteWalked);
    const WalkVerdict& verdict = *scratch.verdict;
    const bool sound = verdict.fault == SampleFault::none;
    for (int i = block.rank(); i < in.nodes; i += block.size()) {
        const bool tried = sound && i < verdict.tried;
        const Tried child = tried ? scratch.tried[i] : Tried{0.0, 0.0, 0.0f, -1, -1};
        in.path[offset + i] = sound && i <= verdict.accepted ? scratch.path[i] : -1;
        in.tried[2 * (offset + i)] = child.node;
        in.tried[2 * (offset + i) + 1] = child.accepted;
        in.decisions[3 * (offset + i)] = child.prob;
        in.decisions[3 * (offset + i) + 1] = child.cumulative;
        in.decisions[3 * (offset + i) + 2] = static_cast<double>(child.coin);
    }
    if (block.rank() != 0) return;
    in.outcome[4 * at] = sound ? verdict.accepted : -1;
    in.outcome[4 * at + 1] = sound ? verdict.tried : -1;
    in.outcome[4 * at + 2] = sound ? verdict.bonus_token : -1;
    in.outcome[4 * at + 3] = sound ? static_cast<std::int64_t>(verdict.bonus_source) : -1;
    in.bonus[3 * at] = sound ? verdict.bonus_prob : 0.0;
    in.bonus[3 * at + 1] = sound ? verdict.bonus_cumulative : 0.0;
    in.bonus[3 * at + 2] = sound ? verdict.residual_mass : 0.0;
    in.status[at] = pack_status(verdict.fault, verdict.fault_node);
}

}  // namespace ddtree
