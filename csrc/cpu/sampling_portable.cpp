#include "cpu/sampling_width.h"

namespace ddtree::cpu {

const SamplingKernels sampling_portable = kSamplingOfWidth<4>;

}  // namespace ddtree::cpu
