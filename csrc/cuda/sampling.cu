// The samplers: one block for each batch row.
#include "cuda/executor.cuh"
#include "cuda/launch.h"

namespace ddtree::cuda {

namespace {

constexpr int kThreads = 512;  // a row is read by one block; with more threads the registers would spill

using Block = ThreadBlock<kThreads>;

__device__ WalkScratch scratch_of(std::byte* scratch, std::int64_t bytes, std::int64_t size, int nodes) {
    Carver carver{scratch + blockIdx.x * bytes};
    return WalkScratch::over(carver, size, nodes);
}

__global__ void __launch_bounds__(kThreads, 1)
    target_only(const __grid_constant__ TargetOnlyBatch in, std::byte* scratch, std::int64_t bytes) {
    __shared__ Block::Shared shared;
    sample_target_only(Block(shared), in, blockIdx.x, scratch_of(scratch, bytes, in.size, in.nodes));
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    verify(const __grid_constant__ VerifyBatch in, std::byte* scratch, std::int64_t bytes) {
    __shared__ Block::Shared shared;
    verify_batch_tree<T>(Block(shared), in, blockIdx.x, scratch_of(scratch, bytes, in.size, in.nodes));
}

// The kernel for logits of an element type.
auto verify_of(Element element) {
    switch (element) {
        case Element::bfloat16: return verify<BFloat16>;
        case Element::float16: return verify<Float16>;
        default: return verify<float>;
    }
}

template <class Kernel, class Batch>
const char* launch(Kernel kernel, const Batch& in, void* scratch, void* stream) {
    if (in.batch == 0) return nullptr;
    kernel<<<static_cast<unsigned>(in.batch), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        in, static_cast<std::byte*>(scratch), sampler_scratch_bytes(in.size, in.nodes));
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

std::int64_t sampler_scratch_bytes(std::int64_t size, int nodes) {
    Carver counter{nullptr};
    WalkScratch::over(counter, size, nodes);
    return counter.used;
}

const char* sample_target_only(const TargetOnlyBatch& in, void* scratch, void* stream) {
    return launch(target_only, in, scratch, stream);
}

const char* verify_batch(const VerifyBatch& in, void* scratch, void* stream) {
    return launch(verify_of(in.element), in, scratch, stream);
}

}  // namespace ddtree::cuda
