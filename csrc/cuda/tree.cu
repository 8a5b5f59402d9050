// Draft trees: one block for each, all it works on in shared memory.
#include "cuda/executor.cuh"
#include "cuda/launch.h"

namespace ddtree::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kNodes = kLargestBudget + 1;
constexpr int kHeapSlots = kNodes + 2 * kTeam;

struct Shared {
    ThreadBlock<kThreads>::Shared block;
    Candidate nodes[kNodes];
    std::uint64_t heap_costs[kHeapSlots];
    std::int64_t heap_places[kHeapSlots];
    std::int32_t next_rows[kNodes];
    std::int32_t count;
};
static_assert(sizeof(Shared) <= 48 * 1024, "more than a block may have without asking");

template <class T>
__global__ void __launch_bounds__(kThreads, 1) build(const __grid_constant__ PaddedTrees<T> in) {
    __shared__ Shared shared;
    const ThreadBlock<kThreads> block(shared.block);
    const TreeScratch scratch = {shared.nodes,       shared.next_rows, shared.heap_costs,
                                 shared.heap_places, &shared.count,    {}};
    build_padded_tree(block, in, blockIdx.x, scratch);
}

}  // namespace

template <class T>
const char* build_padded_trees(const PaddedTrees<T>& in, void* stream) {
    if (in.batch == 0) return nullptr;
    build<T><<<static_cast<unsigned>(in.batch), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template const char* build_padded_trees(const PaddedTrees<float>&, void*);
template const char* build_padded_trees(const PaddedTrees<double>&, void*);

}  // namespace ddtree::cuda
