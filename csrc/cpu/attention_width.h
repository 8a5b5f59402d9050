// Attention of a tree's rows over the committed prefix and their ancestors, for vectors of W floats.
//
// A row sees a sequence of keys: the committed tokens, then its ancestors and itself. Keys are taken 4 W at a time
// in that order, with a running maximum and sum (online softmax, arXiv 1805.02867), so a row's result is that of
// plain decoding along its path. Whole blocks of the prefix are read once for all rows and heads of a key head.
#pragma once

#include "cpu/forward.h"

namespace ddtree::cpu {

inline constexpr int kRowsTogether = 32;     // that share a reading of the prefix
inline constexpr int kQueriesTogether = 8;   // that share a block of keys in registers

// Keys of the last, unfinished block of the prefix, and the pass's own: read once, seen by each row in its own way.
DDTREE_INLINE constexpr std::int64_t most_rest(int rows) { return rounded_up(63 + rows, 64); }

// Floats of a desk's attention scratch: a block of keys (transposed) and of values, scores, running states.
inline std::int64_t attention_floats(const Shape& shape, int rows) {
    const std::int64_t queries = kRowsTogether * (shape.heads / shape.key_heads);
    return 2 * 64 * shape.head_dim + 64 * kQueriesTogether + queries * (shape.head_dim + 2 + most_rest(rows)) +
           most_rest(rows) * shape.head_dim + 64;
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
    static constexpr int kVectors = 4;
    static constexpr int kKeys = kVectors * W;  // of a block

    const Shape& shape;
    float* keys;     // [head_dim][kKeys]
    float* values;   // [kKeys][head_dim]
    float* scores;   // [kQueriesTogether][kKeys]
    float* maxima;   // [queries]
    float* sums;     // [queries]
    float* totals;   // [queries][head_dim]
    std::int64_t most;   // keys of the rest
    float* rest_scores;  // [queries][most]
    float* rest_values;  // [most][head_dim]

    DDTREE_INLINE TreeAttention(const Shape& shape, int rows, float* scratch) : shape(shape), most(most_rest(rows)) {
        const std::int64_t queries = kRowsTogether * (shape.heads / shape.key_heads);
        keys = scratch;
        values = keys + kKeys * shape.head_dim;
        scores = values + kKeys * shape.head_dim;
        maxima = scores + kKeys * kQueriesTogether;
        sums = maxima + queries;
        totals = sums + queries;
        rest_scores = totals + queries * shape.head_dim;
        rest_values = rest_scores + queries * most;
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

    // Reads `count` keys, a block at most, and their values, from `key` and `value` on; values go to `to`.
    DDTREE_INLINE void read_block(int count, const X* key, const X* value, float* to) const {
        const std::int64_t dim = shape.head_dim;
        for (int first = 0; first < count; first += W)
            for (std::int64_t d = 0; d < dim; d += W) {
                Float block[W];
                for (int t = 0; t < W; ++t) block[t] = load<Vec>(key + (first + t < count ? first + t : count - 1) * dim + d);
                transpose(block);
                for (int i = 0; i < W; ++i) write_vector(keys + (d + i) * kKeys + first, block[i]);
            }
        for (std::int64_t i = 0; i < count * dim; i += W) write_vector(to + i, load<Vec>(value + i));
    }

    // out[i][kKeys] = queries[i] times the block's keys, for Q queries.
    template <int Q>
    DDTREE_INLINE void score(const float* const* queries, float* out, std::int64_t stride) const {
        Float sum[Q][kVectors] = {};
        for (std::int64_t d = 0; d < shape.head_dim; ++d)
            for (int v = 0; v < kVectors; ++v) {
                const Float key = load<Vec>(keys + d * kKeys + v * W);
                for (int i = 0; i < Q; ++i) sum[i][v] += key * queries[i][d];
            }
        for (int i = 0; i < Q; ++i)
            for (int v = 0; v < kVectors; ++v) write_vector(out + i * stride + v * W, sum[i][v]);
    }

    DDTREE_INLINE void score_some(int count, const float* const* queries, float* out, std::int64_t stride) const {
        constexpr int kTogether = W == 16 ? 4 : 2;
        int i = 0;
        for (; i + kTogether <= count; i += kTogether) score<kTogether>(queries + i, out + i * stride, stride);
        for (; i < count; ++i) score<1>(queries + i, out + i * stride, stride);
    }

    // v combined with itself over all lanes, by halves; every lane holds the result.
    template <class Combine>
    static DDTREE_INLINE Float over_lanes(Float v, Combine combine) {
#pragma GCC unroll 4
        for (int step = Shuffles<W>::kSteps - 1; step >= 0; --step)
            v = combine(v, __builtin_shuffle(v, read_vector<Int>(kShuffles<W>.other[step])));
        return v;
    }

    // Takes a block of keys in for `count` queries whose states begin at `first`; their scores are in `scores`. live:
    // keys of the block that count; of query i those before skipped(i) are not seen. value(t): the t-th key's value.
    template <class Skipped, class Value>
    DDTREE_INLINE void take(std::int64_t first, int count, int live, Skipped skipped, Value value) const {
        const Int lane = read_vector<Int>(kShuffles<W>.lane);
        const auto higher = [](Float a, Float b) __attribute__((always_inline)) { return a > b ? a : b; };
        const auto add = [](Float a, Float b) __attribute__((always_inline)) { return a + b; };
        float kept[kQueriesTogether];
        int from[kQueriesTogether];
        for (int i = 0; i < count; ++i) {
            from[i] = skipped(i);
            kept[i] = 1.0f;
            if (from[i] >= live) continue;  // nothing seen: the state stays
            Float s[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                s[v] = load<Vec>(scores + i * kKeys + v * W);
                const Int key = lane + v * W;
                if (live < kKeys || from[i] > 0)
                    s[v] = ((key < live) & (key >= from[i])) ? s[v] : splat<Float>(-__builtin_inff());
            }
            const Float before = splat<Float>(maxima[first + i]);
            const Float maximum =
                higher(over_lanes(higher(higher(s[0], s[1]), higher(s[2], s[3])), higher), before);
            for (int v = 0; v < kVectors; ++v) {
                s[v] = exp_nonpositive<Float, Int>(s[v] - maximum);
                write_vector(scores + i * kKeys + v * W, s[v]);
            }
            kept[i] = exp_nonpositive<Float, Int>(before - maximum)[0];
            maxima[first + i] = maximum[0];
            sums[first + i] = sums[first + i] * kept[i] + over_lanes((s[0] + s[1]) + (s[2] + s[3]), add)[0];
        }
        int i = 0;
        for (; i + 2 <= count; i += 2) {
            if (from[i] == from[i + 1])
                add_values<2>(first + i, i, kept + i, from[i], live, value);
            else
                for (int j = i; j < i + 2; ++j) add_values<1>(first + j, j, kept + j, from[j], live, value);
        }
        if (i < count) add_values<1>(first + i, i, kept + i, from[i], live, value);
    }

    // totals = totals * kept + p values, for Q queries that see the same keys of the block.
    template <int Q, class Value>
    DDTREE_INLINE void add_values(std::int64_t first, int place, const float* kept, int from, int live, Value value) const {
        std::int64_t d = 0;
        for (; d + 4 * W <= shape.head_dim; d += 4 * W) add_some<Q, 4>(first, place, kept, from, live, value, d);
        for (; d < shape.head_dim; d += W) add_some<Q, 1>(first, place, kept, from, live, value, d);
    }

    template <int Q, int N, class Value>
    DDTREE_INLINE void add_some(std::int64_t first, int place, const float* kept, int from, int live, Value value,
                                std::int64_t d) const {
        Float sum[Q][N];
        for (int q = 0; q < Q; ++q)
            for (int j = 0; j < N; ++j) sum[q][j] = load<Vec>(totals + (first + q) * shape.head_dim + d + j * W) * kept[q];
        for (int t = from; t < live; ++t) {
            const float* row = value(t) + d;
            for (int j = 0; j < N; ++j) {
                const Float part = load<Vec>(row + j * W);
                for (int q = 0; q < Q; ++q) sum[q][j] += part * scores[(place + q) * kKeys + t];
            }
        }
        for (int q = 0; q < Q; ++q)
            for (int j = 0; j < N; ++j) write_vector(totals + (first + q) * shape.head_dim + d + j * W, sum[q][j]);
    }

    // What the rows [begin, end) of key head h work on.
    struct Part {
        const Pass<X>& pass;
        const Workspace<X>& space;
        const X* keys;
        const X* values;
        std::int64_t h, window, groups, dim, heads;
        int begin, end;

        DDTREE_INLINE std::int64_t count() const { return (end - begin) * groups; }
        DDTREE_INLINE const float* query(int row, std::int64_t g) const {
            return space.queries + (row * heads + h * groups + g) * dim;
        }
        // Tokens before the row's window.
        DDTREE_INLINE std::int64_t unseen(int row) const {
            const std::int64_t behind = pass.positions[row] + 1 - window;
            return window > 0 && behind > 0 ? behind : 0;
        }
    };

    // Calls use(first, count, queries) for all queries of the part, a few at a time; first counts from the part's.
    template <class Use>
    DDTREE_INLINE void each_few(const Part& part, Use use) const {
        const float* queries[kQueriesTogether];
        std::int64_t first = 0;
        int held = 0;
        for (int row = part.begin; row < part.end; ++row)
            for (std::int64_t g = 0; g < part.groups; ++g) {
                queries[held++] = part.query(row, g);
                if (held < kQueriesTogether && first + held < part.count()) continue;
                use(first, held, queries);
                first += held;
                held = 0;
            }
    }

    // Rows [begin, end) of key head h.
    DDTREE_INLINE void run(const Pass<X>& pass, const Workspace<X>& space, const Layer& layer, int index, std::int64_t h,
                           int begin, int end) const {
        const std::int64_t dim = shape.head_dim;
        const Part part{pass, space, pass.keys[index] + h * pass.capacity * dim, pass.values[index] + h * pass.capacity * dim,
                        h, layer.window, shape.heads / shape.key_heads, dim, shape.heads, begin, end};
        for (std::int64_t q = 0; q < part.count(); ++q) {
            maxima[q] = -__builtin_inff();
            sums[q] = 0;
        }
        __builtin_memset(totals, 0, static_cast<std::size_t>(part.count() * dim) * sizeof(float));
        const std::int64_t whole = pass.length / kKeys * kKeys;
        take_prefix(part, whole);
        score_rest(part, whole);
        for (int row = begin; row < end; ++row) {
            take_rest(part, whole, row);
            finish(part, row);
        }
    }

    // The prefix's whole blocks, for all rows at once.
    DDTREE_INLINE void take_prefix(const Part& part, std::int64_t whole) const {
        std::int64_t from = whole;
        for (int row = part.begin; row < part.end; ++row) from = part.unseen(row) < from ? part.unseen(row) : from;
        for (std::int64_t t = from / kKeys * kKeys; t < whole; t += kKeys) {
            read_block(kKeys, part.keys + t * part.dim, part.values + t * part.dim, values);
            each_few(part, [&](std::int64_t first, int count, const float* const* queries) __attribute__((always_inline)) {
                score_some(count, queries, scores, kKeys);
                const auto skipped = [&](int i) __attribute__((always_inline)) {
                    if (part.window == 0) return 0;
                    const std::int64_t skip = part.unseen(part.begin + static_cast<int>((first + i) / part.groups)) - t;
                    return static_cast<int>(skip < 0 ? 0 : skip > kKeys ? kKeys : skip);
                };
                take(first, count, kKeys, skipped, [&](int i) __attribute__((always_inline)) { return values + i * part.dim; });
            });
        }
    }

    // Scores of all queries with the rest of the prefix and with every row of the pass up to the part's last: a score
    // depends on its key alone, so each row can pick its own afterwards.
    DDTREE_INLINE void score_rest(const Part& part, std::int64_t whole) const {
        const std::int64_t all = part.pass.length - whole + part.end;
        for (std::int64_t t = 0; t < all; t += kKeys) {
            const int live = static_cast<int>(all - t < kKeys ? all - t : kKeys);
            read_block(live, part.keys + (whole + t) * part.dim, part.values + (whole + t) * part.dim, rest_values + t * part.dim);
            each_few(part, [&](std::int64_t first, int count, const float* const* queries) __attribute__((always_inline)) {
                score_some(count, queries, rest_scores + first * most + t, most);
            });
        }
    }

    // The rest of the prefix, the row's ancestors and itself, in this order: as plain decoding along its path has them.
    DDTREE_INLINE void take_rest(const Part& part, std::int64_t whole, int row) const {
        const Workspace<X>& space = part.space;
        const std::int32_t* ancestors = space.seen + space.seen_first[row];
        const std::int64_t rest = part.pass.length - whole;
        const std::int64_t all = rest + space.seen_first[row + 1] - space.seen_first[row];
        const std::int64_t first = (row - part.begin) * part.groups;
        for (std::int64_t t = 0; t < all; t += kKeys) {
            const int live = static_cast<int>(all - t < kKeys ? all - t : kKeys);
            std::int32_t places[kKeys];
            for (int i = 0; i < live; ++i) {
                const std::int64_t at = t + i;
                places[i] = static_cast<std::int32_t>(at < rest ? at : rest + ancestors[at - rest]);
            }
            const std::int64_t skip = part.unseen(row) - (whole + t);  // along a path the t-th key stands at whole + t
            const int skipped = static_cast<int>(skip < 0 ? 0 : skip > kKeys ? kKeys : skip);
            for (std::int64_t g = 0; g < part.groups; g += kQueriesTogether) {
                const int count = static_cast<int>(part.groups - g < kQueriesTogether ? part.groups - g : kQueriesTogether);
                for (int i = 0; i < count; ++i)
                    for (int w = 0; w < live; ++w) scores[i * kKeys + w] = rest_scores[(first + g + i) * most + places[w]];
                take(first + g, count, live, [&](int) __attribute__((always_inline)) { return skipped; },
                     [&](int i) __attribute__((always_inline)) { return rest_values + places[i] * part.dim; });
            }
        }
    }

    DDTREE_INLINE void finish(const Part& part, int row) const {
        for (std::int64_t g = 0; g < part.groups; ++g) {
            const std::int64_t q = (row - part.begin) * part.groups + g;
            const float inverse = 1.0f / sums[q];
            X* out = part.space.attended + row * part.space.attended_stride + (part.h * part.groups + g) * part.dim;
            for (std::int64_t d = 0; d < part.dim; d += W) store<Vec>(out + d, load<Vec>(totals + q * part.dim + d) * inverse);
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
