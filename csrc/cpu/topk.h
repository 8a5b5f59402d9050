// Top-k with log-sum-exp on the CPU.
#pragma once

#include <cstdint>

#include "ddtree/arithmetic.h"
#include "ddtree/topk.h"

namespace ddtree::cpu {

// For each row of logits [rows, size]: the k largest elements, larger first and equal ones by lower id, as
// log-softmax(logits / temperature) in float32 and their ids. 1 <= k <= size < 2^32. T is float, BFloat16 or
// Float16. Returns -1, or the first row with NaN, +inf or no mass; rows from there on are not written.
template <class T>
std::int64_t topk_log_softmax(const T* logits, std::int64_t rows, std::int64_t size, std::int64_t k, double temperature,
                              float* top_log_probs, std::int64_t* top_token_ids);

// One for each instruction set.
template <class T>
using TopkRowFunction = TopkRow (*)(const T* row, std::int64_t size, std::int64_t k, double temperature, float* maxima,
                                  std::uint64_t* keys);

struct TopkFunctions {
    TopkRowFunction<float> of_float;
    TopkRowFunction<BFloat16> of_bfloat16;
    TopkRowFunction<Float16> of_float16;
};

extern const TopkFunctions topk_portable;
extern const TopkFunctions topk_avx2;
extern const TopkFunctions topk_avx512;

}  // namespace ddtree::cpu
