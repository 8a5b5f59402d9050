// Products with q4 and q8 weights on AMX tiles. Weights are unpacked output by output, so they are the left side
// (tiles 4, 5) and x is the right (6, 7); sums come out by outputs and are turned.
#include "cpu/amx_tiles.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

namespace ddtree::cpu {

namespace {

// x as tiles of pairs: tile (rows 16 i to 16 i + 15, group) holds x[row][2 k], x[row][2 k + 1] at [k][row].
std::byte* pair_tile(std::byte* pairs, std::int64_t groups, std::int64_t i, std::int64_t g) {
    return pairs + (i * groups + g) * kTile;
}

// a[i][j] = a[j][i], 16 x 16 of 32 bits.
inline void transpose(__m512i (&a)[16]) {
    __m512i b[16];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int half = 0; half < 16; half += 8)
        for (int i = 0; i < 4; ++i) {
            b[half + i] = _mm512_shuffle_i32x4(a[half + i], a[half + 4 + i], 0x88);
            b[half + 4 + i] = _mm512_shuffle_i32x4(a[half + i], a[half + 4 + i], 0xdd);
        }
    for (int i = 0; i < 8; ++i) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    }
}

// Unpacks a tile: 16 outputs of 32 inputs each, as bfloat16.
template <Storage kStorage>
inline __attribute__((always_inline)) void unpack(const std::byte* tile, std::byte* room) {
    alignas(64) float scales[kBlock];
    const auto halves = [&](std::int64_t at) __attribute__((always_inline)) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + at)));
    };
    if constexpr (kStorage == Storage::q4) {
        // The 16 weights that an output's levels stand for, of two outputs side by side, are a table for both.
        alignas(64) float offsets[kBlock];
        _mm512_store_ps(scales, halves(256));
        _mm512_store_ps(offsets, halves(288));
        const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i shifts = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_setr_m128i(_mm_set1_epi16(0), _mm_set1_epi16(4))),
            _mm256_setr_m128i(_mm_set1_epi16(8), _mm_set1_epi16(12)), 1);
        const __m512i level = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
        for (int c = 0; c < kBlock; c += 2) {
            const auto table = [&](int o) __attribute__((always_inline)) {
                return _mm512_fmadd_ps(levels, _mm512_set1_ps(scales[o]), _mm512_set1_ps(offsets[o]));
            };
            const auto shifted = [&](int o) __attribute__((always_inline)) {
                const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + o * 16));
                return _mm512_srlv_epi16(_mm512_broadcast_i32x4(packed), shifts);
            };
            const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(table(c + 1), table(c)));
            const __m512i of_first = _mm512_and_si512(shifted(c), level);
            const __m512i of_second = _mm512_ternarylogic_epi32(shifted(c + 1), level, second, 0xea);  // (a & b) | c
            _mm512_store_si512(room + c * 64, _mm512_permutexvar_epi16(of_first, both));
            _mm512_store_si512(room + c * 64 + 64, _mm512_permutexvar_epi16(of_second, both));
        }
    } else {
        _mm512_store_ps(scales, halves(512));
        for (int c = 0; c < kBlock; ++c) {
            const auto part = [&](int at) __attribute__((always_inline)) {
                const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + c * 32 + at));
                return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), _mm512_set1_ps(scales[c]));
            };
            _mm512_store_si512(room + c * 64, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(part(16), part(0))));
        }
    }
}

constexpr std::int64_t kAhead = 4096;  // bytes from what is unpacked to what is asked for

template <Storage kStorage>
__attribute__((noinline)) void unpack_some(const std::byte* tiles, int count, std::byte* room) {
    for (std::int64_t at = 0; at < count * tile_bytes(kStorage); at += 64)
        _mm_prefetch(reinterpret_cast<const char*>(tiles + kAhead + at), _MM_HINT_T0);
    for (int b = 0; b < count; ++b) unpack<kStorage>(tiles + b * tile_bytes(kStorage), room + b * kTile);
}

void shape_for_outputs(int rows) {
    TileShapes shapes;
    const int first = rows < kTileRows ? rows : kTileRows, second = rows - first;
    for (const int tile : {0, 1}) shapes.shape(tile, kTileRows, 4 * first);
    for (const int tile : {2, 3}) shapes.shape(tile, kTileRows, 4 * (second > 0 ? second : first));
    for (const int tile : {4, 5}) shapes.shape(tile, kTileRows, 64);
    shapes.shape(6, kTileRows, 4 * first);
    shapes.shape(7, kTileRows, 4 * (second > 0 ? second : first));
    shapes.load();
}

struct Unpacking {
    const Matrix& w;
    std::int64_t block;
    const std::byte* pairs;  // of x, from the row group in work on
    std::byte* room;         // unpacked tiles of B blocks: two groups in turn, or all, kept for the rows that follow
    bool keep, kept;
    float* sums;  // [rows / 16][blocks][16 outputs][16 rows]
};

template <int B>
struct UnpackedTiles {
    const Unpacking& p;
    const std::byte* tiles;
    std::int64_t step, groups;

    explicit UnpackedTiles(const Unpacking& p)
        : p(p), tiles(p.w.tile(p.block, 0)), step(p.w.step(p.block)), groups(p.w.groups()) {
        fill(0);
    }
    inline __attribute__((always_inline)) std::byte* at(std::int64_t g) const {
        return p.room + (p.keep ? g : g & 1) * B * kTile;
    }
    inline __attribute__((always_inline)) void fill(std::int64_t g) const {
        if (p.kept || g >= groups) return;
        const auto unpack = p.w.storage == Storage::q4 ? unpack_some<Storage::q4> : unpack_some<Storage::q8>;
        unpack(tiles + g * step, B, at(g));
    }
    // The B tiles of group g, one after the other. Unpacks those of the next group on the way: a tile that was just
    // written is slow to read.
    inline __attribute__((always_inline)) const std::byte* take(std::int64_t g) const {
        fill(g + 1);
        __asm__ volatile("" : : : "memory");  // the compiler does not know that tile loads read memory
        return at(g);
    }
};

