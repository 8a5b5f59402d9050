// What was built, and what this machine can run.
#include "cuda/launch.h"

namespace ddtree::cuda {

std::vector<std::string> architectures() {
    std::vector<std::string> names;
    for (const int compiled : {__CUDA_ARCH_LIST__}) names.push_back("sm_" + std::to_string(compiled / 10));
    return names;
}

Devices devices() {
    Devices found;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) found.problem = cudaGetErrorString(error);
    for (int device = 0; device < count; ++device) {
        cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
        found.names.push_back(std::string(properties.name) + " (sm_" + std::to_string(properties.major) +
                              std::to_string(properties.minor) + ")");
    }
    return found;
}

}  // namespace ddtree::cuda
