// Products on AMX tiles: 16 rows by 16 outputs at a time, 32 inputs deep.
#include "cpu/amx_tiles.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ddtree::cpu {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

namespace {

// ---- bfloat16 weights: rows of x (tiles 4, 5) times weights (6, 7), as both lie in memory ----

void shape_for_rows(int rows) {
    TileShapes shapes;
    const int first = rows < kTileRows ? rows : kTileRows, second = rows - first;
    const bool two = second > 0;
    for (const int tile : {0, 1, 4}) shapes.shape(tile, first, 64);
    for (const int tile : {2, 3, 5}) shapes.shape(tile, two ? second : first, 64);
    for (const int tile : {6, 7}) shapes.shape(tile, kTileRows, 64);
    shapes.load();
}

struct Place {
    const Matrix& w;
    const BFloat16* x;
    std::int64_t x_stride;
    std::int64_t block;
    float* out;
    std::int64_t out_stride;
};

// Up to 16 rows; B blocks in tiles 0 to B - 1.
template <int B>
void few_rows(const Place& p) {
    const std::int64_t step = p.w.step(p.block), x_bytes = p.x_stride * 2, out_bytes = p.out_stride * 4;
    const std::byte* tile = p.w.tile(p.block, 0);
    _tile_zero(0);
    if constexpr (B > 1) _tile_zero(1);
    if constexpr (B > 2) _tile_zero(2);
    if constexpr (B > 3) _tile_zero(3);
    for (std::int64_t g = 0; g < p.w.groups(); ++g, tile += step) {
        _tile_loadd(4, p.x + g * kGroup, x_bytes);
        _tile_loadd(6, tile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (B > 1) {
            _tile_loadd(7, tile + kTile, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (B > 2) {
            _tile_loadd(6, tile + 2 * kTile, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if constexpr (B > 3) {
            _tile_loadd(7, tile + 3 * kTile, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, p.out, out_bytes);
    if constexpr (B > 1) _tile_stored(1, p.out + kBlock, out_bytes);
    if constexpr (B > 2) _tile_stored(2, p.out + 2 * kBlock, out_bytes);
    if constexpr (B > 3) _tile_stored(3, p.out + 3 * kBlock, out_bytes);
}

// 17 to 32 rows; one or two blocks.
template <int B>
void many_rows(const Place& p) {
    const std::int64_t step = p.w.step(p.block), x_bytes = p.x_stride * 2, out_bytes = p.out_stride * 4;
    const std::byte* tile = p.w.tile(p.block, 0);
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (B > 1) {
        _tile_zero(1);
        _tile_zero(3);
    }
    for (std::int64_t g = 0; g < p.w.groups(); ++g, tile += step) {
        _tile_loadd(4, p.x + g * kGroup, x_bytes);
        _tile_loadd(5, p.x + kTileRows * p.x_stride + g * kGroup, x_bytes);
        _tile_loadd(6, tile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (B > 1) {
            _tile_loadd(7, tile + kTile, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    float* second = p.out + kTileRows * p.out_stride;
    _tile_stored(0, p.out, out_bytes);
    _tile_stored(2, second, out_bytes);
    if constexpr (B > 1) {
        _tile_stored(1, p.out + kBlock, out_bytes);
        _tile_stored(3, second + kBlock, out_bytes);
    }
}

void multiply_plain(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                    float* out, std::int64_t out_stride) {
    for (int first = 0; first < rows; first += 32) {
        const int some = rows - first < 32 ? rows - first : 32;
        shape_for_rows(some);
        Place place{w, x + first * x_stride, x_stride, first_block, out + first * out_stride, out_stride};
        if (some <= kTileRows) {
            switch (blocks) {
                case 4: few_rows<4>(place); break;
                case 3: few_rows<3>(place); break;
                case 2: few_rows<2>(place); break;
                default: few_rows<1>(place); break;
            }
            continue;
        }
        for (int b = 0; b < blocks; b += 2) {
            if (b + 1 < blocks)
                many_rows<2>(place);
            else
                many_rows<1>(place);
            place.block += 2;
            place.out += 2 * kBlock;
        }
    }
}

}  // namespace

void prepare_amx(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::byte* room) {
    if (w.storage != Storage::bfloat16) prepare_unpacked(w, x, x_stride, rows, room);
}

void product_amx(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                 float* out, std::int64_t out_stride, std::byte* room) {
    if (w.storage == Storage::bfloat16)
        multiply_plain(w, x, x_stride, rows, first_block, blocks, out, out_stride);
    else
        multiply_unpacked(w, rows, first_block, blocks, out, out_stride, room);
    _tile_release();
}

bool has_amx() {
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
        const bool tiles = (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;  // AMX-BF16, AMX-TILE
        if (!tiles || __get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
        if ((a >> 5 & 1) == 0) return false;  // AVX512-BF16
        constexpr long kAskForState = 0x1023, kTileData = 18;
        return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
    }();
    return has;
}

#else

// Never chosen: has_amx() is false.
void prepare_amx(const Matrix&, const BFloat16*, std::int64_t, int, std::byte*) { __builtin_trap(); }
void product_amx(const Matrix&, const BFloat16*, std::int64_t, int, std::int64_t, int, float*, std::int64_t, std::byte*) {
    __builtin_trap();
}

bool has_amx() { return false; }

#endif

}  // namespace ddtree::cpu
