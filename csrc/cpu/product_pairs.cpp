// Products with bfloat16 weights where there is AVX512-BF16 and no AMX: a vector holds a pair of inputs for each of 16
// outputs, as a tile lies in memory, and meets a row's pair, the same for all outputs.
#include "cpu/forward.h"

#if defined(__AVX512BF16__)
#include <cpuid.h>
#include <immintrin.h>

#include "cpu/instruction_set.h"
#endif

namespace ddtree::cpu {

#if defined(__AVX512BF16__)

namespace {

constexpr int kRows = 6;  // with four blocks: 24 sums, 4 weights and a row's pair fill the registers
constexpr int kPairs = kGroup / 2;
constexpr std::int64_t kTile = tile_bytes(Storage::bfloat16);

template <int R, int B>
void some_rows(const Matrix& w, const BFloat16* x, std::int64_t x_stride, std::int64_t block, float* out,
               std::int64_t out_stride, int turn, int turns) {
    constexpr int kLines = B * kPairs;  // of a group: each turn asks for its share of those that come next
    const int from = kLines * turn / turns, to = kLines * (turn + 1) / turns;
    __m512 sum[R][B];
    for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) sum[r][b] = _mm512_setzero_ps();
    const std::byte* tile = w.tile(block, 0);
    const std::int64_t step = w.step(block);
    for (std::int64_t g = 0; g < w.groups(); ++g, tile += step, x += kGroup) {
        for (int line = from; line < to; ++line) w.ask_ahead(tile, block, line);
#pragma GCC unroll 4
        for (int k = 0; k < kPairs; ++k) {
            __m512bh weights[B];
            for (int b = 0; b < B; ++b) weights[b] = (__m512bh)_mm512_loadu_si512(tile + b * kTile + k * 64);
            for (int r = 0; r < R; ++r) {
                std::int32_t pair;
                __builtin_memcpy(&pair, x + r * x_stride + 2 * k, sizeof pair);
                const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                for (int b = 0; b < B; ++b) sum[r][b] = _mm512_dpbf16_ps(sum[r][b], weights[b], both);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) _mm512_storeu_ps(out + r * out_stride + b * kBlock, sum[r][b]);
}

template <int B>
void all_rows(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t block, float* out,
              std::int64_t out_stride) {
    using Some = void (*)(const Matrix&, const BFloat16*, std::int64_t, std::int64_t, float*, std::int64_t, int, int);
    constexpr Some kSome[kRows] = {some_rows<1, B>, some_rows<2, B>, some_rows<3, B>,
                                   some_rows<4, B>, some_rows<5, B>, some_rows<6, B>};
    const int turns = (rows + kRows - 1) / kRows;
    for (int turn = 0; turn < turns; ++turn) {
        const int first = rows * turn / turns, count = rows * (turn + 1) / turns - first;
        kSome[count - 1](w, x + first * x_stride, x_stride, block, out + first * out_stride, out_stride, turn, turns);
    }
}

}  // namespace

void prepare_pairs(const Matrix&, const BFloat16*, std::int64_t, int, std::byte*) {}

void product_pairs(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                   float* out, std::int64_t out_stride, std::byte*) {
    switch (blocks) {
        case 4: all_rows<4>(w, x, x_stride, rows, first_block, out, out_stride); break;
        case 3: all_rows<3>(w, x, x_stride, rows, first_block, out, out_stride); break;
        case 2: all_rows<2>(w, x, x_stride, rows, first_block, out, out_stride); break;
        default: all_rows<1>(w, x, x_stride, rows, first_block, out, out_stride); break;
    }
}

bool has_pairs() {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
    }();
    return has && instruction_set() == InstructionSet::avx512;
}

#else

// Never chosen: has_pairs() is false.
void prepare_pairs(const Matrix&, const BFloat16*, std::int64_t, int, std::byte*) { __builtin_trap(); }
void product_pairs(const Matrix&, const BFloat16*, std::int64_t, int, std::int64_t, int, float*, std::int64_t, std::byte*) {
    __builtin_trap();
}

bool has_pairs() { return false; }

#endif

}  // namespace ddtree::cpu
