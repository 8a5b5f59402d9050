#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkFunctions topk_avx512 = {topk_row<16, float>, topk_row<16, BFloat16>, topk_row<16, Float16>};

}  // namespace ddtree::cpu
