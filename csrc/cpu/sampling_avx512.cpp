#include "cpu/sampling_width.h"

namespace ddtree::cpu {

const SamplingKernels sampling_avx512 = kSamplingOfWidth<16>;

}  // namespace ddtree::cpu
