#include "cpu/forward_width.h"

namespace ddtree::cpu {

const ForwardKernels forward_avx512 = kForwardOfWidth<16>;

}  // namespace ddtree::cpu
