// The padded forms' arguments as they come from Python, shared by both devices: pointers are integers, 0 is null.
#pragma once

#include <cstdint>

#include "ddtree/sample.h"
#include "ddtree/tree_padded.h"

namespace ddtree {

template <class T>
T* at_address(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

template <class T>
PaddedTrees<T> padded_trees(std::uintptr_t log_probs, std::uintptr_t token_ids, std::uintptr_t child_rows, int batch,
                            int rows, int ranks, int budget, std::uintptr_t fields, std::uintptr_t retrieve,
                            std::uintptr_t visible, std::uintptr_t status) {
    return {at_address<const T>(log_probs),
            at_address<const std::int64_t>(token_ids),
            at_address<const std::int64_t>(child_rows),
            batch,
            rows,
            ranks,
            budget,
            at_address<std::int64_t>(fields),
            at_address<std::int64_t>(retrieve),
            at_address<std::uint8_t>(visible),
            at_address<std::int64_t>(status)};
}

inline VerifyBatch verify_batch_of(std::uintptr_t logits, int element, std::int64_t size, std::int64_t row_stride,
                                   std::int64_t tree_stride, std::uintptr_t candidates, std::uintptr_t next_token,
                                   std::uintptr_t next_sibling, std::uintptr_t coins, std::uintptr_t final_coins,
                                   double temperature, std::int64_t top_k, double top_p, double threshold_single,
                                   double threshold_acc, int batch, int nodes, std::uintptr_t path,
                                   std::uintptr_t outcome, std::uintptr_t bonus, std::uintptr_t tried,
                                   std::uintptr_t decisions, std::uintptr_t status) {
    return {.logits = at_address<const void>(logits),
            .element = static_cast<Element>(element),
            .size = size,
            .row_stride = row_stride,
            .tree_stride = tree_stride,
            .candidates = at_address<const std::int64_t>(candidates),
            .next_token = at_address<const std::int64_t>(next_token),
            .next_sibling = at_address<const std::int64_t>(next_sibling),
            .coins = at_address<const float>(coins),
            .final_coins = at_address<const float>(final_coins),
            .rule = {static_cast<float>(temperature), top_k, top_p},
            .threshold_single = threshold_single,
            .threshold_acc = threshold_acc,
            .batch = batch,
            .nodes = nodes,
            .path = at_address<std::int64_t>(path),
            .outcome = at_address<std::int64_t>(outcome),
            .bonus = at_address<double>(bonus),
            .tried = at_address<std::int64_t>(tried),
            .decisions = at_address<double>(decisions),
            .status = at_address<std::int32_t>(status)};
}

inline TargetOnlyBatch target_only_batch(std::uintptr_t predicts, std::uintptr_t accept_index,
                                         std::uintptr_t accept_token_num, std::uintptr_t candidates,
                                         std::uintptr_t retrieve_index, std::uintptr_t next_token,
                                         std::uintptr_t next_sibling, std::uintptr_t uniform_samples,
                                         std::uintptr_t uniform_samples_final, std::uintptr_t target_probs,
                                         std::uintptr_t status, std::int64_t slots, std::int64_t size, int batch,
                                         int nodes, int path, double threshold_single, double threshold_acc) {
    return {.predicts = at_address<std::int32_t>(predicts),
            .accept_index = at_address<std::int32_t>(accept_index),
            .accept_token_num = at_address<std::int32_t>(accept_token_num),
            .candidates = at_address<const std::int64_t>(candidates),
            .retrieve_index = at_address<const std::int64_t>(retrieve_index),
            .next_token = at_address<const std::int64_t>(next_token),
            .next_sibling = at_address<const std::int64_t>(next_sibling),
            .uniform_samples = at_address<const float>(uniform_samples),
            .uniform_samples_final = at_address<const float>(uniform_samples_final),
            .target_probs = at_address<const float>(target_probs),
            .status = at_address<std::int32_t>(status),
            .slots = slots,
            .size = size,
            .batch = batch,
            .nodes = nodes,
            .path = path,
            .threshold_single = threshold_single,
            .threshold_acc = threshold_acc};
}

}  // namespace ddtree
