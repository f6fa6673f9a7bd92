// SPDX-License-Identifier: Apache-2.0
#include "common/cell_arguments.hpp"

#include <cmath>

namespace scanrnn {
namespace {

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

void check_option(const CellDescription& type, const CellOption& option, double value) {
  if (value >= option.least && value <= option.most &&
      (!option.is_whole || value == std::floor(value))) {
    return;
  }
  throw InvalidArgument(std::string(type.name) + ": " + option.name + " is " + number(value) +
                        ", expected a " + (option.is_whole ? "whole " : "") + "number from " +
                        number(option.least) + " to " + number(option.most));
}

bool is_row(const std::int64_t (&shape)[3]) { return shape[0] == 1 && shape[1] == 1; }

// An array of a vector input or of its gradient, (1,1,D).
void check_vector(const Checker& check, const char* name, const ConstArray<3>& array) {
  if (!array) return;
  if (is_row(array.shape)) {
    check.vector(name, {array.data, array.dtype, {array.shape[2]}, {array.stride[2]}}, true);
  } else {
    check.vector_shape(name, array.shape);
  }
}

void check_sum(const Checker& check, const std::string& name, const Array<3>& array) {
  check_vector(check, name.c_str(), array);
  check.distinct(name.c_str(), array.shape + 2, array.stride + 2, 1);
}

}  // namespace

std::string gradient_of(const char* name) { return std::string("d") + name; }

void check_options(const CellDescription& type, const void* cell) {
  for (int i = 0; i < type.options; ++i) {
    const CellOption option = type.option(cell, i);
    check_option(type, option, option.value);
  }
}

void set_options(const CellDescription& type, CellStorage& cell, const double* values, int count) {
  if (count > type.options) {
    throw InvalidArgument(std::string(type.name) + ": options has " + std::to_string(count) +
                          " numbers, expected at most " + std::to_string(type.options));
  }
  for (int i = 0; i < count; ++i) {
    check_option(type, type.option(cell.bytes, i), values[i]);
    type.set_option(cell.bytes, i, values[i]);
  }
}

void take_inputs(const Checker& check, const CellDescription& type, const void* cell,
                 const ConstArray<3>* given, CellStorage& copy, ConstArray<3>* in) {
  unsigned mask = 0;
  for (int i = 0; i < type.inputs; ++i) {
    const ConstArray<3>& array = given[i];
    const bool is_vector = type.has(type.vector_inputs, i);
    if (array) mask |= 1u << i;
    if (!type.has(type.optional_inputs, i)) {
      check.required(type.names[i], array.data, is_vector ? check.channels : check.elements);
    }
    if (is_vector) {
      check_vector(check, type.names[i], array);
    } else {
      check.full(type.names[i], array);
    }
    in[i] = broadcast(array ? array : ConstArray<3>{absent_input(), check.dtype, {1, 1, 1}, {}},
                      given[0].shape);
  }
  type.copy(cell, mask, copy);
}

void take_gradients(const Checker& check, const CellDescription& type, const Array<3>* given,
                    Array<3>* din) {
  for (int i = 0; i < type.inputs; ++i) {
    const std::string name = gradient_of(type.names[i]);
    if (type.has(type.vector_inputs, i)) {
      check_sum(check, name, given[i]);
    } else {
      check.full(name.c_str(), given[i]);
      check.distinct(name.c_str(), given[i]);
    }
    din[i] = given[i];
  }
}

void take_sums(const Checker& check, const CellDescription& type, const Array<3>* given,
               Array<3>* dsum) {
  for (int i = 0; i < type.inputs; ++i) {
    const std::string name = "sum of " + gradient_of(type.names[i]);
    if (given[i] && type.has(type.vector_inputs, i)) {
      throw InvalidArgument(std::string(check.call) + ": " + name +
                            " was given, expected none: it is the gradient of a vector");
    }
    check_sum(check, name, given[i]);
    dsum[i] = given[i];
  }
}

}  // namespace scanrnn
