// The padded forms on the CPU. ddtree/launch.py allocates and checks.
#include "bindings_padded.h"

#include <nanobind/nanobind.h>

#include "cpu/sampling.h"
#include "cpu/tree.h"

namespace nb = nanobind;

namespace {

// `name`, taking what `make` takes.
template <class Batch, class... Arguments>
void bind(nb::module_& m, const char* name, Batch (*make)(Arguments...), void (*run)(const Batch&)) {
    m.def(name, [make, run](Arguments... arguments) {
        const nb::gil_scoped_release released;
        run(make(arguments...));
    });
}

}  // namespace

void bind_padded(nb::module_& m) {
    using namespace ddtree;
    bind(m, "build_padded_trees_float", &padded_trees<float>, &cpu::build_padded_trees<float>);
    bind(m, "build_padded_trees_double", &padded_trees<double>, &cpu::build_padded_trees<double>);
    bind(m, "verify_batch", &verify_batch_of, &cpu::verify_batch);
    bind(m, "target_only", &target_only_batch, &cpu::sample_target_only);
}
