#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_tree(nb::module_&) {}
