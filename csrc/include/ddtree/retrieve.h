// The retrieve arrays (first child, next sibling) of a tree, as EAGLE's and SGLang's samplers read them, and the
// check that arrays from anywhere describe a tree, on a block executor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "ddtree/executor.h"

namespace ddtree {

// parents[0] == -1 and 0 <= parents[i] < i for i in 1..nodes-1; length >= nodes. Writes `length` entries to each of
// the three arrays; those from `nodes` on are padding. A worker links the children of the parents that it owns.
template <class Block>
DDTREE_HD void encode_tree(const Block& block, const std::int64_t* parents, int nodes, int length,
                           std::int64_t batch_offset, std::int64_t* retrieve_index, std::int64_t* next_token,
                           std::int64_t* next_sibling) {
    for (int node = block.rank(); node < length; node += block.size()) {
        retrieve_index[node] = batch_offset + node;
        next_token[node] = -1;
        if (node == 0 || node >= nodes) next_sibling[node] = -1;
    }
    for (int node = nodes - 1; node > 0; --node) {
        const std::int64_t parent = parents[node];
        if (!owns(block, parent)) continue;
        next_sibling[node] = next_token[parent];
        next_token[parent] = node;
    }
}

// The first node whose parent is not an earlier node (for node 0: not -1), or -1.
inline int first_bad_parent(const std::int64_t* parents, int nodes) {
    bool fine = nodes > 0 && parents[0] == -1;
    for (int node = 1; node < nodes; ++node) fine &= (parents[node] >= 0) & (parents[node] < node);
    if (fine) return -1;
    if (nodes == 0 || parents[0] != -1) return 0;
    for (int node = 1; node < nodes; ++node) {
        if (parents[node] < 0 || parents[node] >= node) return node;
    }
    return -1;
}

// ---- are these arrays a tree ----

enum class TopologyFault : std::int64_t {
    none = 0,
    out_of_range = 1,    // the node's pointer is neither -1 nor a node
    cycle = 2,           // the node points at itself or at the root
    root_sibling = 3,    // the root has a sibling
    visited_twice = 4,   // two pointers lead to the node
    detached = 5,        // the node points or is pointed at, but no path from the root leads to it
    sibling_tokens = 6,  // an earlier sibling has the node's token
};

// A fault and its node as one number: the smallest is that of the first node.
inline constexpr std::int64_t kSoundTopology = std::numeric_limits<std::int64_t>::max();

DDTREE_HD inline std::int64_t pack_topology_fault(int node, TopologyFault fault) {
    return static_cast<std::int64_t>(node) * 8 + static_cast<std::int64_t>(fault);
}

// Words of scratch that check_topology needs for `nodes` nodes; their contents need not be initialised.
DDTREE_HD inline constexpr std::int64_t topology_scratch_words(int nodes) {
    return 6 * static_cast<std::int64_t>(nodes);
}

namespace detail {

DDTREE_HD inline TopologyFault pointer_fault(int node, std::int64_t child, std::int64_t sibling, int nodes) {
    if (child < -1 || child >= nodes || sibling < -1 || sibling >= nodes) return TopologyFault::out_of_range;
    if (node == 0 && sibling != -1) return TopologyFault::root_sibling;
    if (child == 0 || sibling == 0 || child == node || sibling == node) return TopologyFault::cycle;
    return TopologyFault::none;
}

// Follows `links` (a node's own number: the end) to their ends for all nodes, in log2(nodes) rounds that double
// the stride. The caller synchronises before; afterwards each worker may read its own entries of the result,
// which is `links` or `spare`.
template <class Block>
DDTREE_HD std::int32_t* follow_links(const Block& block, std::int32_t* links, std::int32_t* spare, int nodes) {
    for (int stride = 1; stride < nodes; stride *= 2) {
        for (int node = block.rank(); node < nodes; node += block.size()) spare[node] = links[links[node]];
        block.sync(kSiteTopologyJump);
        std::int32_t* const swapped = links;
        links = spare;
        spare = swapped;
    }
    return links;
}

// The first node whose token an earlier one of the same group has; groups[node] is the group, -1: none. A worker
// compares the nodes that fall into its buckets.
template <class Block>
DDTREE_HD std::int64_t first_token_twice_in_group(const Block& block, const std::int32_t* groups,
                                                  const std::int64_t* tokens, int nodes, std::int32_t* heads,
                                                  std::int32_t* links) {
    for (int bucket = block.rank(); bucket < nodes; bucket += block.size()) heads[bucket] = -1;
    for (int node = 0; node < nodes; ++node) {
        if (groups[node] < 0) continue;
        const auto mixed = (static_cast<std::uint64_t>(tokens[node]) * 0x9E3779B97F4A7C15u) >> 32;
        const auto bucket = static_cast<std::uint32_t>(mixed + static_cast<std::uint32_t>(groups[node]) * 0x85EBCA6Bu) %
                            static_cast<std::uint32_t>(nodes);
        if (!owns(block, bucket)) continue;
        for (std::int32_t seen = heads[bucket]; seen >= 0; seen = links[seen]) {
            if (tokens[seen] == tokens[node] && groups[seen] == groups[node])
                return pack_topology_fault(node, TopologyFault::sibling_tokens);
        }
        links[node] = heads[bucket];
        heads[bucket] = node;
    }
    return kSoundTopology;
}

}  // namespace detail

// Whether the arrays describe one tree over the nodes reachable from node 0, the others being padding (no pointer
// from them, none at them), and, where `tokens` is given, whether siblings have different tokens. Never follows a
// pointer before it is known to be in range and never follows more than `nodes` of them. Returns kSoundTopology
// or a packed fault, the same to every worker; node numbers need not ascend.
template <class Block>
DDTREE_HD std::int64_t check_topology(const Block& block, const std::int64_t* next_token,
                                      const std::int64_t* next_sibling, const std::int64_t* tokens, int nodes,
                                      std::int32_t* scratch) {
    std::int32_t* const pointer_from = scratch;          // the node whose pointer leads here, or the node itself
    std::int32_t* const first_sibling = scratch + nodes; // the sibling before, or the node itself
    std::int32_t* const spare = scratch + 2 * static_cast<std::int64_t>(nodes);

    std::int64_t fault = kSoundTopology;
    for (int node = block.rank(); node < nodes; node += block.size()) {
        const TopologyFault found = detail::pointer_fault(node, next_token[node], next_sibling[node], nodes);
        if (found != TopologyFault::none) fault = Minimum{}(fault, pack_topology_fault(node, found));
        pointer_from[node] = first_sibling[node] = node;
    }
    fault = block.reduce(fault, Minimum{}, kSiteTopologyRange);
    if (fault != kSoundTopology) return fault;

    for (int node = block.rank(); node < nodes; node += block.size()) {
        if (next_token[node] >= 0) write_raced(pointer_from + next_token[node], node);
        if (next_sibling[node] < 0) continue;
        write_raced(pointer_from + next_sibling[node], node);
        write_raced(first_sibling + next_sibling[node], node);
    }
    block.sync(kSiteTopologyPointed);
    for (int node = block.rank(); node < nodes; node += block.size()) {  // of two that point at one, one lost
        for (const std::int64_t target : {next_token[node], next_sibling[node]}) {
            if (target >= 0 && (pointer_from[target] != node || next_token[node] == next_sibling[node]))
                fault = Minimum{}(fault, pack_topology_fault(static_cast<int>(target), TopologyFault::visited_twice));
        }
    }
    fault = block.reduce(fault, Minimum{}, kSiteTopologyPredecessors);
    if (fault != kSoundTopology) return fault;

    std::int32_t* const origin = detail::follow_links(block, pointer_from, spare, nodes);
    for (int node = block.rank(); node < nodes; node += block.size()) {
        if (origin[node] == 0) continue;
        const bool is_padding = next_token[node] == -1 && next_sibling[node] == -1 && origin[node] == node;
        if (!is_padding) fault = Minimum{}(fault, pack_topology_fault(node, TopologyFault::detached));
    }
    fault = block.reduce(fault, Minimum{}, kSiteTopologyReached);
    if (fault != kSoundTopology || tokens == nullptr) return fault;

    std::int32_t* const other = scratch + 3 * static_cast<std::int64_t>(nodes);
    std::int32_t* const groups = detail::follow_links(block, first_sibling, other, nodes);
    for (int node = block.rank(); node < nodes; node += block.size()) {
        if (origin[node] != 0 || node == 0) groups[node] = -1;
    }
    block.sync(kSiteSiblingTokens);
    std::int32_t* const heads = scratch + 4 * static_cast<std::int64_t>(nodes);
    fault = detail::first_token_twice_in_group(block, groups, tokens, nodes, heads, heads + nodes);
    return block.reduce(fault, Minimum{}, kSiteSiblingVerdict);
}

}  // namespace ddtree
