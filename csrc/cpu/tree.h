// Tree build, encoding and topology check on the CPU: the serial executor with its scratch memory.
#pragma once

#include <cstdint>

#include "ddtree/tree_padded.h"

namespace ddtree::cpu {

// See ddtree/tree.h. `buffer` holds TreeArrays::over(buffer, budget, ...). Returns the number of nodes, or minus the
// packed fault of the rows. T is float or double. rows * ranks and budget must be below 2^31.
template <class T>
std::int64_t build_tree(const T* log_probs, const std::int64_t* token_ids, const std::int64_t* child_rows, int rows,
                        int ranks, int budget, std::int64_t* buffer);

// See ddtree/tree_padded.h. T is float or double.
template <class T>
void build_padded_trees(const PaddedTrees<T>& in);

// See ddtree/retrieve.h. Writes retrieve_index, next_token and next_sibling, `length` each, one after the other,
// and returns -1; or writes nothing and returns the first node whose parent is not an earlier node.
int encode_tree(const std::int64_t* parents, int nodes, int length, std::int64_t batch_offset, std::int64_t* arrays);

// See ddtree/tree.h. parents[i] < i must hold. Writes length * length bytes.
void write_visibility(const std::int64_t* parents, int nodes, int length, std::uint8_t* out);

// See ddtree/retrieve.h. `tokens` may be null. Returns a packed fault or kSoundTopology.
std::int64_t check_topology(const std::int64_t* next_token, const std::int64_t* next_sibling,
                            const std::int64_t* tokens, int nodes);

}  // namespace ddtree::cpu
