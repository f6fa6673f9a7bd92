// SPDX-License-Identifier: Apache-2.0
// A validated call of a nonlinear cell, in the one form that every backend runs.
#pragma once

#include "common/problem.hpp"
#include "scanrnn/solve.hpp"

namespace scanrnn {

/// As Problem: strides of broadcast axes are 0, absent inputs are absent_input() with stride 0.
struct SolveProblem : ProblemExtents {
  const NonlinearCellType* type = nullptr;
  const void* cell = nullptr;  ///< its run-time options; outlives the problem

  ConstArray<3> in[kMaxNonlinearInputs];
  ConstArray<2> initial[kMaxStates];  ///< (N,D) each, optional

  // Forward.
  Array<3> out;
  Array<3> kept;                     ///< optional
  Array<2> final_state[kMaxStates];  ///< optional
  Array<2> report;                   ///< (N, SolveReport::kColumns) f64, optional
  double tolerance = 0;              ///< of the options, defaults filled in
  int max_passes = 0;
  std::int64_t segment = 0;  ///< 0: the backend chooses, from T and D

  // Backward.
  ConstArray<3> states[kMaxStates];   ///< forward's output or what it kept, by state
  ConstArray<3> dy;                   ///< optional
  ConstArray<2> dfinal[kMaxStates];   ///< optional
  Array<3> din[kMaxNonlinearInputs];  ///< each optional; those of vector inputs are sums
  Array<2> dinitial[kMaxStates];      ///< optional
};

}  // namespace scanrnn
