// The nanobind module ddtree._kernels: shape and dtype checks, nothing else.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_tree(nb::module_& m);      // bindings_tree.cpp: tree build, encoding, top-k
void bind_sampling(nb::module_& m);  // bindings_sampling.cpp: samplers, coins, row statistics

NB_MODULE(_kernels, m) {
    bind_tree(m);
    bind_sampling(m);
}
