// Passes of a small random decoder on several workers against one: the same bits, without a race.
// Usage: forward [passes]
#include "cpu/forward.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using namespace ddtree::cpu;

namespace {

constexpr Shape kShape{64, 4, 2, 16, 96, 83, 1e-5f, 0.25f};
constexpr int kLayers = 2, kCapacity = 96, kMostRows = 20, kPositions = 128;

std::mt19937 generator(7);

std::vector<float> random_floats(std::int64_t count, float size) {
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(generator);
    return values;
}

Matrix random_matrix(std::int64_t outputs, std::int64_t inputs) {
    return pack(random_floats(outputs * inputs, 0.2f).data(), outputs, inputs);
}

Model<float> random_model(const std::vector<float>& embedding) {
    Model<float> model;
    model.shape = kShape;
    const std::int64_t dim = kShape.head_dim, heads = kShape.heads + 2 * kShape.key_heads;
    for (int i = 0; i < kLayers; ++i) {
        const std::vector<float> ones(static_cast<std::size_t>(kShape.width), 1.0f);
        model.layers.push_back({random_matrix(heads * dim, kShape.width), random_matrix(kShape.width, kShape.heads * dim),
                                random_matrix(2 * kShape.gated, kShape.width), random_matrix(kShape.width, kShape.gated), ones,
                                ones, {}, {}, i == 0 ? 0 : 24});
    }
    model.final_norm.assign(static_cast<std::size_t>(kShape.width), 1.0f);
    model.head = random_matrix(kShape.vocabulary, kShape.width);
    model.embedding = embedding.data();
    for (int p = 0; p < kPositions; ++p)
        for (int i = 0; i < dim / 2; ++i) {
            model.cosines.push_back(std::cos(0.1f * static_cast<float>(p * (i + 1))));
            model.sines.push_back(std::sin(0.1f * static_cast<float>(p * (i + 1))));
        }
    return model;
}

struct Tree {
    std::vector<std::int64_t> token_ids, positions;
    std::unique_ptr<bool[]> visibility;

    Tree(int rows, std::int64_t length) : visibility(std::make_unique<bool[]>(static_cast<std::size_t>(rows * rows))) {
        for (int row = 0; row < rows; ++row) {
            const int parent = row == 0 ? -1 : static_cast<int>(generator() % static_cast<unsigned>(row));
            token_ids.push_back(static_cast<std::int64_t>(generator() % static_cast<unsigned>(kShape.vocabulary)));
            positions.push_back(parent < 0 ? length : positions[static_cast<std::size_t>(parent)] + 1);
            for (int other = 0; other <= row; ++other)
                visibility[row * rows + other] = other == row || (parent >= 0 && visibility[parent * rows + other]);
        }
    }
};

struct Result {
    std::vector<float> cache, logits;
    bool operator==(const Result& other) const { return cache == other.cache && logits == other.logits; }
};

Result pass_on(Forward<float>& forward, const Tree& tree, std::int64_t length, std::vector<float> cache, int workers) {
    const int rows = static_cast<int>(tree.token_ids.size());
    const std::int64_t stride = kShape.key_heads * kCapacity * kShape.head_dim;
    std::vector<float> logits(static_cast<std::size_t>(rows * kShape.vocabulary));
    std::vector<float*> keys, values, taps;
    for (int i = 0; i < kLayers; ++i) {
        keys.push_back(cache.data() + 2 * i * stride);
        values.push_back(cache.data() + (2 * i + 1) * stride);
        taps.push_back(nullptr);
    }
    Pass<float> pass{};
    pass.rows = rows;
    pass.length = length;
    pass.capacity = kCapacity;
    pass.token_ids = tree.token_ids.data();
    pass.positions = tree.positions.data();
    pass.visibility = tree.visibility.get();
    pass.keys = keys.data();
    pass.values = values.data();
    pass.taps = taps.data();
    pass.logits = logits.data();
    forward.run(pass, workers);
    return {std::move(cache), std::move(logits)};
}

}  // namespace

int main(int count, char** arguments) {
    if (!can_run_forward()) {
        std::puts("this machine has no AVX2");
        return 0;
    }
    const int passes = count > 1 ? std::atoi(arguments[1]) : 20;
    const std::vector<float> embedding = random_floats(kShape.vocabulary * kShape.width, 1.0f);
    Forward<float> forward(random_model(embedding));
    const std::vector<float> cache = random_floats(2 * kLayers * kShape.key_heads * kCapacity * kShape.head_dim, 1.0f);
    for (int i = 0; i < passes; ++i) {
        const int rows = 1 + static_cast<int>(generator() % kMostRows);
        const std::int64_t length = static_cast<std::int64_t>(generator() % (kCapacity - kMostRows));
        const Tree tree(rows, length);
        const Result alone = pass_on(forward, tree, length, cache, 1);
        for (int workers = 2; workers <= 4; ++workers)
            if (!(pass_on(forward, tree, length, cache, workers) == alone)) {
                std::printf("pass %d of %d rows after %lld tokens differs on %d workers\n", i, rows,
                            static_cast<long long>(length), workers);
                return 1;
            }
    }
    std::printf("%d passes\n", passes);
    return 0;
}
