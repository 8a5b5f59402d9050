// AMX tiles: 16 rows of 32 bfloat16, 16 rows of 16 sums. Tiles 0 to 3 hold sums in every product.
#pragma once

#include "cpu/forward.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <immintrin.h>

namespace ddtree::cpu {

inline constexpr int kTileRows = 16;
inline constexpr std::int64_t kTile = 1024;  // bytes of 16 rows of 32 bfloat16

struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {};  // of a row
    std::uint8_t rows[16] = {};

    void shape(int tile, int row_count, int byte_count) {
        rows[tile] = static_cast<std::uint8_t>(row_count);
        bytes[tile] = static_cast<std::uint16_t>(byte_count);
    }

    // The compiler believes that the intrinsic reads the first 8 bytes alone.
    void load() const {
        __asm__ volatile("" : : "r"(this) : "memory");
        _tile_loadconfig(this);
    }
};

// Products with q4 and q8 weights; product_amx.cpp has those with bfloat16 ones. x was prepared in `room`.
void prepare_unpacked(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::byte* room);
void multiply_unpacked(const Matrix& w, int rows, std::int64_t first_block, int blocks, float* out, std::int64_t out_stride,
                       std::byte* room);

}  // namespace ddtree::cpu

#endif
