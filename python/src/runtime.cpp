// SPDX-License-Identifier: Apache-2.0
// Threads, instruction sets, backends, and what was built.
#include <nanobind/stl/string.h>

#include <algorithm>

#include "descriptor.hpp"
#include "scanrnn/core/config.hpp"

namespace scanrnn::python {
namespace {

nb::dict build_info() {
  nb::dict info;
  info["version"] = SCANRNN_VERSION_STRING;
  info["cuda"] = *cuda_architectures() != '\0';
  info["cuda_architectures"] = cuda_architectures();
  info["debug_merge"] = merge_trace_built();
#if defined(__clang__)
  info["compiler"] = "clang " __clang_version__;
#elif defined(__GNUC__)
  info["compiler"] = "gcc " __VERSION__;
#else
  info["compiler"] = "unknown";
#endif
  nb::list isas;
  const std::string names = cpu_isas();
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(' ', at), names.size());
    isas.append(names.substr(at, end - at));
    at = end + 1;
  }
  info["isas"] = isas;
  info["leaf_steps"] = kLeafSteps;
#if defined(SCANRNN_XLA_FFI)
  info["xla_ffi"] = true;
#else
  info["xla_ffi"] = false;
#endif
  return info;
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.attr("__version__") = SCANRNN_VERSION_STRING;
  const char* names[] = {"F16", "BF16", "F32", "F64", "C64", "C128", "I32", "I64", "U8"};
  for (int i = 0; i < 9; ++i) m.attr(names[i]) = i;
  m.def("get_num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, nb::arg("threads"));
  m.def("cpu_isa", &cpu_isa);
  m.def("set_cpu_isa", [](const std::string& name) { set_cpu_isa(name.c_str()); }, nb::arg("name"));
  m.def("build_info", &build_info);
  m.def("cuda_available", &cuda_available);
  m.def("cuda_unavailable_reason", &cuda_unavailable_reason);
}

}  // namespace scanrnn::python
