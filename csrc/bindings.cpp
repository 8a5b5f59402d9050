// The nanobind module ddtree._kernels. Python checks shapes and dtypes; what comes here is pointers and sizes.
#include <nanobind/nanobind.h>

#include <iterator>
#include <string_view>

#include "cpu/instruction_set.h"

namespace nb = nanobind;

void bind_tree(nb::module_& m);      // bindings_tree.cpp: tree build, encoding, top-k
void bind_sampling(nb::module_& m);  // bindings_sampling.cpp: sampler from logits, coins, row statistics
void bind_padded(nb::module_& m);    // bindings_padded.cpp: trees and samplers in batches, padded
void bind_cuda(nb::module_& m);      // bindings_cuda.cpp: the same on CUDA
void bind_forward(nb::module_& m);   // bindings_forward.cpp: packed weights, the pass of a decoder

namespace {

constexpr const char* kNames[] = {"portable", "avx2", "avx512"};

const char* instruction_set() { return kNames[static_cast<int>(ddtree::cpu::instruction_set())]; }

bool use_instruction_set(std::string_view name) {
    for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
        if (name == kNames[i]) return ddtree::cpu::use_instruction_set(static_cast<ddtree::cpu::InstructionSet>(i));
    }
    return false;
}

}  // namespace

NB_MODULE(_kernels, m) {
    m.def("instruction_set", &instruction_set);
    m.def("use_instruction_set", [](const char* name) { return use_instruction_set(name); });
    bind_tree(m);
    bind_sampling(m);
    bind_padded(m);
    bind_cuda(m);
    bind_forward(m);
}
