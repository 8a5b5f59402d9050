// A worker's share of a pass, for vectors of W floats; forward_{avx2,avx512}.cpp instantiate it.
#pragma once

#include "cpu/attention_width.h"

namespace ddtree::cpu {

// Products without AMX: R rows and as many outputs as fit the registers.
template <int W>
struct VectorProduct {
    using Vec = Vectors<W>;
    using Float = typename Vec::Float;
    using Int = typename Vec::Int;
    static constexpr int kRows = W == 16 ? 12 : 5;
    static constexpr int kVectors = kBlock / W * (W == 16 ? 2 : 1);  // outputs in work, in vectors

    // w[k][W outputs] of a tile, vector v of the block's.
    static DDTREE_INLINE Float weight(const float* tile, int k, int v) { return load<Vec>(tile + k * kBlock + v * W); }
    static DDTREE_INLINE Float weight(const BFloat16* tile, int k, int v) {
        const Int pairs = read_vector<Int>(tile + (k / 2 * kBlock + v * W) * 2);
        return std::bit_cast<Float>(k % 2 == 0 ? pairs << 16 : pairs & static_cast<std::int32_t>(0xffff0000));
    }

    template <int R, int V, class X>
    static DDTREE_INLINE void some(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t block, float* out,
                                   std::int64_t out_stride, bool ask) {
        constexpr int kOfBlock = kBlock / W;
        constexpr int kLines = V / kOfBlock * kGroup * kBlock * static_cast<int>(sizeof(X)) / 64;
        Float sum[R][V] = {};
        const std::byte* tiles[V / kOfBlock];
        for (int b = 0; b < V / kOfBlock; ++b) tiles[b] = w.tile(block + b, 0);
        const std::int64_t step = w.step(block);
        for (std::int64_t g = 0; g < w.groups(); ++g) {
            if (ask)
                for (int line = 0; line < kLines; ++line) w.ask_ahead(tiles[0], block, line);
#pragma GCC unroll 4
            for (int k = 0; k < kGroup; ++k) {
                Float weights[V];
                for (int v = 0; v < V; ++v)
                    weights[v] = weight(reinterpret_cast<const X*>(tiles[v / kOfBlock]), k, v % kOfBlock);
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) sum[r][v] += weights[v] * x[r * x_stride + g * kGroup + k];
            }
            for (int b = 0; b < V / kOfBlock; ++b) tiles[b] += step;
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) write_vector(out + r * out_stride + v * W, sum[r][v]);
    }

    template <int V, class X>
    static DDTREE_INLINE void rows_of(const Matrix& w, const float* x, std::int64_t x_stride, int rows, std::int64_t block,
                                      float* out, std::int64_t out_stride) {
        int r = 0;
        for (; r + kRows <= rows; r += kRows)
            some<kRows, V, X>(w, x + r * x_stride, x_stride, block, out + r * out_stride, out_stride, r == 0);
        for (; r + 4 <= rows; r += 4)
            some<4, V, X>(w, x + r * x_stride, x_stride, block, out + r * out_stride, out_stride, r == 0);
        for (; r < rows; ++r)
            some<1, V, X>(w, x + r * x_stride, x_stride, block, out + r * out_stride, out_stride, r == 0);
    }

    template <class X>
    static void prepare(const Matrix&, const X* x, std::int64_t x_stride, int rows, std::byte* room) {
        if constexpr (sizeof(X) < sizeof(float)) {
            float* wide = reinterpret_cast<float*>(room);
            for (std::int64_t i = 0; i < rows * x_stride; i += W) write_vector(wide + i, load<Vec>(x + i));
        }
    }

    template <class X>
    static void product(const Matrix& w, const X* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                        float* out, std::int64_t out_stride, std::byte* room) {
        const float* in;
        if constexpr (sizeof(X) == sizeof(float))
            in = x;
        else
            in = reinterpret_cast<const float*>(room);
        constexpr int kBlocks = kVectors * W / kBlock;
        int b = 0;
        for (; b + kBlocks <= blocks; b += kBlocks)
            rows_of<kVectors, X>(w, in, x_stride, rows, first_block + b, out + b * kBlock, out_stride);
        for (; b < blocks; ++b)
            rows_of<kBlock / W, X>(w, in, x_stride, rows, first_block + b, out + b * kBlock, out_stride);
    }
};

template <int W, class X>
struct PassShare {
    using Vec = Vectors<W>;
    using Float = typename Vec::Float;
    using Int = typename Vec::Int;
    using Attention = TreeAttention<W, X>;

