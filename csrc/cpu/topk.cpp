#include "cpu/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <type_traits>

#include "cpu/instruction_set.h"

namespace ddtree::cpu {

namespace {

template <class T>
TopkRowFunction<T> row_function() {
    const InstructionSet set = instruction_set();
    const TopkFunctions& all = set == InstructionSet::avx512 ? topk_avx512
                              : set == InstructionSet::avx2 ? topk_avx2
                                                            : topk_portable;
    if constexpr (std::is_same_v<T, float>)
        return all.of_float;
    else if constexpr (std::is_same_v<T, BFloat16>)
        return all.of_bfloat16;
    else
        return all.of_float16;
}

}  // namespace

template <class T>
std::int64_t topk_log_softmax(const T* logits, std::int64_t rows, std::int64_t size, std::int64_t k, double temperature,
                              float* top_log_probs, std::int64_t* top_token_ids) {
    const TopkRowFunction<T> look_at_row = row_function<T>();
    const auto maxima = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(chunks_of(size) * kCells));
    const auto keys = std::make_unique_for_overwrite<std::uint64_t[]>(static_cast<std::size_t>(size + 1));
    for (std::int64_t r = 0; r < rows; ++r) {
        const TopkRow row = look_at_row(logits + r * size, size, k, temperature, maxima.get(), keys.get());
        if (!row.sound) return r;
        if (row.count > k)
            std::nth_element(keys.get(), keys.get() + k, keys.get() + row.count, std::greater<>());
        std::sort(keys.get(), keys.get() + k, std::greater<>());
        const double log_mass = std::log(row.mass);
        for (std::int64_t i = 0; i < k; ++i) {
            const double distance = static_cast<double>(topk_value(keys[i])) - row.maximum;
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
