// The samplers on the CPU: the serial executor, once for each vector width.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ddtree/sample.h"
#include "ddtree/sample_observe.h"

namespace ddtree::cpu {

// Every primitive is the identity; vectors of W floats.
template <int W>
struct WideBlock : SerialBlock {
    static constexpr int kWidth = W;
};

// Rows of logits of any element type.
struct AnyLogits {
    const void* first;
    std::int64_t stride;
    std::int64_t size;
    Element element;
};

// What to look at in a row.
struct Observation {
    SamplingRule rule;
    float draft_temperature;
    int most_shown;
    int children;
};

// One for each instruction set.
struct SamplingKernels {
    void (*target_only)(const TargetOnlyBatch& in, std::int64_t batch_row, const WalkScratch& scratch);
    void (*verify)(const AnyLogits& logits, const SamplingRule& rule, const WalkTree& tree, const WalkCoins& coins,
                   const WalkScratch& scratch);
    void (*verify_batch)(const VerifyBatch& in, std::int64_t at, const WalkScratch& scratch);
    void (*observe)(const AnyLogits& row, const AnyLogits& draft_row, const Observation& what, const ObservedRow& out,
                    const ObserveScratch& scratch);
};

extern const SamplingKernels sampling_portable;
extern const SamplingKernels sampling_avx2;
extern const SamplingKernels sampling_avx512;

// Walks every batch row.
void sample_target_only(const TargetOnlyBatch& in);

// Walks one tree; what the outcome points at holds until the thread's next call.
struct Outcome {
    const WalkVerdict* verdict;
    const std::int32_t* path;
    const Tried* tried;
};
Outcome verify_tree(const AnyLogits& logits, const SamplingRule& rule, const WalkTree& tree, const WalkCoins& coins);

// Walks every tree of a batch.
void verify_batch(const VerifyBatch& in);

// Looks at one row; draft_row.first may be null.
void observe_row(const AnyLogits& row, const AnyLogits& draft_row, const Observation& what, const ObservedRow& out);

}  // namespace ddtree::cpu