// Up to 16 rows.
template <int B>
void few_unpacked(const Unpacking& p) {
    const UnpackedTiles<B> weights(p);
    _tile_zero(0);
    if constexpr (B > 1) _tile_zero(1);
    if constexpr (B > 2) _tile_zero(2);
    if constexpr (B > 3) _tile_zero(3);
    for (std::int64_t g = 0; g < weights.groups; ++g) {
        const std::byte* tile = weights.take(g);
        _tile_loadd(6, p.pairs + g * kTile, 64);
        _tile_loadd(4, tile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (B > 1) {
            _tile_loadd(5, tile + kTile, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if constexpr (B > 2) {
            _tile_loadd(4, tile + 2 * kTile, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if constexpr (B > 3) {
            _tile_loadd(5, tile + 3 * kTile, 64);
            _tile_dpbf16ps(3, 5, 6);
        }
    }
    _tile_stored(0, p.sums, 64);
    if constexpr (B > 1) _tile_stored(1, p.sums + 256, 64);
    if constexpr (B > 2) _tile_stored(2, p.sums + 512, 64);
    if constexpr (B > 3) _tile_stored(3, p.sums + 768, 64);
}

// 17 to 32 rows; one or two blocks. The second 16 rows' sums stand 1,024 floats behind the first's.
template <int B>
void many_unpacked(const Unpacking& p) {
    const UnpackedTiles<B> weights(p);
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (B > 1) {
        _tile_zero(1);
        _tile_zero(3);
    }
    for (std::int64_t g = 0; g < weights.groups; ++g) {
        const std::byte* tile = weights.take(g);
        _tile_loadd(6, p.pairs + g * kTile, 64);
        _tile_loadd(7, p.pairs + (weights.groups + g) * kTile, 64);
        _tile_loadd(4, tile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 4, 7);
        if constexpr (B > 1) {
            _tile_loadd(5, tile + kTile, 64);
            _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, p.sums, 64);
    _tile_stored(2, p.sums + 1024, 64);
    if constexpr (B > 1) {
        _tile_stored(1, p.sums + 256, 64);
        _tile_stored(3, p.sums + 1024 + 256, 64);
    }
}

// sums [outputs][rows] of a block -> out [rows][outputs].
void give_rows(const float* sums, int rows, float* out, std::int64_t out_stride) {
    if (rows <= 2) {
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < kBlock; ++c) out[r * out_stride + c] = sums[c * kBlock + r];
        return;
    }
    __m512i block[kBlock];
    for (int c = 0; c < kBlock; ++c) block[c] = _mm512_loadu_si512(sums + c * kBlock);
    transpose(block);
    for (int r = 0; r < rows; ++r) _mm512_storeu_si512(out + r * out_stride, block[r]);
}

}  // namespace

void multiply_unpacked(const Matrix& w, int rows, std::int64_t first_block, int blocks, float* out, std::int64_t out_stride,
                       std::byte* room) {
    const std::int64_t groups = w.groups();
    const std::byte* pairs = room;
    std::byte* tiles = room + (rows + 15) / 16 * groups * kTile;
    alignas(64) float sums[2 * kTogether * 256];
    for (int first = 0; first < rows; first += 32) {
        const int some = rows - first < 32 ? rows - first : 32;
        shape_for_outputs(some);
        Unpacking u{w, first_block, pairs + first / 16 * groups * kTile, tiles, rows > 32, first > 0, sums};
        if (rows <= kTileRows) {
            switch (blocks) {
                case 4: few_unpacked<4>(u); break;
                case 3: few_unpacked<3>(u); break;
                case 2: few_unpacked<2>(u); break;
                default: few_unpacked<1>(u); break;
            }
        } else {
            for (int b = 0; b < blocks; b += 2) {
                const bool two = b + 1 < blocks;
                if (some > kTileRows)
                    two ? many_unpacked<2>(u) : many_unpacked<1>(u);
                else
                    two ? few_unpacked<2>(u) : few_unpacked<1>(u);
                u.block += 2;
                u.sums += 512;
                u.room += 2 * (u.keep ? groups : 2) * kTile;
            }
        }
        for (int b = 0; b < blocks; ++b)
            for (int half = 0; half * kTileRows < some; ++half) {
                const int left = some - half * kTileRows;
                give_rows(sums + half * 1024 + b * 256, left < kTileRows ? left : kTileRows,
                          out + (first + half * kTileRows) * out_stride + b * kBlock, out_stride);
            }
    }
}

void prepare_unpacked(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::byte* room) {
    for (int i = 0; i < (rows + 15) / 16; ++i)
        for (std::int64_t g = 0; g < w.groups(); ++g) {
            __m512i tile[kTileRows];
            for (int r = 0; r < kTileRows; ++r)
                tile[r] = i * 16 + r < rows ? _mm512_loadu_si512(x + (i * 16 + r) * x_stride + g * kGroup) : _mm512_setzero_si512();
            transpose(tile);
            std::byte* to = pair_tile(room, w.groups(), i, g);
            for (int k = 0; k < kTileRows; ++k) _mm512_store_si512(to + k * 64, tile[k]);
        }
}

}  // namespace ddtree::cpu

#endif
