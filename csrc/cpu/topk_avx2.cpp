#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkScanners topk_avx2 = {topk_scan_chunk<8, float>, topk_scan_chunk<8, BFloat16>, topk_scan_chunk<8, Float16>};

}  // namespace ddtree::cpu
