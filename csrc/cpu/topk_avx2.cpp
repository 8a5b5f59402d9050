#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkFunctions topk_avx2 = {topk_row<8, float>, topk_row<8, BFloat16>, topk_row<8, Float16>};

}  // namespace ddtree::cpu
