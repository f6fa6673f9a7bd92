// SPDX-License-Identifier: Apache-2.0
// What the bindings of linear and nonlinear cells share.
#pragma once

#include <string>
#include <vector>

#include "descriptor.hpp"

namespace scanrnn::python {

/// A sequence's items, as many as expected of `whose`.
inline nb::object items_of(nb::handle sequence, const char* name, int count, const char* whose) {
  PyObject* tuple = PySequence_Tuple(sequence.ptr());
  if (tuple == nullptr) {
    PyErr_Clear();
    throw InvalidType(std::string(name) + " is not a sequence of array descriptors");
  }
  nb::object items = nb::steal(tuple);
  if (PyTuple_Size(tuple) != count) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(PyTuple_Size(tuple)) +
                          " items, expected " + std::to_string(count) + " for " + whose);
  }
  return items;
}

/// The cell of a call, its options and inputs.
template <class Type, int MaxInputs>
struct CellArguments {
  Arguments args;
  const Type& type;
  CellStorage cell;
  ConstArray<3> in[MaxInputs];
  Array<3> din[MaxInputs];

  CellArguments(const Type& cell_type, nb::handle inputs, nb::handle options) : type(cell_type) {
    type.construct(cell);
    const nb::object list = nb::steal(PySequence_Tuple(options.ptr()));
    if (!list.is_valid()) nb::raise_python_error();
    const Py_ssize_t count = PyTuple_Size(list.ptr());
    std::vector<double> values;
    for (Py_ssize_t i = 0; i < count; ++i) {
      values.push_back(PyFloat_AsDouble(PyTuple_GetItem(list.ptr(), i)));
      if (PyErr_Occurred()) nb::raise_python_error();
    }
    set_options(type, cell, values.data(), static_cast<int>(count));
    const nb::object items = items_of(inputs, "inputs", type.inputs, type.name);
    for (int i = 0; i < type.inputs; ++i) {
      const nb::handle item = PyTuple_GetItem(items.ptr(), i);
      in[i] = is_vector(i) ? per_channel(args.template input<1>(item, type.names[i]))
                           : args.template input<3>(item, type.names[i]);
    }
  }

  bool is_vector(int i) const { return type.has(type.vector_inputs, i); }

  /// Reads the outputs for the inputs' gradients.
  void gradients(nb::handle dinputs) {
    const nb::object items = items_of(dinputs, "dinputs", type.inputs, type.name);
    for (int i = 0; i < type.inputs; ++i) {
      const nb::handle item = PyTuple_GetItem(items.ptr(), i);
      names_[i] = std::string("d") + type.names[i];
      din[i] = is_vector(i) ? per_channel(args.template output<1>(item, names_[i].c_str()))
                            : args.template output<3>(item, names_[i].c_str());
    }
  }

  template <class Call>
  void bind(Call& call) {
    call.type = &type;
    call.cell = cell.bytes;
    call.in = in;
  }

 private:
  std::string names_[MaxInputs];  // an error on another device names the first array
};

/// What the tables of cells say of a cell's inputs and options.
inline void describe_cell(const CellDescription& type, int kind, nb::dict& row) {
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
    option["most"] = o.most;
    options.append(option);
  }
  row["kind"] = kind;
  row["name"] = type.name;
  row["inputs"] = inputs;
  row["options"] = options;
}

}  // namespace scanrnn::python
