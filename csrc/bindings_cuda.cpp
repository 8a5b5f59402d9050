// The submodule ddtree._kernels.cuda: the padded forms on CUDA, and what was built. None where it was not.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

#if DDTREE_WITH_CUDA

#include <stdexcept>

#include "bindings_padded.h"
#include "cuda/launch.h"

namespace {

void check(const char* problem) {
    if (problem != nullptr) throw std::runtime_error(std::string("CUDA could not launch the kernel: ") + problem);
}

// `name`, taking what `make` takes, and the stream.
template <class Batch, class... Arguments>
void bind(nb::module_& m, const char* name, Batch (*make)(Arguments...), const char* (*launch)(const Batch&, void*)) {
    m.def(name, [make, launch](Arguments... arguments, std::uintptr_t stream) {
        check(launch(make(arguments...), ddtree::at_address<void>(stream)));
    });
}

// `name`, taking what `make` takes, scratch memory and the stream.
template <class Batch, class... Arguments>
void bind(nb::module_& m, const char* name, Batch (*make)(Arguments...),
          const char* (*launch)(const Batch&, void*, void*)) {
    m.def(name, [make, launch](Arguments... arguments, std::uintptr_t scratch, std::uintptr_t stream) {
        check(launch(make(arguments...), ddtree::at_address<void>(scratch), ddtree::at_address<void>(stream)));
    });
}

}  // namespace

void bind_cuda(nb::module_& parent) {
    using namespace ddtree;
    nb::module_ m = parent.def_submodule("cuda");
    m.attr("LARGEST_BUDGET") = cuda::kLargestBudget;
    m.def("architectures", &cuda::architectures);
    m.def("devices", [] {
        const cuda::Devices found = cuda::devices();
        return nb::make_tuple(found.names, found.problem);
    });
    m.def("sampler_scratch_bytes", &cuda::sampler_scratch_bytes);
    bind(m, "build_padded_trees_float", &padded_trees<float>, &cuda::build_padded_trees<float>);
    bind(m, "build_padded_trees_double", &padded_trees<double>, &cuda::build_padded_trees<double>);
    bind(m, "verify_batch", &verify_batch_of, &cuda::verify_batch);
    bind(m, "target_only", &target_only_batch, &cuda::sample_target_only);
}

#else

void bind_cuda(nb::module_& parent) { parent.attr("cuda") = nb::none(); }

#endif
