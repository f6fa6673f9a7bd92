// SPDX-License-Identifier: Apache-2.0
// sru_forward, sru_backward and the size of their checkpoints.
#include "descriptor.hpp"

namespace scanrnn::python {
namespace {

template <class Call>
void read_inputs(Arguments& args, Call& call, nb::handle u, nb::handle f, nb::handle r,
                 nb::handle skip, nb::handle bias_f, nb::handle bias_r, nb::handle c0) {
  call.u = args.input<3>(u, "u");
  call.forget = args.input<3>(f, "f");
  call.reset = args.input<3>(r, "r");
  call.skip = args.input<3>(skip, "skip");
  call.bias_forget = args.input<1>(bias_f, "bias_f");
  call.bias_reset = args.input<1>(bias_r, "bias_r");
  call.c0 = args.input<2>(c0, "c0");
}

void forward(nb::handle u, nb::handle f, nb::handle r, nb::handle skip, nb::handle bias_f,
             nb::handle bias_r, nb::handle c0, nb::handle h, nb::handle final_state,
             nb::handle checkpoints, int activation, bool reverse, nb::handle cu_seqlens,
             nb::handle lengths, nb::handle reset, bool left_padded, std::uintptr_t stream,
             nb::handle allocate) {
  Arguments args;
  SruForward call;
  read_inputs(args, call, u, f, r, skip, bias_f, bias_r, c0);
  call.h = args.output<3>(h, "h");
  call.final_state = args.output<2>(final_state, "final_state");
  call.checkpoints = args.output<2>(checkpoints, "checkpoints");
  call.sequences = args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  call.activation = static_cast<Activation>(activation);
  run(call, args.target(stream), allocate, sru_forward_workspace_bytes, sru_forward);
}

void backward(nb::handle u, nb::handle f, nb::handle r, nb::handle skip, nb::handle bias_f,
              nb::handle bias_r, nb::handle c0, nb::handle checkpoints, nb::handle dh,
              nb::handle dfinal, nb::handle du, nb::handle df, nb::handle dr, nb::handle dskip,
              nb::handle dbias_f, nb::handle dbias_r, nb::handle dc0, int activation, bool reverse,
              nb::handle cu_seqlens, nb::handle lengths, nb::handle reset, bool left_padded,
              std::uintptr_t stream, nb::handle allocate) {
  Arguments args;
  SruBackward call;
  read_inputs(args, call, u, f, r, skip, bias_f, bias_r, c0);
  call.checkpoints = args.input<2>(checkpoints, "checkpoints");
  call.dh = args.input<3>(dh, "dh");
  call.dfinal = args.input<2>(dfinal, "dfinal");
  call.du = args.output<3>(du, "du");
  call.dforget = args.output<3>(df, "df");
  call.dreset = args.output<3>(dr, "dr");
  call.dskip = args.output<3>(dskip, "dskip");
  call.dbias_forget = args.output<1>(dbias_f, "dbias_f");
  call.dbias_reset = args.output<1>(dbias_r, "dbias_r");
  call.dc0 = args.output<2>(dc0, "dc0");
  call.sequences = args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  call.activation = static_cast<Activation>(activation);
  run(call, args.target(stream), allocate, sru_backward_workspace_bytes, sru_backward);
}

}  // namespace

void bind_sru(nb::module_& m) {
  using nb::arg;
  const auto optional = [](const char* name) { return nb::arg(name).none() = nb::none(); };
  m.def("sru_checkpoint_rows", &checkpoint_rows, arg("batch"), arg("time"), arg("sequences"));
  m.def("sru_forward", &forward, arg("u"), arg("f"), arg("r"), arg("skip").none(),
        arg("bias_f").none(), arg("bias_r").none(), arg("c0").none(), arg("h"), arg("final").none(),
        arg("checkpoints").none(), arg("activation") = 0, arg("reverse") = false,
        optional("cu_seqlens"), optional("lengths"), optional("reset"), arg("left_padded") = false,
        arg("stream") = 0, optional("allocate"));
  m.def("sru_backward", &backward, arg("u"), arg("f"), arg("r"), arg("skip").none(),
        arg("bias_f").none(), arg("bias_r").none(), arg("c0").none(), arg("checkpoints"),
        arg("dh").none(), arg("dfinal").none(), arg("du").none(), arg("df").none(),
        arg("dr").none(), arg("dskip").none(), arg("dbias_f").none(), arg("dbias_r").none(),
        arg("dc0").none(), arg("activation") = 0, arg("reverse") = false, optional("cu_seqlens"),
        optional("lengths"), optional("reset"), arg("left_padded") = false, arg("stream") = 0,
        optional("allocate"));
}

}  // namespace scanrnn::python
