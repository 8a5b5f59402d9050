// The samplers for vectors of W floats; sampling_{portable,avx2,avx512}.cpp instantiate it.
#pragma once

#include "cpu/sampling.h"

namespace ddtree::cpu {

template <int W>
void target_only_of_width(const TargetOnlyBatch& in, std::int64_t batch_row, const WalkScratch& scratch) {
    ddtree::sample_target_only(WideBlock<W>{}, in, batch_row, scratch);
}

// Calls use(pointer to the elements).
template <class Use>
DDTREE_INLINE void with_elements(const AnyLogits& logits, Use use) {
    switch (logits.element) {
        case Element::float32: return use(static_cast<const float*>(logits.first));
        case Element::bfloat16: return use(static_cast<const BFloat16*>(logits.first));
        case Element::float16: return use(static_cast<const Float16*>(logits.first));
    }
}

template <int W>
void verify_of_width(const AnyLogits& logits, const SamplingRule& rule, const WalkTree& tree, const WalkCoins& coins,
                     const WalkScratch& scratch) {
    with_elements(logits, [&](const auto* first) {
        ddtree::verify_tree(WideBlock<W>{}, LogitRows{first, logits.stride, logits.size}, rule, tree, coins, scratch);
    });
}

template <int W>
void verify_batch_of_width(const VerifyBatch& in, std::int64_t at, const WalkScratch& scratch) {
    with_elements({in.logits, in.row_stride, in.size, in.element}, [&]<class T>(const T*) {
        ddtree::verify_batch_tree<T>(WideBlock<W>{}, in, at, scratch);
    });
}

template <int W>
void observe_of_width(const AnyLogits& row, const AnyLogits& draft_row, const Observation& what,
                      const ObservedRow& out, const ObserveScratch& scratch) {
    with_elements(row, [&](const auto* logits) {
        with_elements(draft_row, [&](const auto* draft_logits) {
            ddtree::observe_row(WideBlock<W>{},
                                RowToObserve{logits, draft_logits, row.size, what.draft_temperature, what.rule,
                                             what.most_shown, what.children},
                                out, scratch);
        });
    });
}

template <int W>
inline constexpr SamplingKernels kSamplingOfWidth = {target_only_of_width<W>, verify_of_width<W>,
                                                      verify_batch_of_width<W>, observe_of_width<W>};

}  // namespace ddtree::cpu
