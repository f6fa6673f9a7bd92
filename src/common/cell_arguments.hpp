// SPDX-License-Identifier: Apache-2.0
// The checks that the calls of linear and nonlinear cells share.
#pragma once

#include <string>

#include "common/run.hpp"
#include "common/validate.hpp"

namespace scanrnn {

/// A problem with a cell of its own, which knows what inputs it has.
template <class AnyProblem>  // Problem or SolveProblem
struct Owned {
  CellStorage cell;
  std::string call;
  AnyProblem problem;
};

/// Checks a call and hands it on. A call's `make_problem(call, device, Owned&)` stands beside it.
template <class AnyProblem, class Call>
std::size_t bytes_of(const Call& call, const Target& target) {
  Owned<AnyProblem> p;
  make_problem(call, target.device, p);
  return workspace_bytes(p.problem, target);
}
template <class AnyProblem, class Call>
void run_call(const Call& call, Workspace workspace, const Target& target) {
  Owned<AnyProblem> p;
  make_problem(call, target.device, p);
  run(p.problem, workspace, target);
}

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

/// Sums of the gradients of inputs that aren't vectors, into `dsum`.
void take_sums(const Checker& check, const CellDescription& type, const Array<3>* given,
               Array<3>* dsum);

}  // namespace scanrnn
