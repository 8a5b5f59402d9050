// The weights of a linear layer, in the order in which a product reads them.
//
// Outputs stand in blocks of 16, inputs in groups of 32; block and group meet in a *tile*. Four blocks stand
// together: the tiles of their first group, then of their second, so that a worker reads one stream. What a tile
// holds, by storage (c: output within the block, k: input within the group):
//
//   float32   w[k][c]
//   bfloat16  w[k / 2][c][k % 2], the layout of an AMX tile
//   q4        16 bytes for each output: input 8 j + i is the j-th half-byte of the i-th 16-bit word; then a scale and
//             an offset for each output, float16: w = scale * level + offset
//   q8        32 signed bytes for each output; then a scale for each output, float16
//
// q4 and q8 weights are rounded to bfloat16 as they are read: they are what a bfloat16 copy of them would be, in a
// third or half of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ddtree/arithmetic.h"

namespace ddtree::cpu {

enum class Storage : int { float32 = 0, bfloat16 = 1, q4 = 2, q8 = 3 };

inline constexpr int kBlock = 16;
inline constexpr int kGroup = 32;
inline constexpr int kTogether = 4;

DDTREE_INLINE constexpr std::int64_t tile_bytes(Storage storage) {
    switch (storage) {
        case Storage::float32: return 2048;
        case Storage::bfloat16: return 1024;
        case Storage::q4: return 256 + 2 * 32;
        case Storage::q8: return 512 + 32;
    }
    return 0;
}

DDTREE_INLINE constexpr std::int64_t rounded_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// Memory in huge pages where the system has them: a pass reads all weights once, page by page.
struct Released {
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const;
};
using Memory = std::unique_ptr<std::byte[], Released>;
Memory huge_memory(std::size_t bytes);

struct Matrix {
    Storage storage = Storage::float32;
    std::int64_t outputs = 0;
    std::int64_t inputs = 0;
    Memory tiles;
    std::unique_ptr<float[]> bias;  // [outputs rounded up to blocks], or none

    DDTREE_INLINE std::int64_t blocks() const { return (outputs + kBlock - 1) / kBlock; }
    DDTREE_INLINE std::int64_t groups() const { return (inputs + kGroup - 1) / kGroup; }

    // The tile of (block, group); the next group of the same block is `step(block)` bytes further.
    DDTREE_INLINE const std::byte* tile(std::int64_t block, std::int64_t group) const {
        const std::int64_t first = block / kTogether * kTogether;
        return tiles.get() + ((first * groups()) + group * together(block) + (block - first)) * tile_bytes(storage);
    }
    DDTREE_INLINE std::int64_t step(std::int64_t block) const { return together(block) * tile_bytes(storage); }

    // Asks memory for a line of the tiles that a worker reads after these four blocks: a stream that is asked for
    // by hand comes twice as fast as one that the processor has to notice. tile: of group g; line: within its step.
    DDTREE_INLINE void ask_ahead(const std::byte* tile, std::int64_t block, int line) const {
        __builtin_prefetch(tile + groups() * step(block) + line * 64, 0, 2);
    }

   private:
    DDTREE_INLINE std::int64_t together(std::int64_t block) const {
        const std::int64_t left = blocks() - block / kTogether * kTogether;
        return left < kTogether ? left : kTogether;
    }
};

// weights: [outputs, inputs] row by row.
Matrix pack(const float* weights, std::int64_t outputs, std::int64_t inputs);
Matrix pack(const BFloat16* weights, std::int64_t outputs, std::int64_t inputs);

// GGUF's own blocks of 32 inputs, row by row: Q4_1 {scale f16, offset f16, 16 bytes}, Q4_0 {scale f16, 16 bytes} (low
// halves are inputs 0 to 15, high ones 16 to 31), Q8_0 {scale f16, 32 signed bytes}. inputs: a multiple of 32.
enum class GgufBlocks : int { q4_0 = 2, q4_1 = 3, q8_0 = 8 };
Matrix pack(const std::byte* blocks, GgufBlocks kind, std::int64_t outputs, std::int64_t inputs);

}  // namespace ddtree::cpu
