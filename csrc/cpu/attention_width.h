// Attention of a tree's rows over the committed prefix and their ancestors, for vectors of W floats.
//
// A row sees a sequence of keys: the committed tokens, then its ancestors and itself. Keys are taken W at a time
// in that order, with a running maximum and sum (online softmax, arXiv 1805.02867), so a row's result is that of
// plain decoding along its path. Whole blocks of the prefix are read once for all rows and heads of a key head.
#pragma once

#include "cpu/forward.h"

namespace ddtree::cpu {

inline constexpr int kRowsTogether = 32;     // that share a reading of the prefix
inline constexpr int kQueriesTogether = 8;   // that share a block of keys in registers

// Floats of a desk's attention scratch: a block of keys (transposed) and of values, scores, running states.
inline std::int64_t attention_floats(const Shape& shape) {
    const std::int64_t queries = kRowsTogether * (shape.heads / shape.key_heads);
    return 2 * 16 * shape.head_dim + 16 * kQueriesTogether + queries * (shape.head_dim + 2) + 64;
}

// Which lanes a shuffle takes, as data: made in place they cost more than the shuffle.
template <int W>
struct Shuffles {
    static constexpr int kSteps = W == 16 ? 4 : 3;  // 1, 2, 4 and 8 lanes apart
    std::int32_t low[kSteps][W] = {}, high[kSteps][W] = {}, other[kSteps][W] = {}, lane[W] = {};

    constexpr Shuffles() {
        for (int j = 0; j < W; ++j) {
            lane[j] = j;
            for (int step = 0; step < kSteps; ++step) {
                const int s = 1 << step;
                low[step][j] = (j & s) == 0 ? j : W + j - s;
                high[step][j] = (j & s) == 0 ? j + s : W + j;
                other[step][j] = j ^ s;
            }
        }
    }
};

template <int W>
alignas(64) inline constexpr Shuffles<W> kShuffles;

template <int W, class X>
struct TreeAttention {
    using Vec = Vectors<W>;
    using Float = typename Vec::Float;
    using Int = typename Vec::Int;

    const Shape& shape;
    float* keys;     // [head_dim][W]
    float* values;   // [W][head_dim]
    float* scores;   // [kQueriesTogether][W]
    float* maxima;   // [queries]
    float* sums;     // [queries]
    float* totals;   // [queries][head_dim]

    DDTREE_INLINE TreeAttention(const Shape& shape, float* scratch) : shape(shape) {
        const std::int64_t queries = kRowsTogether * (shape.heads / shape.key_heads);
        keys = scratch;
        values = keys + W * shape.head_dim;
        scores = values + W * shape.head_dim;
        maxima = scores + W * kQueriesTogether;
        sums = maxima + queries;
        totals = sums + queries;
    }

    // a[i][j] = a[j][i] over W vectors of W.
    static DDTREE_INLINE void transpose(Float (&a)[W]) {
#pragma GCC unroll 4
        for (int step = 0; step < Shuffles<W>::kSteps; ++step) {
            const Int low = read_vector<Int>(kShuffles<W>.low[step]), high = read_vector<Int>(kShuffles<W>.high[step]);
            const int s = 1 << step;
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                if ((i & s) != 0) continue;
                const Float first = a[i], second = a[i + s];
                a[i] = __builtin_shuffle(first, second, low);
                a[i + s] = __builtin_shuffle(first, second, high);
            }
        }
    }

    // Reads W keys and values; row(t) gives the address of the t-th of `count`, those behind repeat the last.
    template <class KeyRow, class ValueRow>
    DDTREE_INLINE void read_block(int count, KeyRow key, ValueRow value) const {
        for (std::int64_t d = 0; d < shape.head_dim; d += W) {
            Float block[W];
            for (int t = 0; t < W; ++t) block[t] = load<Vec>(key(t < count ? t : count - 1) + d);
            transpose(block);
            for (int i = 0; i < W; ++i) write_vector(keys + (d + i) * W, block[i]);
        }
        for (int t = 0; t < count; ++t) {
            const X* row = value(t);
            for (std::int64_t d = 0; d < shape.head_dim; d += W) write_vector(values + t * shape.head_dim + d, load<Vec>(row + d));
        }
    }

