// Coins: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <cstdint>

#include "ddtree/executor.h"

namespace ddtree {

struct Philox {
    std::uint32_t words[4];
};

// Ten rounds on a counter of 128 bits under a key of 64.
DDTREE_HD inline Philox philox4x32(Philox counter, std::uint32_t key_low, std::uint32_t key_high) {
    std::uint32_t* c = counter.words;
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0];
        const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c[2];
        const auto high = [](std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); };
        counter = {{high(b) ^ c[1] ^ key_low, static_cast<std::uint32_t>(b),
                    high(a) ^ c[3] ^ key_high, static_cast<std::uint32_t>(a)}};
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return counter;
}

// The uniform in [0, 1), a multiple of 2^-24, of a node in a step: a pure function of its arguments.
DDTREE_HD inline float node_coin(std::uint64_t seed, std::uint64_t step, std::uint32_t node, std::uint32_t stream) {
    const Philox counter = {{node, stream, static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)}};
    const Philox drawn =
        philox4x32(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    return static_cast<float>(drawn.words[0] >> 8) * 0x1p-24f;
}

inline constexpr std::uint32_t kNodeCoins = 0;  // stream of the coins of nodes
inline constexpr std::uint32_t kFinalCoin = 1;  // stream of the coin of the bonus token, counted as node 0

}  // namespace ddtree
