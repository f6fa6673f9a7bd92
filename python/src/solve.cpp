// SPDX-License-Identifier: Apache-2.0
// solve_forward, solve_backward and the table of nonlinear cells.
#include "cell_arguments.hpp"

namespace scanrnn::python {
namespace {

struct NonlinearArguments : CellArguments<NonlinearCellType, kMaxNonlinearInputs> {
  NonlinearArguments(int kind, nb::handle inputs, nb::handle options)
      : CellArguments(nonlinear_cell_type(static_cast<NonlinearCellKind>(kind)), inputs, options) {
    for (int s = 0; s < type.states; ++s) {
      const std::string state = type.state_names[s];
      initial_names[s] = state + "0";
      final_names[s] = "final_" + state;
      dinitial_names[s] = "d" + state + "0";
      dfinal_names[s] = "dfinal_" + state;
    }
  }

  /// The items of `list`, one a state.
  void inputs(nb::handle list, const char* name, const std::string* names, ConstArray<2>* arrays) {
    const nb::object items = items_of(list, name, type.states, type.name);
    for (int s = 0; s < type.states; ++s) {
      arrays[s] = args.input<2>(PyTuple_GetItem(items.ptr(), s), names[s].c_str());
    }
  }
  void outputs(nb::handle list, const char* name, const std::string* names, Array<2>* arrays) {
    const nb::object items = items_of(list, name, type.states, type.name);
    for (int s = 0; s < type.states; ++s) {
      arrays[s] = args.output<2>(PyTuple_GetItem(items.ptr(), s), names[s].c_str());
    }
  }

  /// Reads the outputs for the sums of the inputs' gradients.
  void sums(nb::handle list) {
    const nb::object items = items_of(list, "dsums", type.inputs, type.name);
    for (int i = 0; i < type.inputs; ++i) {
      sum_names[i] = std::string("sum of d") + type.names[i];
      const nb::handle item = PyTuple_GetItem(items.ptr(), i);
      dsum[i] = per_channel(args.output<1>(item, sum_names[i].c_str()));
    }
  }

  Array<3> dsum[kMaxNonlinearInputs];
  std::string sum_names[kMaxNonlinearInputs];
  std::string initial_names[kMaxStates], final_names[kMaxStates];
  std::string dinitial_names[kMaxStates], dfinal_names[kMaxStates];
};

void forward(int kind, nb::handle inputs, nb::handle initial, nb::handle out, nb::handle kept,
             nb::handle final_state, nb::handle report, nb::handle options, double tolerance,
             int max_passes, std::int64_t segment, bool reverse, nb::handle cu_seqlens,
             nb::handle lengths, nb::handle reset, bool left_padded, std::uintptr_t stream,
             nb::handle allocate) {
  NonlinearArguments a(kind, inputs, options);
  AnySolveForward call;
  a.bind(call);
  a.inputs(initial, "initial", a.initial_names, call.initial);
  call.out = a.args.output<3>(out, "out");
  call.kept = a.args.output<3>(kept, "kept");
  a.outputs(final_state, "final", a.final_names, call.final_state);
  call.report = a.args.output<2>(report, "report");
  call.options = {tolerance, max_passes, segment};
  call.sequences = a.args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, a.args.target(stream), allocate, solve_forward_workspace_bytes, solve_forward);
}

void backward(int kind, nb::handle inputs, nb::handle initial, nb::handle out, nb::handle kept,
              nb::handle dout, nb::handle dfinal, nb::handle dinputs, nb::handle dinitial,
              nb::handle options, bool reverse, nb::handle cu_seqlens, nb::handle lengths,
              nb::handle reset, bool left_padded, std::uintptr_t stream, nb::handle allocate,
              nb::handle dsums) {
  NonlinearArguments a(kind, inputs, options);
  AnySolveBackward call;
  a.bind(call);
  a.inputs(initial, "initial", a.initial_names, call.initial);
  call.out = a.args.input<3>(out, "out");
  call.kept = a.args.input<3>(kept, "kept");
  call.dout = a.args.input<3>(dout, "dout");
  a.inputs(dfinal, "dfinal", a.dfinal_names, call.dfinal);
  a.gradients(dinputs);
  call.din = a.din;
  if (!dsums.is_none()) {
    a.sums(dsums);
    call.dsum = a.dsum;
  }
  a.outputs(dinitial, "dinitial", a.dinitial_names, call.dinitial);
  call.sequences = a.args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, a.args.target(stream), allocate, solve_backward_workspace_bytes, solve_backward);
}

nb::list table() {
  nb::list cells;
  for (int kind = 0; kind < kNonlinearCells; ++kind) {
    const NonlinearCellType& type = nonlinear_cell_type(static_cast<NonlinearCellKind>(kind));
    nb::dict row;
    describe_cell(type, kind, row);
    nb::list states;
    for (int s = 0; s < type.states; ++s) states.append(type.state_names[s]);
    row["states"] = states;
    row["output_state"] = type.output_state;
    row["kept_state"] = type.kept_state;
    cells.append(row);
  }
  return cells;
}

}  // namespace

void bind_solve(nb::module_& m) {
  using nb::arg;
  const auto optional = [](const char* name) { return nb::arg(name).none() = nb::none(); };
  const SolveOptions defaults;
  m.def("nonlinear_cell_table", &table);
  m.def("solve_forward", &forward, arg("kind"), arg("inputs"), arg("initial"), arg("out"),
        arg("kept").none(), arg("final"), arg("report").none(), arg("options") = nb::tuple(),
        arg("tolerance") = defaults.tolerance, arg("max_passes") = defaults.max_passes,
        arg("segment") = defaults.segment, arg("reverse") = false, optional("cu_seqlens"),
        optional("lengths"), optional("reset"), arg("left_padded") = false, arg("stream") = 0,
        optional("allocate"));
  m.def("solve_backward", &backward, arg("kind"), arg("inputs"), arg("initial"), arg("out").none(),
        arg("kept").none(), arg("dy").none(), arg("dfinal"), arg("dinputs"), arg("dinitial"),
        arg("options") = nb::tuple(), arg("reverse") = false, optional("cu_seqlens"),
        optional("lengths"), optional("reset"), arg("left_padded") = false, arg("stream") = 0,
        optional("allocate"), optional("dsums"));
}

}  // namespace scanrnn::python
