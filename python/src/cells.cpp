// SPDX-License-Identifier: Apache-2.0
// cell_forward, cell_backward, the table of cells and the size of their checkpoints.
#include "cell_arguments.hpp"

namespace scanrnn::python {
namespace {

struct LinearArguments : CellArguments<CellType, kMaxInputs> {
  LinearArguments(int kind, nb::handle inputs, nb::handle options)
      : CellArguments(cell_type(static_cast<CellKind>(kind)), inputs, options) {}
  std::string initial_name() const { return std::string(type.state) + "0"; }
};

void forward(int kind, nb::handle inputs, nb::handle initial, nb::handle out,
             nb::handle final_state, nb::handle checkpoints, nb::handle options, bool reverse,
             nb::handle cu_seqlens, nb::handle lengths, nb::handle reset, bool left_padded,
             std::uintptr_t stream, nb::handle allocate) {
  LinearArguments a(kind, inputs, options);
  AnyCellForward call;
  a.bind(call);
  call.initial = a.args.input<2>(initial, a.initial_name().c_str());
  call.out = a.args.output<3>(out, "out");
  call.final_state = a.args.output<2>(final_state, "final_state");
  call.checkpoints = a.args.output<2>(checkpoints, "checkpoints");
  call.sequences = a.args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, a.args.target(stream), allocate, cell_forward_workspace_bytes, cell_forward);
}

void backward(int kind, nb::handle inputs, nb::handle initial, nb::handle saved, nb::handle dout,
              nb::handle dfinal, nb::handle dinputs, nb::handle dinitial, nb::handle options,
              bool reverse, nb::handle cu_seqlens, nb::handle lengths, nb::handle reset,
              bool left_padded, std::uintptr_t stream, nb::handle allocate) {
  LinearArguments a(kind, inputs, options);
  AnyCellBackward call;
  a.bind(call);
  const std::string initial_name = a.initial_name(), dinitial_name = "d" + initial_name;
  call.initial = a.args.input<2>(initial, initial_name.c_str());
  if (a.type.state_is_output) {
    call.out = a.args.input<3>(saved, "out");
  } else {
    call.checkpoints = a.args.input<2>(saved, "checkpoints");
  }
  call.dout = a.args.input<3>(dout, "dout");
  call.dfinal = a.args.input<2>(dfinal, "dfinal");
  a.gradients(dinputs);
  call.din = a.din;
  call.dinitial = a.args.output<2>(dinitial, dinitial_name.c_str());
  call.sequences = a.args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, a.args.target(stream), allocate, cell_backward_workspace_bytes, cell_backward);
}

nb::list table() {
  nb::list cells;
  for (int kind = 1; kind < kCells; ++kind) {
    const CellType& type = cell_type(static_cast<CellKind>(kind));
    nb::dict row;
    describe_cell(type, kind, row);
    row["state"] = std::string(type.state).c_str();
    row["state_is_output"] = type.state_is_output;
    cells.append(row);
  }
  return cells;
}

}  // namespace

void bind_cells(nb::module_& m) {
  using nb::arg;
  const auto optional = [](const char* name) { return nb::arg(name).none() = nb::none(); };
  m.def("checkpoint_rows", &checkpoint_rows, arg("batch"), arg("time"), arg("sequences"));
  m.def("cell_table", &table);
  m.def("cell_forward", &forward, arg("kind"), arg("inputs"), arg("c0").none(), arg("out"),
        arg("final").none(), arg("checkpoints").none(), arg("options") = nb::tuple(),
        arg("reverse") = false, optional("cu_seqlens"), optional("lengths"), optional("reset"),
        arg("left_padded") = false, arg("stream") = 0, optional("allocate"));
  m.def("cell_backward", &backward, arg("kind"), arg("inputs"), arg("c0").none(), arg("saved"),
        arg("dy").none(), arg("dfinal").none(), arg("dinputs"), arg("dc0").none(),
        arg("options") = nb::tuple(), arg("reverse") = false, optional("cu_seqlens"),
        optional("lengths"), optional("reset"), arg("left_padded") = false, arg("stream") = 0,
        optional("allocate"));
}

}  // namespace scanrnn::python
