// SPDX-License-Identifier: Apache-2.0
// cell_forward, cell_backward, the table of cells and the size of their checkpoints.
#include <string>
#include <vector>

#include "descriptor.hpp"

namespace scanrnn::python {
namespace {

/// A sequence's items, one for each of a cell's inputs.
nb::object items_of(nb::handle sequence, const char* name, const CellType& type) {
  PyObject* tuple = PySequence_Tuple(sequence.ptr());
  if (tuple == nullptr) {
    PyErr_Clear();
    throw InvalidType(std::string(name) + " is not a sequence of array descriptors");
  }
  nb::object items = nb::steal(tuple);
  if (PyTuple_Size(tuple) != type.inputs) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(PyTuple_Size(tuple)) +
                          " items, expected " + std::to_string(type.inputs) + " for " + type.name);
  }
  return items;
}

/// The cell of a call, its options, and the arrays that forward and backward share.
struct CellArguments {
  Arguments args;
  const CellType& type;
  CellStorage cell;
  ConstArray<3> in[kMaxInputs];

  CellArguments(int kind, nb::handle inputs, nb::handle options)
      : type(cell_type(static_cast<CellKind>(kind))) {
    type.construct(cell);
    const nb::object list = nb::steal(PySequence_Tuple(options.ptr()));
    if (!list.is_valid()) nb::raise_python_error();
    set_options(type, cell, list);
    const nb::object items = items_of(inputs, "inputs", type);
    for (int i = 0; i < type.inputs; ++i) {
      const nb::handle item = PyTuple_GetItem(items.ptr(), i);
      in[i] = is_vector(i) ? per_channel(args.input<1>(item, type.names[i]))
                           : args.input<3>(item, type.names[i]);
    }
  }

  bool is_vector(int i) const { return type.has(type.vector_inputs, i); }
  std::string initial_name() const { return std::string(type.state) + "0"; }

  static void set_options(const CellType& type, CellStorage& cell, nb::handle list) {
    const Py_ssize_t count = PyTuple_Size(list.ptr());
    std::vector<double> values;
    for (Py_ssize_t i = 0; i < count; ++i) {
      values.push_back(PyFloat_AsDouble(PyTuple_GetItem(list.ptr(), i)));
      if (PyErr_Occurred()) nb::raise_python_error();
    }
    scanrnn::set_options(type, cell, values.data(), static_cast<int>(count));
  }

  template <class Call>
  void bind(Call& call) {
    call.type = &type;
    call.cell = cell.bytes;
    call.in = in;
  }
};

void forward(int kind, nb::handle inputs, nb::handle initial, nb::handle out,
             nb::handle final_state, nb::handle checkpoints, nb::handle options, bool reverse,
             nb::handle cu_seqlens, nb::handle lengths, nb::handle reset, bool left_padded,
             std::uintptr_t stream, nb::handle allocate) {
  CellArguments a(kind, inputs, options);
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
  CellArguments a(kind, inputs, options);
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
  Array<3> din[kMaxInputs];
  const nb::object items = items_of(dinputs, "dinputs", a.type);
  std::string names[kMaxInputs];  // an error on another device names the first array
  for (int i = 0; i < a.type.inputs; ++i) {
    const nb::handle item = PyTuple_GetItem(items.ptr(), i);
    names[i] = std::string("d") + a.type.names[i];
    din[i] = a.is_vector(i) ? per_channel(a.args.output<1>(item, names[i].c_str()))
                            : a.args.output<3>(item, names[i].c_str());
  }
  call.din = din;
  call.dinitial = a.args.output<2>(dinitial, dinitial_name.c_str());
  call.sequences = a.args.sequences(cu_seqlens, lengths, reset, left_padded, reverse);
  run(call, a.args.target(stream), allocate, cell_backward_workspace_bytes, cell_backward);
}

nb::list table() {
  nb::list cells;
  for (int kind = 1; kind < kCells; ++kind) {
    const CellType& type = cell_type(static_cast<CellKind>(kind));
    nb::list inputs, options;
    for (int i = 0; i < type.inputs; ++i) {
      nb::dict input;
      input["name"] = type.names[i];
      input["optional"] = type.has(type.optional_inputs, i);
      input["vector"] = type.has(type.vector_inputs, i);
      inputs.append(input);
    }
    CellStorage cell;
    type.construct(cell);
    for (int i = 0; i < type.options; ++i) {
      const CellOption o = type.option(cell.bytes, i);
      nb::dict option;
      option["name"] = o.name;
      option["default"] = o.value;
      options.append(option);
    }
    nb::dict row;
    row["kind"] = kind;
    row["name"] = type.name;
    row["inputs"] = inputs;
    row["state"] = std::string(type.state).c_str();
    row["state_is_output"] = type.state_is_output;
    row["options"] = options;
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
