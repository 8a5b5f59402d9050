#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_sampling(nb::module_&) {}
