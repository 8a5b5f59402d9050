// Tree build, encoding, topology check, top-k. Tensors come as pointers (integers) and results go into NumPy arrays by
// the buffer protocol: DLPack would cost 2 us for each, more than the encoding itself. ddtree/{tree,retrieve,topk}.py
// check shapes, dtypes and contiguity.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

#include "cpu/topk.h"
#include "cpu/tree.h"
#include "ddtree/retrieve.h"
#include "ddtree/tree.h"

namespace nb = nanobind;

namespace {

template <class T>
const T* read(std::uintptr_t address) {
    return reinterpret_cast<const T*>(address);
}

template <class T>
T* write(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// The int64 words of a NumPy array, for as long as this lives.
class Words {
   public:
    Words(nb::handle array, std::int64_t needed) {
        if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_CONTIG) != 0) throw nb::python_error();
        if (buffer_.len >= static_cast<Py_ssize_t>(needed * sizeof(std::int64_t))) return;
        PyBuffer_Release(&buffer_);
        throw std::invalid_argument("the array is too small");
    }
    ~Words() { PyBuffer_Release(&buffer_); }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;

    std::int64_t* get() const { return static_cast<std::int64_t*>(buffer_.buf); }

   private:
    Py_buffer buffer_;
};

// The number of nodes, or minus (8 * entry + RowsFault).
std::int64_t build_tree(std::uintptr_t log_probs, bool is_double, std::uintptr_t token_ids, std::uintptr_t child_rows,
                int rows, int ranks, int budget, nb::handle buffer) {
    const Words words(buffer, ddtree::TreeArrays::kFields * (static_cast<std::int64_t>(budget) + 1));
    const auto* ids = read<std::int64_t>(token_ids);
    const auto* children = read<std::int64_t>(child_rows);
    return is_double ? ddtree::cpu::build_tree(read<double>(log_probs), ids, children, rows, ranks, budget, words.get())
                     : ddtree::cpu::build_tree(read<float>(log_probs), ids, children, rows, ranks, budget, words.get());
}

int encode_tree(std::uintptr_t parents, int nodes, int length, std::int64_t batch_offset, nb::handle arrays) {
    const Words words(arrays, 3 * static_cast<std::int64_t>(length));
    return ddtree::cpu::encode_tree(read<std::int64_t>(parents), nodes, length, batch_offset, words.get());
}

void write_visibility(std::uintptr_t parents, int nodes, int length, std::uintptr_t out) {
    ddtree::cpu::write_visibility(read<std::int64_t>(parents), nodes, length, write<std::uint8_t>(out));
}

// 0: sound; else 8 * node + TopologyFault.
std::int64_t check_topology(std::uintptr_t next_token, std::uintptr_t next_sibling, std::uintptr_t tokens, int nodes) {
    const std::int64_t fault = ddtree::cpu::check_topology(
        read<std::int64_t>(next_token), read<std::int64_t>(next_sibling), read<std::int64_t>(tokens), nodes);
    return fault == ddtree::kSoundTopology ? 0 : fault;
}

enum class Dtype { float32 = 0, bfloat16 = 1, float16 = 2 };

// -1, or the first row that has no softmax.
std::int64_t topk_log_softmax(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t size, std::int64_t k,
                              double temperature, std::uintptr_t top_log_probs, std::uintptr_t top_token_ids) {
    const nb::gil_scoped_release released;
    const auto run = [&](const auto* from) {
        return ddtree::cpu::topk_log_softmax(from, rows, size, k, temperature, write<float>(top_log_probs),
                                             write<std::int64_t>(top_token_ids));
    };
    switch (static_cast<Dtype>(dtype)) {
        case Dtype::bfloat16:
            return run(read<ddtree::BFloat16>(logits));
        case Dtype::float16:
            return run(read<ddtree::Float16>(logits));
        default:
            return run(read<float>(logits));
    }
}

}  // namespace

void bind_tree(nb::module_& m) {
    m.def("build_tree", &build_tree);
    m.def("encode_tree", &encode_tree);
    m.def("write_visibility", &write_visibility);
    m.def("check_topology", &check_topology);
    m.def("topk_log_softmax", &topk_log_softmax);
}