    const Model<X>& model;
    const Pass<X>& pass;
    const Workspace<X>& space;
    const Desk<X>& desk;
    Product<X> product;
    int worker, workers;

    static constexpr std::int64_t kPart = kTogether * kBlock;

    // This worker's share of `count` units of work.
    DDTREE_INLINE std::int64_t begin(std::int64_t count) const { return count * worker / workers; }
    DDTREE_INLINE std::int64_t end(std::int64_t count) const { return count * (worker + 1) / workers; }

    DDTREE_INLINE void multiply(const Matrix& w, const X* x, std::int64_t stride, int rows, std::int64_t block, int blocks) const {
        product.multiply(w, x, stride, rows, block, blocks, desk.part, kPart, desk.room);
        if (w.bias == nullptr) return;
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < blocks * kBlock; ++c) desk.part[r * kPart + c] += w.bias[static_cast<std::size_t>(block * kBlock + c)];
    }

    // 1 / root of the mean square; the sum in 16 lanes, whatever W is.
    DDTREE_INLINE float inverse_norm(const float* x, std::int64_t count) const {
        float lanes[16] = {};
        for (std::int64_t i = 0; i < count; i += 16)
            for (int l = 0; l < 16; ++l) lanes[l] += x[i + l] * x[i + l];
        float sum = 0;
        for (int l = 0; l < 16; ++l) sum += lanes[l];
        return 1.0f / __builtin_sqrtf(sum / static_cast<float>(count) + model.shape.epsilon);
    }

    DDTREE_INLINE void norm_rows(const float* weight, int first, int rows, X* out) const {
        for (int r = 0; r < rows; ++r) {
            const float* x = space.hidden + (first + r) * space.hidden_stride;
            const float inverse = inverse_norm(x, model.shape.width);
            X* to = out + r * space.normed_stride;
            for (std::int64_t i = 0; i < model.shape.width; i += W)
                Attention::template store<Vec>(to + i, load<Vec>(x + i) * inverse * load<Vec>(weight + i));
        }
    }

    // Pairs (i, i + head_dim / 2) turn by their angle.
    DDTREE_INLINE void turn(float* x, std::int64_t position) const {
        const std::int64_t dim = model.shape.head_dim, half = dim / 2;
        const float* cosine = model.cosines.data() + position * half;
        const float* sine = model.sines.data() + position * half;
        for (std::int64_t i = 0; i < half; i += 8) {
            using Eight = typename Vectors<8>::Float;
            const auto low = read_vector<Eight>(x + i), high = read_vector<Eight>(x + half + i);
            write_vector(x + i, low * read_vector<Eight>(cosine + i) - high * read_vector<Eight>(sine + i));
            write_vector(x + half + i, high * read_vector<Eight>(cosine + i) + low * read_vector<Eight>(sine + i));
        }
    }

    DDTREE_INLINE void scale_by(float* x, const float* weights, float factor) const {
        for (std::int64_t i = 0; i < model.shape.head_dim; ++i) x[i] *= weights == nullptr ? factor : factor * weights[i];
    }

    // A head of row r, in head_part()[r]: normed, turned, and put where it belongs.
    DDTREE_INLINE void place_head(const Layer& layer, int index, std::int64_t head, int r) const {
        const Shape& shape = model.shape;
        float* x = head_part() + r * shape.head_dim;
        if (head < shape.heads) {
            if (!layer.query_norm.empty()) scale_by(x, layer.query_norm.data(), inverse_norm(x, shape.head_dim));
            turn(x, pass.positions[r]);
            scale_by(x, nullptr, shape.scale);
            __builtin_memcpy(space.queries + (r * shape.heads + head) * shape.head_dim, x,
                             static_cast<std::size_t>(shape.head_dim) * sizeof(float));
            return;
        }
        const bool key = head < shape.heads + shape.key_heads;
        const std::int64_t h = head - shape.heads - (key ? 0 : shape.key_heads);
        if (key) {
            if (!layer.key_norm.empty()) scale_by(x, layer.key_norm.data(), inverse_norm(x, shape.head_dim));
            turn(x, pass.positions[r]);
        }
        X* to = (key ? pass.keys : pass.values)[index] + (h * pass.capacity + pass.length + r) * shape.head_dim;
        for (std::int64_t d = 0; d < shape.head_dim; d += W) Attention::template store<Vec>(to + d, load<Vec>(x + d));
    }

    DDTREE_INLINE void project(const Layer& layer, int index) const {
        const Shape& shape = model.shape;
        norm_rows(layer.first_norm.data(), 0, pass.rows, desk.normed);
        product.prepare(layer.projected, desk.normed, space.normed_stride, pass.rows, desk.room);
        const std::int64_t heads = shape.heads + 2 * shape.key_heads;
        const std::int64_t of_head = shape.head_dim / kBlock;
        // A head may be wider than what a product gives at once: `part` holds 64 outputs, a head at most 256.
        for (std::int64_t head = begin(heads); head < end(heads); ++head) {
            for (std::int64_t b = 0; b < of_head;) {
                const std::int64_t block = head * of_head + b;
                const int together = static_cast<int>(kTogether - block % kTogether);
                const int some = static_cast<int>(of_head - b < together ? of_head - b : together);
                multiply(layer.projected, desk.normed, space.normed_stride, pass.rows, block, some);
                for (int r = 0; r < pass.rows; ++r)
                    __builtin_memcpy(head_part() + r * shape.head_dim + b * kBlock, desk.part + r * kPart,
                                     static_cast<std::size_t>(some * kBlock) * sizeof(float));
                b += some;
            }
            for (int r = 0; r < pass.rows; ++r) place_head(layer, index, head, r);
        }
    }
    DDTREE_INLINE float* head_part() const { return desk.part + pass.rows * kPart; }

    DDTREE_INLINE void attend(const Layer& layer, int index) const {
        const Shape& shape = model.shape;
        const Attention attention(shape, pass.rows, desk.attention);
        // Key heads and, where they do not go evenly into the workers, parts of the rows.
        int parts = workers;
        for (int p = 1; p < workers; ++p)
            if (shape.key_heads * p % workers == 0) {
                parts = p;
                break;
            }
        const int most = (pass.rows + kRowsTogether - 1) / kRowsTogether;
        if (parts < most) parts = (most + parts - 1) / parts * parts;
        if (parts > pass.rows) parts = pass.rows;
        const std::int64_t units = shape.key_heads * parts;
        for (std::int64_t unit = begin(units); unit < end(units); ++unit) {
            const int part = static_cast<int>(unit % parts);
            attention.run(pass, space, layer, index, unit / parts, pass.rows * part / parts, pass.rows * (part + 1) / parts);
        }
    }

    // hidden += w x, by pairs of blocks: four at once would leave workers idle.
    DDTREE_INLINE void add_product(const Matrix& w, const X* x, std::int64_t stride) const {
        product.prepare(w, x, stride, pass.rows, desk.room);
        const std::int64_t pairs = (w.blocks() + 1) / 2;
        const std::int64_t last = end(pairs) * 2 < w.blocks() ? end(pairs) * 2 : w.blocks();
        for (std::int64_t block = begin(pairs) * 2; block < last;) {
            const std::int64_t together = kTogether - block % kTogether;
            const int some = static_cast<int>(last - block < together ? last - block : together);
            multiply(w, x, stride, pass.rows, block, some);
            for (int r = 0; r < pass.rows; ++r) {
                float* hidden = space.hidden + r * space.hidden_stride + block * kBlock;
                const float* part = desk.part + r * kPart;
                for (int c = 0; c < some * kBlock; c += W) write_vector(hidden + c, load<Vec>(hidden + c) + load<Vec>(part + c));
            }
            block += some;
        }
    }

    DDTREE_INLINE void gate(const Layer& layer) const {
        norm_rows(layer.second_norm.data(), 0, pass.rows, desk.normed);
        product.prepare(layer.gate_up, desk.normed, space.normed_stride, pass.rows, desk.room);
        const std::int64_t pairs = layer.gate_up.blocks() / 2;
        for (std::int64_t pair = begin(pairs); pair < end(pairs);) {
            const int some = pair % 2 == 0 && pair + 1 < end(pairs) ? 2 : 1;
            multiply(layer.gate_up, desk.normed, space.normed_stride, pass.rows, pair * 2, some * 2);
            for (int r = 0; r < pass.rows; ++r)
                for (int p = 0; p < some; ++p)
                    for (int c = 0; c < kBlock; c += W) {
                        const float* from = desk.part + r * kPart + p * 2 * kBlock + c;
                        X* to = space.gated + r * space.gated_stride + (pair + p) * kBlock + c;
                        Attention::template store<Vec>(to, silu(load<Vec>(from)) * load<Vec>(from + kBlock));
                    }
            pair += some;
        }
    }

    // x / (1 + exp(-x)), with an exponential of what is not positive.
    static DDTREE_INLINE Float silu(Float x) {
        const Float e = exp_nonpositive<Float, Int>(x < 0.0f ? x : -x);
        const Float share = 1.0f / (1.0f + e);
        const Float value = x * (x < 0.0f ? e * share : share);
        return x == x ? value : x;
    }

    DDTREE_INLINE void tap(int index, bool last) const {
        X* out = pass.taps[index];
        if (out == nullptr) return;
        for (std::int64_t r = begin(pass.rows); r < end(pass.rows); ++r) {
            const float* x = space.hidden + r * space.hidden_stride;
            if (last) {
                const float inverse = inverse_norm(x, model.shape.width);
                for (std::int64_t i = 0; i < model.shape.width; i += W)
                    Attention::template store<Vec>(out + r * pass.tap_stride + i,
                                                   load<Vec>(x + i) * inverse * load<Vec>(model.final_norm.data() + i));
            } else {
                for (std::int64_t i = 0; i < model.shape.width; i += W)
                    Attention::template store<Vec>(out + r * pass.tap_stride + i, load<Vec>(x + i));
            }
        }
    }

    DDTREE_INLINE void give_logits() const {
        const int first = pass.last_only ? pass.rows - 1 : 0, rows = pass.rows - first;
        if (pass.states == nullptr) {
            norm_rows(model.final_norm.data(), first, rows, desk.normed);
        } else {
            const std::int64_t width = model.shape.width;
            for (int r = 0; r < rows; ++r)
                __builtin_memcpy(desk.normed + r * space.normed_stride, pass.states + (first + r) * width,
                                 static_cast<std::size_t>(width) * sizeof(X));
        }
        product.prepare(model.head, desk.normed, space.normed_stride, rows, desk.room);
        const std::int64_t quads = (model.head.blocks() + kTogether - 1) / kTogether;
        for (std::int64_t quad = begin(quads); quad < end(quads); ++quad) {
            const std::int64_t block = quad * kTogether;
            const std::int64_t left = model.head.blocks() - block;
            const int some = static_cast<int>(left < kTogether ? left : kTogether);
            multiply(model.head, desk.normed, space.normed_stride, rows, block, some);
            const std::int64_t columns = model.shape.vocabulary - block * kBlock;
            for (int r = 0; r < rows; ++r) {
                X* to = pass.logits + r * model.shape.vocabulary + block * kBlock;
                const float* part = desk.part + r * kPart;
                std::int64_t c = 0;
                for (; c + W <= columns && c < kPart; c += W) Attention::template store<Vec>(to + c, load<Vec>(part + c));
                if (c < columns && c < kPart) {
                    X rest[W];
                    Attention::template store<Vec>(rest, load<Vec>(part + c));
                    __builtin_memcpy(to + c, rest, static_cast<std::size_t>(columns - c) * sizeof(X));
                }
            }
        }
    }

    DDTREE_INLINE void embed() const {
        for (std::int64_t r = begin(pass.rows); r < end(pass.rows); ++r) {
            const X* from = model.embedding + pass.token_ids[r] * model.shape.width;
            float* to = space.hidden + r * space.hidden_stride;
            for (std::int64_t i = 0; i < model.shape.width; i += W) write_vector(to + i, load<Vec>(from + i));
        }
    }

    DDTREE_INLINE void run(Team& team) const {
        if (pass.states != nullptr) return give_logits();
        embed();
        team.meet();
        const int count = static_cast<int>(model.layers.size());
        for (int index = 0; index < count; ++index) {
            const Layer& layer = model.layers[static_cast<std::size_t>(index)];
            project(layer, index);
            team.meet();
            attend(layer, index);
            team.meet();
            add_product(layer.output, space.attended, space.attended_stride);
            team.meet();
            gate(layer);
            team.meet();
            add_product(layer.down, space.gated, space.gated_stride);
            team.meet();
            tap(index, index + 1 == count);
        }
        if (pass.logits != nullptr) give_logits();
    }
};

template <int W, class X>
void work_of_width(const Model<X>& model, const Pass<X>& pass, const Workspace<X>& space, const Desk<X>& desk,
                   Product<X> product, Team& team, int worker, int workers) {
    PassShare<W, X>{model, pass, space, desk, product, worker, workers}.run(team);
}

template <int W>
inline constexpr ForwardKernels kForwardOfWidth = {work_of_width<W, float>, work_of_width<W, BFloat16>,
                                                   {VectorProduct<W>::template prepare<float>,
                                                    VectorProduct<W>::template product<float>},
                                                   {VectorProduct<W>::template prepare<BFloat16>,
                                                    VectorProduct<W>::template product<BFloat16>}};

}  // namespace ddtree::cpu
