#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkFunctions topk_portable = {topk_row<4, float>, topk_row<4, BFloat16>, topk_row<4, Float16>};

}  // namespace ddtree::cpu
