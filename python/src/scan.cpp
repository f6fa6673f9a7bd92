// SPDX-License-Identifier: Apache-2.0
// scan_forward and scan_backward.
#include "descriptor.hpp"

namespace scanrnn::python {
namespace {

void forward(nb::handle a, nb::handle x, nb::handle h0, nb::handle h, nb::handle final_state,
             bool reverse, nb::handle cu_seqlens, nb::handle lengths, nb::handle reset,
             bool left_padded, std::uintptr_t stream, nb::handle allocate) {
  Arguments args;
  ScanForward call;
  call.x = args.input<3>(x, "x");
  call.a = args.input<3>(a, "a");
  call.h0 = args.input<2>(h0, "h0");
  call.h = args.output<3>(h, "h");
  call.final_state = args.output<2>(final_state, "final_state");
  call.sequences = args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, args.target(stream), allocate, scan_forward_workspace_bytes, scan_forward);
}

void backward(nb::handle a, nb::handle h, nb::handle h0, nb::handle dh, nb::handle dfinal,
              nb::handle da, nb::handle dx, nb::handle dh0, bool reverse, nb::handle cu_seqlens,
              nb::handle lengths, nb::handle reset, bool left_padded, bool conj,
              std::uintptr_t stream, nb::handle allocate) {
  Arguments args;
  ScanBackward call;
  call.h = args.input<3>(h, "h");
  call.a = args.input<3>(a, "a");
  call.h0 = args.input<2>(h0, "h0");
  call.dh = args.input<3>(dh, "dh");
  call.dfinal = args.input<2>(dfinal, "dfinal");
  call.da = args.output<3>(da, "da");
  call.dx = args.output<3>(dx, "dx");
  call.dh0 = args.output<2>(dh0, "dh0");
  call.sequences = args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  call.conjugate = conj;
  run(call, args.target(stream), allocate, scan_backward_workspace_bytes, scan_backward);
}

}  // namespace

void bind_scan(nb::module_& m) {
  using nb::arg;
  const auto optional = [](const char* name) { return nb::arg(name).none() = nb::none(); };
  m.def("scan_forward", &forward, arg("a"), arg("x"), arg("h0").none(), arg("h"),
        arg("final").none(), arg("reverse") = false, optional("cu_seqlens"), optional("lengths"),
        optional("reset"), arg("left_padded") = false, arg("stream") = 0, optional("allocate"));
  m.def("scan_backward", &backward, arg("a"), arg("h"), arg("h0").none(), arg("dh").none(),
        arg("dfinal").none(), arg("da").none(), arg("dx").none(), arg("dh0").none(),
        arg("reverse") = false, optional("cu_seqlens"), optional("lengths"), optional("reset"),
        arg("left_padded") = false, arg("conj") = true, arg("stream") = 0, optional("allocate"));
}

}  // namespace scanrnn::python
