// SPDX-License-Identifier: Apache-2.0
// The checks that the calls of linear and nonlinear cells share.
#pragma once

#include <string>

#include "common/validate.hpp"

namespace scanrnn {

/// What errors call the gradient of an argument.
std::string gradient_of(const char* name);

/// The values of a cell's options.
void check_options(const CellDescription& type, const void* cell);

/// Every input, into `in` as a problem has them, and the cell that knows which are given.
void take_inputs(const Checker& check, const CellDescription& type, const void* cell,
                 const ConstArray<3>* given, CellStorage& copy, ConstArray<3>* in);

/// The gradients of all inputs, into `din`.
void take_gradients(const Checker& check, const CellDescription& type, const Array<3>* given,
                    Array<3>* din);

}  // namespace scanrnn
