// The pass of a llama-like decoder. ddtree/native.py checks shapes and dtypes and keeps alive what is pointed at.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/forward.h"

namespace nb = nanobind;
using namespace ddtree::cpu;  // NOLINT

namespace {

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

enum class Source : int { float32 = 0, bfloat16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8 };

Matrix* pack_matrix(std::uintptr_t weights, int source, std::int64_t outputs, std::int64_t inputs,
                    const std::vector<float>& bias) {
    const nb::gil_scoped_release released;
    auto matrix = std::make_unique<Matrix>();
    switch (static_cast<Source>(source)) {
        case Source::float32: *matrix = pack(at<const float>(weights), outputs, inputs); break;
        case Source::bfloat16: *matrix = pack(at<const ddtree::BFloat16>(weights), outputs, inputs); break;
        default: *matrix = pack(at<const std::byte>(weights), static_cast<GgufBlocks>(source), outputs, inputs);
    }
    if (!bias.empty()) {
        matrix->bias = std::make_unique<float[]>(static_cast<std::size_t>(matrix->blocks() * kBlock));
        std::copy(bias.begin(), bias.end(), matrix->bias.get());
    }
    return matrix.release();
}

template <class X>
struct Builder {
    Model<X> model;
    std::unique_ptr<Forward<X>> forward;

    explicit Builder(const Shape& shape) { model.shape = shape; }

    void add_layer(Matrix& projected, Matrix& output, Matrix& gate_up, Matrix& down, std::vector<float> first_norm,
                   std::vector<float> second_norm, std::vector<float> query_norm, std::vector<float> key_norm,
                   std::int64_t window) {
        model.layers.push_back({std::move(projected), std::move(output), std::move(gate_up), std::move(down),
                                std::move(first_norm), std::move(second_norm), std::move(query_norm),
                                std::move(key_norm), window});
    }

    void finish(std::vector<float> final_norm, Matrix& head, std::uintptr_t embedding, std::uintptr_t cosines,
                std::uintptr_t sines, std::int64_t angles) {
        model.final_norm = std::move(final_norm);
        model.head = std::move(head);
        model.embedding = at<const X>(embedding);
        model.cosines.assign(at<const float>(cosines), at<const float>(cosines) + angles);
        model.sines.assign(at<const float>(sines), at<const float>(sines) + angles);
        forward = std::make_unique<Forward<X>>(std::move(model));
    }

    void run(int rows, std::int64_t length, std::int64_t capacity, std::uintptr_t token_ids, std::uintptr_t positions,
             std::uintptr_t visibility, const std::vector<std::uintptr_t>& keys,
             const std::vector<std::uintptr_t>& values, const std::vector<std::uintptr_t>& taps,
             std::int64_t tap_stride, std::uintptr_t logits, bool last_only, int workers) {
        const nb::gil_scoped_release released;
        static_assert(sizeof(std::uintptr_t) == sizeof(X*));
        forward->run({.rows = rows,
                      .length = length,
                      .capacity = capacity,
                      .token_ids = at<const std::int64_t>(token_ids),
                      .positions = at<const std::int64_t>(positions),
                      .visibility = at<const bool>(visibility),
                      .keys = reinterpret_cast<X* const*>(keys.data()),
                      .values = reinterpret_cast<X* const*>(values.data()),
                      .taps = reinterpret_cast<X* const*>(taps.data()),
                      .tap_stride = tap_stride,
                      .logits = at<X>(logits),
                      .last_only = last_only},
                     workers);
    }

    void head(std::uintptr_t states, int rows, std::uintptr_t logits, int workers) {
        const nb::gil_scoped_release released;
        Pass<X> pass{};
        pass.rows = rows;
        pass.states = at<const X>(states);
        pass.logits = at<X>(logits);
        forward->run(pass, workers);
    }
};

template <class X>
void bind_forward_of(nb::module_& m, const char* name) {
    using Bound = Builder<X>;
    nb::class_<Bound>(m, name)
        .def("__init__",
             [](Bound* self, std::int64_t width, std::int64_t heads, std::int64_t key_heads, std::int64_t head_dim,
                std::int64_t gated, std::int64_t vocabulary, float epsilon, float scale) {
                 new (self) Bound({width, heads, key_heads, head_dim, gated, vocabulary, epsilon, scale});
             })
        .def("add_layer", &Bound::add_layer)
        .def("finish", &Bound::finish)
        .def("run", &Bound::run)
        .def("head", &Bound::head);
}

}  // namespace

void bind_forward(nb::module_& m) {
    nb::class_<Matrix>(m, "Matrix");
    m.def("pack", &pack_matrix, nb::rv_policy::take_ownership);
    m.def("can_run_forward", &can_run_forward);
    m.def("has_amx", &has_amx);
    bind_forward_of<float>(m, "Float32Forward");
    bind_forward_of<ddtree::BFloat16>(m, "BFloat16Forward");
}
