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
  ConstArray<3> states[kMaxStates];    ///< forward's output or what it kept, by state
  ConstArray<3> dy;                    ///< optional
  ConstArray<2> dfinal[kMaxStates];    ///< optional
  Array<3> din[kMaxNonlinearInputs];   ///< each optional; those of vector inputs are sums
  Array<3> dsum[kMaxNonlinearInputs];  ///< (1,1,D) each, optional; none of vector inputs
  Array<2> dinitial[kMaxStates];       ///< optional

  /// Where an input's gradient goes, summed over sequences and steps, if it is wanted so.
  const Array<3>& sum_of(int input) const {
    return type->has(type->vector_inputs, input) ? din[input] : dsum[input];
  }
};

// A channel is given up, for a serial run, from this pass on, if at least one of so many segments
// is still open, more than there are passes left (each makes one more right), and neither they nor
// their increments get fewer. (On the CPU, of 1400 LSTM and GRU channels with biases from 3 to 7, T
// = 4096, segments of 128 steps, that converge within 8 passes, one in 25 was; of 170 that don't,
// all but 8, after 4.)
inline constexpr int kPatience = 3;
inline constexpr int kFewestOpen = 16;

/// What a pass has left of a channel: the starts that moved, and the largest of their increments.
template <class R>
struct SolveProgress {
  R moved = 0, furthest = 0;
};

/// Whether a channel gets nowhere, by what its last two passes have left.
template <class R>
SCANRNN_HD constexpr bool gets_nowhere(int patience, int pass, int max_passes,
                                       std::int64_t segments, const SolveProgress<R>& before,
                                       const SolveProgress<R>& now) {
  return pass >= patience && now.moved > static_cast<R>(max_passes - pass) &&
         now.moved * kFewestOpen > static_cast<R>(segments) && 4 * now.moved > 3 * before.moved &&
         !(2 * now.furthest <= before.furthest);
}

}  // namespace scanrnn
