#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkScanners topk_avx512 = {topk_scan_chunk<16, float>, topk_scan_chunk<16, BFloat16>, topk_scan_chunk<16, Float16>};

}  // namespace ddtree::cpu
