#include "cpu/forward_width.h"

namespace ddtree::cpu {

const ForwardKernels forward_avx2 = kForwardOfWidth<8>;

}  // namespace ddtree::cpu
