// Draft trees as a device keeps them, everything padded to the budget: build, encoding and visibility in one go.
#pragma once

#include <cstdint>

#include "ddtree/retrieve.h"
#include "ddtree/tree.h"

namespace ddtree {

// A batch of trees, each over candidate rows of its own; length = budget + 1.
template <class T>
struct PaddedTrees {
    const T* log_probs;              // [batch, rows, ranks]
    const std::int64_t* token_ids;   // [batch, rows, ranks]
    const std::int64_t* child_rows;  // [batch, rows, ranks], null: row r's children stand in row r + 1
    int batch;
    int rows;
    int ranks;
    int budget;
    std::int64_t* fields;    // [batch, TreeArrays::kFields, length]
    std::int64_t* retrieve;  // [batch, 3, length]: retrieve_index (tree * length + node), next_token, next_sibling
    std::uint8_t* visible;   // [batch, length, length]
    std::int64_t* status;    // [batch, 2]: num_nodes, and 0 or the rows' fault, packed
};

// Builds one tree of the batch, all workers together. A faulty one is the root alone.
template <class Block, class T>
DDTREE_HD void build_padded_tree(const Block& block, const PaddedTrees<T>& in, std::int64_t tree,
                                 const TreeScratch& scratch) {
    const std::int64_t entries = static_cast<std::int64_t>(in.rows) * in.ranks;
    const std::int64_t length = static_cast<std::int64_t>(in.budget) + 1;
    const CandidateRows<T> rows = {in.log_probs + tree * entries, in.token_ids + tree * entries,
                                   in.child_rows == nullptr ? nullptr : in.child_rows + tree * entries, in.rows,
                                   in.ranks};
    const TreeArrays out =
        TreeArrays::over(in.fields + tree * TreeArrays::kFields * length, in.budget, in.status + 2 * tree);
    const int nodes = build_tree(block, rows, in.budget, scratch, out) + 1;
    block.sync(kSiteTreeWritten);
    std::int64_t* const retrieve = in.retrieve + 3 * tree * length;
    encode_tree(block, out.parents, nodes, static_cast<int>(length), tree * length, retrieve, retrieve + length,
                retrieve + 2 * length);
    write_visibility(block, out.parents, nodes, static_cast<int>(length), in.visible + tree * length * length);
}

}  // namespace ddtree
