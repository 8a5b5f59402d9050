// Random rows and trees for the tests of the samplers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ddtree/retrieve.h"
#include "ddtree/sample.h"
#include "ddtree/sample_observe.h"
#include "harness.h"

namespace sample_cases {

using Words = std::vector<std::int64_t>;

// One worker with vectors of W floats.
template <int W>
struct Wide : ddtree::SerialBlock {
    static constexpr int kWidth = W;
};

// Scratch for one run, filled with what no algorithm may rely on.
template <class Scratch>
class Memory {
   public:
    template <class... Sizes>
    explicit Memory(Sizes... sizes) {
        ddtree::Carver counter{nullptr};
        Scratch::over(counter, sizes...);
        bytes_.assign(static_cast<std::size_t>(counter.used), std::byte{0xa5});
        ddtree::Carver carver{bytes_.data()};
        view_ = Scratch::over(carver, sizes...);
    }
    const Scratch& view() const { return view_; }

   private:
    std::vector<std::byte> bytes_;
    Scratch view_;
};

// A tree of nodes with tokens below `size`, equal ones among siblings now and then.
struct Tree {
    int nodes;
    Words tokens, index, next_token, next_sibling;
    std::vector<float> coins;

    Tree(Harness& h, std::int64_t size, int most_nodes) : nodes(h.integer(1, most_nodes)) {
        Words parents(nodes, -1);
        for (int node = 1; node < nodes; ++node) parents[node] = h.integer(h.chance(0.5) ? 0 : node / 2, node - 1);
        const int few = static_cast<int>(size < 6 ? size : 6);
        for (int node = 0; node < nodes; ++node) {
            const bool likely = h.chance(0.7);  // rows have their mass on the first tokens
            tokens.push_back(h.integer(0, (likely ? few : static_cast<int>(size)) - 1));
            coins.push_back(static_cast<float>(h.integer(0, (1 << 24) - 1)) * 0x1p-24f);
        }
        index.resize(nodes);
        next_token.resize(nodes);
        next_sibling.resize(nodes);
        ddtree::encode_tree(ddtree::SerialBlock{}, parents.data(), nodes, nodes, 0, index.data(), next_token.data(),
                            next_sibling.data());
        if (h.chance(0.1)) next_sibling[h.integer(0, nodes - 1)] = h.integer(-1, nodes);
        if (h.chance(0.05)) tokens[h.integer(0, nodes - 1)] = h.chance(0.5) ? -1 : size;
    }

    ddtree::WalkTree view(int depth, bool tokens_checked) const {
        return {tokens.data(), next_token.data(), next_sibling.data(), nodes, depth, tokens_checked};
    }
};

// Rows of logits: coarse ones are full of ties; some tokens are impossible; rarely something is wrong.
inline std::vector<float> random_logits(Harness& h, int rows, std::int64_t size) {
    const bool coarse = h.chance(0.4);
    const double spread = h.chance(0.3) ? 0.0 : 6.0 * h.uniform();
    const double impossible = h.chance(0.3) ? h.uniform() : 0.0;
    std::vector<float> logits;
    for (std::int64_t i = 0; i < rows * size; ++i) {
        const double value = spread * (h.uniform() - 0.5) + (i % size < 6 ? 4.0 * h.uniform() : 0.0);
        logits.push_back(static_cast<float>(coarse ? std::round(value) : value));
        if (h.chance(impossible)) logits.back() = -std::numeric_limits<float>::infinity();
    }
    const float wrong[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f};
    if (h.chance(0.2)) logits[h.integer(0, static_cast<int>(logits.size()) - 1)] = wrong[h.integer(0, 2)];
    return logits;
}

// Rows of probabilities out of the same.
inline std::vector<float> random_probs(Harness& h, int rows, std::int64_t size) {
    std::vector<float> probs = random_logits(h, rows, size);
    for (std::int64_t row = 0; row < rows; ++row) {
        double total = 0.0;
        for (std::int64_t i = 0; i < size; ++i) {
            float& p = probs[row * size + i];
            p = p < 60.0f ? std::exp(p) : p;
            if (p > 0.0f && p < 1e6f) total += p;
        }
        for (std::int64_t i = 0; i < size; ++i)
            if (total > 0.0) probs[row * size + i] = static_cast<float>(probs[row * size + i] / total);
    }
    if (h.chance(0.1)) probs[h.integer(0, static_cast<int>(probs.size()) - 1)] = -0.5f;
    return probs;
}

inline std::int64_t random_size(Harness& h) { return h.chance(0.3) ? h.integer(1, 40) : h.integer(41, 3500); }

inline ddtree::SamplingRule random_rule(Harness& h, std::int64_t size) {
    const float temperatures[] = {0.0f, 0.3f, 1.0f, 1.0f, 1.7f};
    ddtree::SamplingRule rule = {temperatures[h.integer(0, 4)], 0, 1.0};
    if (h.chance(0.5)) rule.top_k = h.integer(1, static_cast<int>(h.chance(0.5) ? size : 20));
    if (h.chance(0.5)) rule.top_p = h.chance(0.3) ? 0.5 : 1.0 - h.uniform() * h.uniform();
    return rule;
}

// Numbers as they are compared: bit for bit.
class Record {
   public:
    template <class T>
    void add(T value) {
        const auto exact = static_cast<double>(value);
        std::uint64_t bits;
        std::memcpy(&bits, &exact, sizeof bits);
        bits_.push_back(exact == exact ? bits : ~std::uint64_t{0});
    }
    bool operator==(const Record&) const = default;

   private:
    std::vector<std::uint64_t> bits_;
};

}  // namespace sample_cases
