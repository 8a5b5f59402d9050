// One pass of a decoder of the llama kind over the rows of a tree: embeddings, layers (RMS norm, grouped attention
// with rotary embedding, gated unit), final norm, output head.
//
// The residual stream, norms, scores and sums are float32; what goes into a product and into the cache has the
// model's type. A row's result depends on the tokens that it sees alone: not on the other rows of the pass, their
// number, the number of workers, nor on whether its ancestors were committed before. So a node of a tree is scored
// to the last bit as plain decoding along its path would score it.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/matrix.h"
#include "cpu/team.h"

namespace ddtree::cpu {

struct Layer {
    Matrix projected;  // query, key and value heads, one after the other
    Matrix output;
    Matrix gate_up;  // blocks of gate and up in turn
    Matrix down;
    std::vector<float> first_norm, second_norm;
    std::vector<float> query_norm, key_norm;  // [head_dim], or empty
    std::int64_t window = 0;                  // tokens that a row sees; 0: all
};

struct Shape {
    std::int64_t width, heads, key_heads, head_dim, gated, vocabulary;
    float epsilon;  // of the norms
    float scale;    // of the scores
};

// What a pass reads and writes beyond the weights. X is float or BFloat16, the model's type.
template <class X>
struct Pass {
    int rows;
    std::int64_t length;                // committed tokens
    std::int64_t capacity;              // rows of the cache: a head's keys are [capacity, head_dim]
    const std::int64_t* token_ids;      // [rows]
    const std::int64_t* positions;      // [rows]
    const bool* visibility;             // [rows, rows]: row i sees row j
    X* const* keys;                     // per layer [key_heads, capacity, head_dim]
    X* const* values;
    X* const* taps;                     // per layer [rows, tap_stride], or null
    std::int64_t tap_stride;
    X* logits;                          // [rows or 1, vocabulary]
    bool last_only;                     // logits of the last row alone
    const X* states = nullptr;          // [rows, width]: the output head alone, over these
};

template <class X>
struct Model {
    Shape shape;
    std::vector<Layer> layers;
    std::vector<float> final_norm;
    Matrix head;
    const X* embedding = nullptr;   // [vocabulary, width]; kept alive by the caller
    std::vector<float> cosines, sines;  // [positions, head_dim / 2]
};

// Where the workers of a pass put what they hand on. x: padded to groups of inputs, the padding zero.
template <class X>
struct Workspace {
    float* hidden;    // [rows, width rounded up to blocks]
    float* queries;   // [rows, heads, head_dim], turned and scaled
    X* attended;      // [rows, heads * head_dim]
    X* gated;         // [rows, gated]
    const std::int32_t* seen;        // row by row: the uncommitted rows that it sees, itself last
    const std::int64_t* seen_first;  // [rows + 1]: where a row's begin
    std::int64_t attended_stride, gated_stride, hidden_stride, normed_stride;
};

// What a worker has for itself.
template <class X>
struct Desk {
    X* normed;          // [rows, width]
    float* part;        // [rows, 64]: outputs of the blocks in work
    float* attention;   // attention_floats(shape, rows)
    std::byte* room;    // for products: x prepared, weights unpacked
};

// Brings x [rows, inputs] into the form in which products with w read it, in `room`.
template <class X>
using Prepare = void (*)(const Matrix& w, const X* x, std::int64_t x_stride, int rows, std::byte* room);

// out[r][c] = sum over inputs of x[r][input] * w[first_block * 16 + c][input] for `blocks` <= 4 blocks that stand
// together; x was prepared in the same room. The sum is taken in one order for every number of rows.
template <class X>
using Multiply = void (*)(const Matrix& w, const X* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                          float* out, std::int64_t out_stride, std::byte* room);

template <class X>
struct Product {
    Prepare<X> prepare;
    Multiply<X> multiply;
};

template <class X>
using PassWorker = void (*)(const Model<X>&, const Pass<X>&, const Workspace<X>&, const Desk<X>&, Product<X>, Team&,
                            int worker, int workers);

struct ForwardKernels {
    PassWorker<float> of_float;
    PassWorker<BFloat16> of_bfloat16;
    Product<float> product_float;
    Product<BFloat16> product_bfloat16;
};

extern const ForwardKernels forward_avx2;
extern const ForwardKernels forward_avx512;

// Products on AMX tiles; takes q4 and q8 too.
void prepare_amx(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::byte* room);
void product_amx(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                 float* out, std::int64_t out_stride, std::byte* room);

// Whether this machine and its system have AMX tiles; asks the system for them the first time.
bool has_amx();

// Products by AVX512-BF16, for machines without AMX.
void prepare_pairs(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::byte* room);
void product_pairs(const Matrix& w, const BFloat16* x, std::int64_t x_stride, int rows, std::int64_t first_block, int blocks,
                   float* out, std::int64_t out_stride, std::byte* room);

// Whether this machine has them, and instruction_set() allows them.
bool has_pairs();

// A model with its workspace and its workers.
template <class X>
class Forward {
   public:
    explicit Forward(Model<X> model) : model_(std::move(model)) {}

    // Runs a pass on `workers` threads. One at a time; others wait.
    void run(const Pass<X>& pass, int workers);

    Model<X>& model() { return model_; }

   private:
    Model<X> model_;
    std::mutex running_;
    Team team_;
    Memory memory_;
    std::vector<std::int32_t> seen_;
    std::vector<std::int64_t> seen_first_;
};

// Whether any of the passes above can run here: x86 with AVX2 and FMA at least.
bool can_run_forward();

}  // namespace ddtree::cpu
