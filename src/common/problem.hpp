// SPDX-License-Identifier: Apache-2.0
// A validated call, in the one form that every backend runs.
#pragma once

#include "scanrnn/core/cell_type.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {

/// What stands in for an absent input: one zero on the host, wide enough for every dtype. Backends
/// whose arrays lie elsewhere know it by its address.
const void* absent_input();

/// What problems of linear and nonlinear cells have.
struct ProblemExtents {
  const char* call = "";  ///< public name, "scan"
  bool backward = false;
  std::int64_t batch = 0, time = 0, channels = 0, sequences = 0;
  DType dtype = DType::f32;
  DType accumulation = DType::f32;
  Sequences layout;
};

/// A recurrence to run, forward or backward. Strides of broadcast axes are 0 and absent inputs are
/// absent_input() with stride 0, so that every input has the full shape.
struct Problem : ProblemExtents {
  const CellType* type = nullptr;  ///< where the cell's kernels are found
  const void* cell = nullptr;      ///< the cell itself: its run-time options
  int inputs = 0;
  unsigned map_inputs = 0;
  unsigned backward_inputs = 0;
  unsigned vector_inputs = 0;
  unsigned state_inputs = 0;
  bool state_is_output = false;

  ConstArray<3> in[kMaxInputs];
  ConstArray<2> initial;  ///< (N,D) state before the first step, optional
  Array<2> checkpoints;   ///< (checkpoint_rows, D) accumulation dtype, optional

  Array<3> out;          ///< forward
  Array<2> final_state;  ///< forward, optional

  ConstArray<3> states;      ///< backward: forward's output, where that is the state
  ConstArray<3> dy;          ///< backward, optional
  ConstArray<2> dfinal;      ///< backward, optional
  Array<3> din[kMaxInputs];  ///< backward, each optional; axes of shape 1 are summed over
  Array<2> dinitial;         ///< backward, optional

  /// `c` must outlive the problem.
  void set_cell(const CellType& cell_type, const void* c) {
    type = &cell_type;
    cell = c;
    inputs = cell_type.inputs;
    map_inputs = cell_type.map_inputs;
    backward_inputs = cell_type.backward_inputs;
    vector_inputs = cell_type.vector_inputs;
    state_inputs = cell_type.state_inputs;
    state_is_output = cell_type.state_is_output;
  }
};

}  // namespace scanrnn
