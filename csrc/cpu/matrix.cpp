#include "cpu/matrix.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace ddtree::cpu {

namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;

Matrix empty(Storage storage, std::int64_t outputs, std::int64_t inputs) {
    Matrix matrix{.storage = storage, .outputs = outputs, .inputs = inputs, .tiles = {}, .bias = {}};
    matrix.tiles = huge_memory(static_cast<std::size_t>(matrix.blocks() * matrix.groups() * tile_bytes(storage)));
    return matrix;
}

std::byte* tile_of(Matrix& matrix, std::int64_t output, std::int64_t group) {
    return const_cast<std::byte*>(matrix.tile(output / kBlock, group));
}

template <class T>
Matrix pack_plain(Storage storage, const T* weights, std::int64_t outputs, std::int64_t inputs) {
    Matrix matrix = empty(storage, outputs, inputs);
    for (std::int64_t o = 0; o < outputs; ++o) {
        const std::int64_t c = o % kBlock;
        for (std::int64_t i = 0; i < inputs; ++i) {
            const std::int64_t k = i % kGroup;
            const std::int64_t place = storage == Storage::float32 ? k * kBlock + c : (k / 2 * kBlock + c) * 2 + k % 2;
            reinterpret_cast<T*>(tile_of(matrix, o, i / kGroup))[place] = weights[o * inputs + i];
        }
    }
    return matrix;
}

std::uint16_t read_half(const std::byte* from) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

// -8 times a float16: three powers of two more, the sign turned; a subnormal is scaled by its mantissa.
std::uint16_t times_minus_eight(std::uint16_t half) {
    const float value = load<Vectors<1>>(reinterpret_cast<const Float16*>(&half)) * -8.0f;
    const _Float16 rounded = static_cast<_Float16>(value);
    std::uint16_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

}  // namespace

void Released::operator()(std::byte* memory) const { munmap(memory, bytes); }

Memory huge_memory(std::size_t bytes) {
    const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, whole, MADV_HUGEPAGE);
    return Memory(static_cast<std::byte*>(memory), Released{whole});
}

Matrix pack(const float* weights, std::int64_t outputs, std::int64_t inputs) {
    return pack_plain(Storage::float32, weights, outputs, inputs);
}

Matrix pack(const BFloat16* weights, std::int64_t outputs, std::int64_t inputs) {
    return pack_plain(Storage::bfloat16, weights, outputs, inputs);
}

Matrix pack(const std::byte* blocks, GgufBlocks kind, std::int64_t outputs, std::int64_t inputs) {
    const bool bytes = kind == GgufBlocks::q8_0;
    const std::int64_t head = kind == GgufBlocks::q4_1 ? 4 : 2;
    const std::int64_t size = head + (bytes ? 32 : 16);
    Matrix matrix = empty(bytes ? Storage::q8 : Storage::q4, outputs, inputs);
    for (std::int64_t o = 0; o < outputs; ++o) {
        const std::int64_t c = o % kBlock;
        for (std::int64_t g = 0; g < inputs / kGroup; ++g, blocks += size) {
            std::byte* tile = tile_of(matrix, o, g);
            const std::byte* levels = blocks + head;
            const std::uint16_t scale = read_half(blocks);
            if (bytes) {
                std::memcpy(tile + c * kGroup, levels, kGroup);
                std::memcpy(tile + 512 + 2 * c, &scale, sizeof scale);
                continue;
            }
            for (int k = 0; k < kGroup; ++k) {
                const std::byte level = k < 16 ? levels[k] & std::byte{15} : levels[k - 16] >> 4;
                tile[c * 16 + k % 8 * 2 + k / 16] |= k / 8 % 2 == 0 ? level : level << 4;
            }
            const std::uint16_t offset = kind == GgufBlocks::q4_1 ? read_half(blocks + 2) : times_minus_eight(scale);
            std::memcpy(tile + 256 + 2 * c, &scale, sizeof scale);
            std::memcpy(tile + 288 + 2 * c, &offset, sizeof offset);
        }
    }
    return matrix;
}

}  // namespace ddtree::cpu
