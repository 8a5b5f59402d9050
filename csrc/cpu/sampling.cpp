#include "cpu/sampling.h"

#include <memory>

#include "cpu/instruction_set.h"

namespace ddtree::cpu {

namespace {

const SamplingKernels& kernels() {
    switch (instruction_set()) {
        case InstructionSet::avx512: return sampling_avx512;
        case InstructionSet::avx2: return sampling_avx2;
        default: return sampling_portable;
    }
}

// This thread's memory, cut up for a Scratch. It is kept between calls: fresh pages would cost more than the work.
template <class Scratch, class... Sizes>
Scratch scratch_of(Sizes... sizes) {
    thread_local std::unique_ptr<std::byte[]> memory;
    thread_local std::int64_t room = 0;
    constexpr std::int64_t kAlignment = 64;
    Carver counter{nullptr};
    Scratch::over(counter, sizes...);
    if (counter.used + kAlignment > room) {
        room = counter.used + kAlignment;
        memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(room));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
    Carver carver{memory.get() + (kAlignment - address % kAlignment) % kAlignment};
    return Scratch::over(carver, sizes...);
}

}  // namespace

void sample_target_only(const TargetOnlyBatch& in) {
    const WalkScratch scratch = scratch_of<WalkScratch>(in.size, in.nodes);
    for (int batch_row = 0; batch_row < in.batch; ++batch_row) kernels().target_only(in, batch_row, scratch);
}

Outcome verify_tree(const AnyLogits& logits, const SamplingRule& rule, const WalkTree& tree, const WalkCoins& coins) {
    const WalkScratch scratch = scratch_of<WalkScratch>(logits.size, tree.nodes);
    kernels().verify(logits, rule, tree, coins, scratch);
    return {scratch.verdict, scratch.path, scratch.tried};
}

void verify_batch(const VerifyBatch& in) {
    const WalkScratch scratch = scratch_of<WalkScratch>(in.size, in.nodes);
    for (int at = 0; at < in.batch; ++at) kernels().verify_batch(in, at, scratch);
}

void observe_row(const AnyLogits& row, const AnyLogits& draft_row, const Observation& what, const ObservedRow& out) {
    kernels().observe(row, draft_row, what, out, scratch_of<ObserveScratch>(row.size));
}

}  // namespace ddtree::cpu
