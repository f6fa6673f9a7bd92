// SPDX-License-Identifier: Apache-2.0
// Nonlinear cells in parallel over time, by multiple shooting (Bock and Plitt 1984, "A multiple
// shooting algorithm for direct solution of optimal control problems"; here for initial values):
//
//   1. A sequence is cut into segments. Every segment's start is guessed, by the last steps of the
//      segment before it, from a state of zero.
//   2. All segments run at once, each serially, with the tangent J of its end by its start. Where
//      segment p ends in e_p and the next was started from s_{p+1}, the starts are corrected by
//      the increments d_0 = 0, d_{p+1} = (e_p - s_{p+1}) + J_p d_p: an affine scan over segments.
//   3. Segments whose start has moved run again, until none moves.
//
// The result is the serial recurrence's, to the tolerance; the increments are its error estimate. A
// channel of a sequence that doesn't come to rest keeps segments that have, and runs the others
// serially: slow, never wrong, and the report says so. One whose increments don't shrink doesn't
// wait for the last pass. Channels don't wait for each other.
//
// Backward is exact: the adjoint at the states that forward found is one linear scan in reverse.
//
//   SolveForward<DiagonalGruCell> call;           // equations: core/cells/gru.hpp
//   call.in[DiagonalGruCell::kReset] = {r, DType::f32, {B, T, D}, {T * D, D, 1}};
//   call.in[DiagonalGruCell::kWeightReset] = per_channel({u_r, DType::f32, {D}, {1}});
//   call.out = ...;
//   std::vector<std::byte> memory(solve_forward_workspace_bytes(call));
//   solve_forward(call, {memory.data(), memory.size()});
//
// Dtypes: f16, bf16, f32, f64; layouts, sequences, workspace and errors as in scan.hpp, names in
// errors as in cells.hpp: initial states "h0" and "c0", their gradients "dh0" and "dc0", final
// states "final_h" and so on, their gradients "dfinal_h".
#pragma once

#include "scanrnn/cells.hpp"
#include "scanrnn/core/nonlinear_cell_type.hpp"
#include "scanrnn/error.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {

/// How a nonlinear recurrence is solved. Which steps make a segment depends on these and on T and D
/// alone, so a row's result doesn't depend on what else is in its batch. On a GPU that the channels
/// of all sequences fill by themselves, max_passes = 0, a serial run, may take less time.
struct SolveOptions {
  /// A start has come to rest once it moves by no more than `tolerance * max(1, |start|)`, and is
  /// apart from the end of the segment before by less than `most_apart` times that. 0: 1e-6, for
  /// float64 1e-13.
  double tolerance = 0;
  static constexpr double most_apart = 4;
  /// Runs of the segments before what hasn't converged is run serially; 0: serial at once.
  int max_passes = 8;
  /// Steps of a segment; 0: chosen from T and D.
  std::int64_t segment = 0;
};

/// Columns of a report's rows, one a sequence, float64; the worst of its channels.
struct SolveReport {
  enum Column {
    kStatus,            ///< 0 converged, 1 fell back (some channels ran serially in part), 2 serial
    kPasses,            ///< runs of the segments, the most of any channel; 0 if serial
    kResidual,          ///< largest |e_p - s_{p+1}| of the last pass, over converged segments
    kErrorEstimate,     ///< largest |d_p| of the last pass, over converged segments
    kFirstUnconverged,  ///< the first step (in the order of the pass) that was run serially, or -1
    kSerialChannels,    ///< channels that fell back
    kColumns
  };
  enum Status { kConverged, kFellBack, kSerial };
};

struct SolveForwardArrays {
  ConstArray<2> initial[kMaxStates];  ///< (N,D) each, optional: 0
  Array<3> out;                       ///< (B,T,D), written
  /// (B,T,D) of the call's dtype, optional, written: the cell's kept state, which backward reads.
  Array<3> kept;
  Array<2> final_state[kMaxStates];  ///< (N,D) each, accumulation dtype, optional, written
  Array<2> report;  ///< (N, SolveReport::kColumns) contiguous f64, optional, written
  Sequences sequences;
  SolveOptions options;
};

struct SolveBackwardArrays {
  ConstArray<2> initial[kMaxStates];  ///< as in forward
  ConstArray<3> out;                  ///< (B,T,D) what forward wrote, where it is a state
  ConstArray<3> kept;                 ///< (B,T,D) what forward wrote, where the cell keeps a state
  ConstArray<3> dout;                 ///< (B,T,D), optional: 0
  ConstArray<2> dfinal[kMaxStates];   ///< (N,D) each, optional: 0
  Array<2> dinitial[kMaxStates];      ///< (N,D) each, optional, written
  Sequences sequences;
};

/// A call of a cell that is known at run time only; it refers to its cell and inputs.
struct AnySolveForward : SolveForwardArrays {
  const NonlinearCellType* type = nullptr;
  const void* cell = nullptr;
  const ConstArray<3>* in = nullptr;
};
struct AnySolveBackward : SolveBackwardArrays {
  const NonlinearCellType* type = nullptr;
  const void* cell = nullptr;
  const ConstArray<3>* in = nullptr;
  const Array<3>* din = nullptr;
  const Array<3>* dsum = nullptr;  ///< null: no sums
};

template <class Cell>
struct SolveForward : SolveForwardArrays {
  ConstArray<3> in[Cell::inputs];  ///< (B,T,D), of vectors (1,1,D); see the cell's enum Input
  Cell cell;                       ///< its options
  operator AnySolveForward() const { return {*this, &nonlinear_cell_type<Cell>(), &cell, in}; }
};

template <class Cell>
struct SolveBackward : SolveBackwardArrays {
  ConstArray<3> in[Cell::inputs];  ///< as in forward
  Array<3> din[Cell::inputs];      ///< as the inputs, each optional, written
  /// (1,1,D), each optional, written: of (B,T,D) inputs, their gradient summed over sequences and
  /// steps, which is that of a bias that was added to them.
  Array<3> dsum[Cell::inputs];
  Cell cell;  ///< as in forward
  operator AnySolveBackward() const {
    return {*this, &nonlinear_cell_type<Cell>(), &cell, in, din, dsum};
  }
};

std::size_t solve_forward_workspace_bytes(const AnySolveForward& call, const Target& target = {});
std::size_t solve_backward_workspace_bytes(const AnySolveBackward& call, const Target& target = {});
void solve_forward(const AnySolveForward& call, Workspace workspace, const Target& target = {});
void solve_backward(const AnySolveBackward& call, Workspace workspace, const Target& target = {});

}  // namespace scanrnn
