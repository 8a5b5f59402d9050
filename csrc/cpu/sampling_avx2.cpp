#include "cpu/sampling_width.h"

namespace ddtree::cpu {

const SamplingKernels sampling_avx2 = kSamplingOfWidth<8>;

}  // namespace ddtree::cpu
