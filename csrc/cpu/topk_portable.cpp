#include "cpu/topk.h"

namespace ddtree::cpu {

const TopkScanners topk_portable = {topk_scan_chunk<4, float>, topk_scan_chunk<4, BFloat16>, topk_scan_chunk<4, Float16>};

}  // namespace ddtree::cpu