    template <int Q>
    DDTREE_INLINE void score(const float* const* queries) const {
        Float sum[Q] = {};
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            const Float key = load<Vec>(keys + d * W);
            for (int i = 0; i < Q; ++i) sum[i] += key * queries[i][d];
        }
        for (int i = 0; i < Q; ++i) write_vector(scores + i * W, sum[i]);
    }

    // v combined with itself over all lanes, by halves; every lane holds the result.
    template <class Combine>
    static DDTREE_INLINE Float over_lanes(Float v, Combine combine) {
#pragma GCC unroll 4
        for (int step = Shuffles<W>::kSteps - 1; step >= 0; --step)
            v = combine(v, __builtin_shuffle(v, read_vector<Int>(kShuffles<W>.other[step])));
        return v;
    }

    DDTREE_INLINE void score_some(int count, const float* const* queries) const {
        switch (count) {
            case 8: return score<8>(queries);
            case 7: return score<7>(queries);
            case 6: return score<6>(queries);
            case 5: return score<5>(queries);
            case 4: return score<4>(queries);
            case 3: return score<3>(queries);
            case 2: return score<2>(queries);
            default: return score<1>(queries);
        }
    }

    // Takes the block in for `count` queries whose states begin at `first`. live: keys of the block that count; of
    // query i those before skipped(i) are not seen.
    template <class Skipped>
    DDTREE_INLINE void take(std::int64_t first, int count, const float* const* queries, int live, Skipped skipped) const {
        score_some(count, queries);
        const Int lane = read_vector<Int>(kShuffles<W>.lane);
        const auto higher = [](Float a, Float b) __attribute__((always_inline)) { return a > b ? a : b; };
        const auto add = [](Float a, Float b) __attribute__((always_inline)) { return a + b; };
        float kept[kQueriesTogether];
        int from[kQueriesTogether];
        for (int i = 0; i < count; ++i) {
            Float s = load<Vec>(scores + i * W);
            from[i] = skipped(i);
            if (live < W || from[i] > 0) s = ((lane < live) & (lane >= from[i])) ? s : splat<Float>(-__builtin_inff());
            const Float before = splat<Float>(maxima[first + i]);
            const Float maximum = higher(over_lanes(s, higher), before);
            if (from[i] >= live) {  // nothing seen: the state stays
                kept[i] = 1.0f;
                continue;
            }
            const Float p = exp_nonpositive<Float, Int>(s - maximum);
            write_vector(scores + i * W, p);
            kept[i] = exp_nonpositive<Float, Int>(before - maximum)[0];
            maxima[first + i] = maximum[0];
            sums[first + i] = sums[first + i] * kept[i] + over_lanes(p, add)[0];
        }
        int i = 0;
        for (; i + 2 <= count; i += 2) {
            if (from[i] == from[i + 1])
                add_values<2>(first + i, i, kept + i, from[i], live);
            else
                for (int j = i; j < i + 2; ++j) add_values<1>(first + j, j, kept + j, from[j], live);
        }
        if (i < count) add_values<1>(first + i, i, kept + i, from[i], live);
    }

    // totals = totals * kept + p values, for Q queries that see the same keys of the block.
    template <int Q>
    DDTREE_INLINE void add_values(std::int64_t first, int place, const float* kept, int from, int live) const {
        std::int64_t d = 0;
        for (; d + 4 * W <= shape.head_dim; d += 4 * W) add_some<Q, 4>(first, place, kept, from, live, d);
        for (; d < shape.head_dim; d += W) add_some<Q, 1>(first, place, kept, from, live, d);
    }

    template <int Q, int N>
    DDTREE_INLINE void add_some(std::int64_t first, int place, const float* kept, int from, int live, std::int64_t d) const {
        Float sum[Q][N];
        for (int q = 0; q < Q; ++q)
            for (int j = 0; j < N; ++j) sum[q][j] = load<Vec>(totals + (first + q) * shape.head_dim + d + j * W) * kept[q];
        for (int t = from; t < live; ++t)
            for (int j = 0; j < N; ++j) {
                const Float value = load<Vec>(values + t * shape.head_dim + d + j * W);
                for (int q = 0; q < Q; ++q) sum[q][j] += value * scores[(place + q) * W + t];
            }
        for (int q = 0; q < Q; ++q)
            for (int j = 0; j < N; ++j) write_vector(totals + (first + q) * shape.head_dim + d + j * W, sum[q][j]);
    }

    // Rows [begin, end) of key head h.
    DDTREE_INLINE void run(const Pass<X>& pass, const Workspace<X>& space, const Layer& layer, int index, std::int64_t h,
                           int begin, int end) const {
        const std::int64_t dim = shape.head_dim, groups = shape.heads / shape.key_heads;
        const X* head_keys = pass.keys[index] + h * pass.capacity * dim;
        const X* head_values = pass.values[index] + h * pass.capacity * dim;
        const std::int64_t count = (end - begin) * groups;
        for (std::int64_t q = 0; q < count; ++q) {
            maxima[q] = -__builtin_inff();
            sums[q] = 0;
        }
        __builtin_memset(totals, 0, static_cast<std::size_t>(count * dim) * sizeof(float));
        const auto query = [&](std::int64_t q) __attribute__((always_inline)) {
            return space.queries + ((begin + q / groups) * shape.heads + h * groups + q % groups) * dim;
        };
        const auto unseen = [&](int row) __attribute__((always_inline)) {  // tokens before the row's window
            const std::int64_t behind = pass.positions[row] + 1 - layer.window;
            return layer.window > 0 && behind > 0 ? behind : std::int64_t{0};
        };
        std::int64_t from = pass.length;
        for (int row = begin; row < end; ++row) from = unseen(row) < from ? unseen(row) : from;
        const std::int64_t whole = pass.length / W * W;
        for (std::int64_t t = from / W * W; t < whole; t += W) {
            read_block(W, [&](int i) { return head_keys + (t + i) * dim; }, [&](int i) { return head_values + (t + i) * dim; });
            for (std::int64_t q = 0; q < count; q += kQueriesTogether) {
                const int some = static_cast<int>(count - q < kQueriesTogether ? count - q : kQueriesTogether);
                const float* queries[kQueriesTogether];
                for (int i = 0; i < some; ++i) queries[i] = query(q + i);
                take(q, some, queries, W, [&](int i) __attribute__((always_inline)) {
                    const std::int64_t skip = unseen(begin + static_cast<int>((q + i) / groups)) - t;
                    return static_cast<int>(skip < 0 ? 0 : skip > W ? W : skip);
                });
            }
        }
        for (int row = begin; row < end; ++row) {
            finish(pass, space, row, whole, head_keys, head_values, (row - begin) * groups, h, unseen(row));
        }
    }

    // The rest of the prefix, the row's ancestors and itself; then the row's quotients.
    DDTREE_INLINE void finish(const Pass<X>& pass, const Workspace<X>& space, int row, std::int64_t whole, const X* head_keys,
                              const X* head_values, std::int64_t first, std::int64_t h, std::int64_t unseen) const {
        const std::int64_t dim = shape.head_dim, groups = shape.heads / shape.key_heads;
        const std::int32_t* ancestors = space.seen + space.seen_first[row];
        const std::int64_t rest = pass.length - whole;
        const std::int64_t all = rest + space.seen_first[row + 1] - space.seen_first[row];
        for (std::int64_t t = 0; t < all; t += W) {
            const int live = static_cast<int>(all - t < W ? all - t : W);
            const auto place = [&](int i) __attribute__((always_inline)) {
                return (t + i < rest ? whole + t + i : pass.length + ancestors[t + i - rest]) * dim;
            };
            read_block(live, [&](int i) { return head_keys + place(i); }, [&](int i) { return head_values + place(i); });
            const std::int64_t skip = unseen - (whole + t);  // along a path the t-th key stands at position whole + t
            for (std::int64_t g = 0; g < groups; g += kQueriesTogether) {
                const int some = static_cast<int>(groups - g < kQueriesTogether ? groups - g : kQueriesTogether);
                const float* queries[kQueriesTogether];
                for (int i = 0; i < some; ++i) queries[i] = space.queries + (row * shape.heads + h * groups + g + i) * dim;
                take(first + g, some, queries, live, [&](int) { return static_cast<int>(skip < 0 ? 0 : skip > W ? W : skip); });
            }
        }
        for (std::int64_t g = 0; g < groups; ++g) {
            const float inverse = 1.0f / sums[first + g];
            const float* total = totals + (first + g) * dim;
            X* out = space.attended + row * space.attended_stride + (h * groups + g) * dim;
            for (std::int64_t d = 0; d < dim; d += W) store<Vec>(out + d, load<Vec>(total + d) * inverse);
        }
    }

    template <class V>
    static DDTREE_INLINE void store(float* to, typename V::Float value) {
        write_vector(to, value);
    }
    // To the nearest, halves to even; a NaN stays one.
    template <class V>
    static DDTREE_INLINE void store(BFloat16* to, typename V::Float value) {
        const auto bits = std::bit_cast<typename V::Int>(value);
        const typename V::Int rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const typename V::Int kept = value == value ? rounded : (typename V::Int){} + 0x7fc0;
        write_vector(to, __builtin_convertvector(kept, typename V::Short));
    }
};

}  // namespace ddtree::cpu
