#include "cpu/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>

#include "cpu/instruction_set.h"

namespace ddtree::cpu {

namespace {

template <class T>
TopkScanChunk<T> scanner() {
    const InstructionSet set = instruction_set();
    const TopkScanners& all = set == InstructionSet::avx512 ? topk_avx512
                              : set == InstructionSet::avx2 ? topk_avx2
                                                            : topk_portable;
    if constexpr (std::is_same_v<T, float>)
        return all.of_float;
    else if constexpr (std::is_same_v<T, BFloat16>)
        return all.of_bfloat16;
    else
        return all.of_float16;
}

// Keeps the k first of the collected keys, in any order, and collects only what may still come before the last.
void cut(TopkScan& scan, std::int64_t k) {
    if (scan.count < k) return;
    std::nth_element(scan.keys, scan.keys + (k - 1), scan.keys + scan.count, std::greater<>());
    scan.count = k;
    scan.take_all = false;
    scan.threshold = topk_value(scan.keys[k - 1]);  // an equal one that comes later has a higher id
}

}  // namespace

template <class T>
std::int64_t topk_log_softmax(const T* logits, std::int64_t rows, std::int64_t size, std::int64_t k, double temperature,
                              float* top_log_probs, std::int64_t* top_token_ids) {
    const TopkScanChunk<T> scan_chunk = scanner<T>();
    const std::int64_t enough = k + std::max<std::int64_t>(k, 128);  // then a cut costs little for each key
    const auto keys = std::make_unique_for_overwrite<std::uint64_t[]>(static_cast<std::size_t>(enough + kChunk));
    for (std::int64_t r = 0; r < rows; ++r) {
        const T* row = logits + r * size;
        TopkScan scan = {.temperature = static_cast<float>(temperature), .keys = keys.get()};
        double mass = 0.0;
        double mass_maximum = 0.0;  // what was subtracted in `mass`
        for (std::int64_t first = 0; first < size; first += kChunk) {
            scan_chunk(row + first, static_cast<int>(std::min<std::int64_t>(kChunk, size - first)), first, scan);
            if (!scan.sound) return r;
            if (mass > 0.0 && scan.maximum > mass_maximum)
                mass *= std::exp((mass_maximum - static_cast<double>(scan.maximum)) / temperature);
            mass_maximum = scan.maximum;
            mass += scan.mass;
            if (scan.count >= enough || (scan.take_all && scan.count >= k)) cut(scan, k);
        }
        if (!(mass > 0.0)) return r;
        cut(scan, k);
        std::sort(keys.get(), keys.get() + k, std::greater<>());
        const double log_mass = std::log(mass);
        for (std::int64_t i = 0; i < k; ++i) {
            const double distance = static_cast<double>(topk_value(keys[i])) - scan.maximum;
            top_log_probs[r * k + i] = static_cast<float>(distance / temperature - log_mass);
            top_token_ids[r * k + i] = topk_id(keys[i]);
        }
    }
    return -1;
}

template std::int64_t topk_log_softmax(const float*, std::int64_t, std::int64_t, std::int64_t, double, float*,
                                       std::int64_t*);
template std::int64_t topk_log_softmax(const BFloat16*, std::int64_t, std::int64_t, std::int64_t, double, float*,
                                       std::int64_t*);
template std::int64_t topk_log_softmax(const Float16*, std::int64_t, std::int64_t, std::int64_t, double, float*,
                                       std::int64_t*);

}  // namespace ddtree::cpu
