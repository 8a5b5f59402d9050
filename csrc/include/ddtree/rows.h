// Candidate rows, what the draft tree is built from, and what can be wrong with them.
//
// A row holds the likeliest tokens of one position, in descending log-probability; entry = row * ranks + rank names
// one of them, and child_rows[entry] the row its own children are taken from.
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

    // The row of the children of `entry`, which stands in `row`; -1: none.
    DDTREE_HD int next_row(int row, int entry) const {
        if (child_rows != nullptr) return static_cast<int>(child_rows[entry]);
        return row + 1 < rows ? row + 1 : -1;
    }
    DDTREE_HD double log_prob(int entry) const {
        const double value = static_cast<double>(log_probs[entry]);
        return value < 0.0 ? value : 0.0;
    }
};

// Memory the workers share; its contents need not be initialised. kTeam workers and more do not use it.
struct RowsScratch {
    std::int32_t* heads;  // [2^bucket_bits]
    std::int32_t* links;  // [rows * ranks]
    int bucket_bits;      // 1..31; a few buckets for each rank are fast
};

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
        for (int rank = block.rank(); rank < in.ranks - 1; rank += block.size())
            sound &= values[rank + 1] <= values[rank];
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

// The first token that stands twice in its row, among this worker's entries: each is compared with those before it.
// Entries of probability 0 are no candidates and do not count.
template <class Block, class T>
DDTREE_HD std::int64_t first_token_twice_in_pairs(const Block& block, const CandidateRows<T>& in) {
    const int entries = in.rows * in.ranks;
    for (int entry = block.rank(); entry < entries; entry += block.size()) {
        if (in.log_probs[entry] == -std::numeric_limits<T>::infinity()) continue;
        const std::int64_t token = in.token_ids[entry];
        bool twice = false;
        for (int before = entry - entry % in.ranks; before < entry; ++before)
            twice |= in.token_ids[before] == token && in.log_probs[before] != -std::numeric_limits<T>::infinity();
        if (twice) return pack_fault(entry, RowsFault::token_twice);
    }
    return kNoFault;
}

// The first token that stands twice in its row, among those whose bucket is this worker's. heads[b] is the
// last entry + 1 that fell into bucket b; entries of earlier rows are told by their number, so that nothing
// is cleared between rows. Entries of probability 0 are no candidates and do not count.
template <class Block, class T>
DDTREE_HD std::int64_t first_token_twice(const Block& block, const CandidateRows<T>& in, const RowsScratch& scratch) {
    // Copies, for all that the compiler knows the stores below might change the originals.
    const std::int64_t* const token_ids = in.token_ids;
    std::int32_t* const heads = scratch.heads;
    std::int32_t* const links = scratch.links;
    const int ranks = in.ranks, shift = 64 - scratch.bucket_bits;
    const int buckets = 1 << scratch.bucket_bits, entries = in.rows * ranks;
    for (int bucket = block.rank(); bucket < buckets; bucket += block.size()) heads[bucket] = 0;
    for (int first = 0; first < entries; first += ranks) {
        int end = first + ranks;
        while (end > first && in.log_probs[end - 1] == -std::numeric_limits<T>::infinity()) --end;
        for (int entry = first; entry < end; ++entry) {
            const std::int64_t token = token_ids[entry];
            const auto bucket = (static_cast<std::uint64_t>(token) * 0x9E3779B97F4A7C15u) >> shift;
            if (!owns(block, static_cast<std::int64_t>(bucket))) continue;
            if (in.log_probs[entry] == -std::numeric_limits<T>::infinity()) continue;  // in a row that does not descend
            for (int seen = heads[bucket]; seen > first; seen = links[seen - 1]) {
                if (token_ids[seen - 1] == token) return pack_fault(entry, RowsFault::token_twice);
            }
            links[entry] = heads[bucket];
            heads[bucket] = entry + 1;
        }
    }
    return kNoFault;
}

// The first fault of the rows, packed, or kNoFault; the same to every worker.
template <class Block, class T>
DDTREE_HD std::int64_t first_rows_fault(const Block& block, const CandidateRows<T>& in, const RowsScratch& scratch) {
    // Every worker passes all entries on the way to its buckets: for many workers, pairs are less work.
    const std::int64_t twice =
        block.size() < kTeam ? first_token_twice(block, in, scratch) : first_token_twice_in_pairs(block, in);
    const std::int64_t mine = Minimum{}(first_entry_fault(block, in), twice);
    return block.reduce(mine, Minimum{}, kSiteRowsChecked);
}

}  // namespace ddtree
