// The kernels' launches. Nothing here allocates, synchronises or copies to the host, so all of it can be captured in
// a graph; faults go to the status arrays. This header needs no CUDA headers: a stream is a cudaStream_t as a pointer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddtree/sample.h"
#include "ddtree/tree_padded.h"

namespace ddtree::cuda {

inline constexpr int kLargestBudget = 1024;

// Each returns null, or what is wrong in CUDA's words. Arrays stand in the device's memory.

// T is float or double; budget at most kLargestBudget.
template <class T>
const char* build_padded_trees(const PaddedTrees<T>& in, void* stream);

// `scratch` holds batch * sampler_scratch_bytes, aligned to 64 bytes.
std::int64_t sampler_scratch_bytes(std::int64_t size, int nodes);
const char* sample_target_only(const TargetOnlyBatch& in, void* scratch, void* stream);

const char* verify_batch(const VerifyBatch& in, void* scratch, void* stream);

// ---- what was built, and what this machine can run ----

// The architectures that machine code or PTX was compiled for, as nvcc names them.
std::vector<std::string> architectures();

struct Devices {
    std::vector<std::string> names;  // with their compute capabilities
    std::string problem;             // in CUDA's words, where they cannot be asked for
};
Devices devices();

}  // namespace ddtree::cuda
