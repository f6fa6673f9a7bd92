// SPDX-License-Identifier: Apache-2.0
// Fused cells: pre-activations in, outputs out. Gates are recomputed in backward; beside the inputs
// nothing is kept but the output, or, where it isn't the state, the state at every 32nd step, and
// that only if asked for.
//
//   CellForward<SruCell> call;                    // equations: core/cells/sru.hpp
//   call.in[SruCell::kU] = {u, DType::f32, {B, T, D}, {T * D, D, 1}};
//   call.in[SruCell::kBiasForget] = per_channel({bias, DType::f32, {D}, {1}});
//   call.cell.activation = Activation::tanh;
//   call.out = ...;
//   std::vector<std::byte> memory(cell_forward_workspace_bytes(call));
//   cell_forward(call, {memory.data(), memory.size()});
//
// Dtypes: f16, bf16, f32, f64; layouts, sequences, workspace and errors as in scan.hpp. Errors call
// inputs by the cell's `names`, their gradients the same after a "d", the initial state "h0" or
// "c0".
//
// The weight of a step's input, 1 - sigmoid(f) where SRU, QRNN without i, and GILR have it, is
// right in every size on the CPU. CUDA, and the gradients of SRU and QRNN, take the difference,
// which is off by half a unit of 1's last place: 3e-8 in float32, where it is 0 from f = 17.4 on.
// (A serial float32 loop with exact weights against one with the difference, T = 20,000, largest
// error over the largest state, inputs of both signs: 2e-6 instead of 1e-5 at weights near 1e-3,
// 8e-6 instead of 1e-3 near 1e-5; inputs all 1: 8e-6 instead of 4e-6, and 2e-5 instead of 7e-5.)
#pragma once

#include "scanrnn/core/cell_type.hpp"
#include "scanrnn/error.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {

/// Rows of the (rows, D) array of leaf states that a forward call writes for backward.
std::int64_t checkpoint_rows(std::int64_t batch, std::int64_t time, std::int64_t sequences);

/// One value a channel as an input of a cell, or as the gradient of one.
inline ConstArray<3> per_channel(const ConstArray<1>& vector) {
  if (!vector) return {};
  return {vector.data, vector.dtype, {1, 1, vector.shape[0]}, {0, 0, vector.stride[0]}};
}
template <int Rank>  // 1; a list in braces is a ConstArray
Array<3> per_channel(const Array<Rank>& vector) {
  static_assert(Rank == 1);
  if (!vector) return {};
  return {vector.data, vector.dtype, {1, 1, vector.shape[0]}, {0, 0, vector.stride[0]}};
}

/// The arrays that the calls of all cells have.
struct CellForwardArrays {
  ConstArray<2> initial;  ///< (N,D), optional: 0
  Array<3> out;           ///< (B,T,D), written
  Array<2> final_state;   ///< (N,D), optional, written: the state after each sequence's last step
  /// (checkpoint_rows, D) contiguous accumulation dtype, optional, written; not where the state is
  /// the output.
  Array<2> checkpoints;
  Sequences sequences;
};

struct CellBackwardArrays {
  ConstArray<2> initial;      ///< as in forward
  ConstArray<2> checkpoints;  ///< what forward wrote, or
  ConstArray<3> out;          ///< (B,T,D), where the state is the output
  ConstArray<3> dout;         ///< (B,T,D), optional: 0
  ConstArray<2> dfinal;       ///< (N,D), optional: 0
  Array<2> dinitial;          ///< (N,D), optional, written
  Sequences sequences;
};

/// A call of a cell that is known at run time only; it refers to its cell and inputs.
struct AnyCellForward : CellForwardArrays {
  const CellType* type = nullptr;
  const void* cell = nullptr;
  const ConstArray<3>* in = nullptr;
};
struct AnyCellBackward : CellBackwardArrays {
  const CellType* type = nullptr;
  const void* cell = nullptr;
  const ConstArray<3>* in = nullptr;
  const Array<3>* din = nullptr;
};

template <class Cell>
struct CellForward : CellForwardArrays {
  ConstArray<3> in[Cell::inputs];  ///< (B,T,D), of vectors (1,1,D); see the cell's enum Input
  Cell cell;                       ///< its options
  operator AnyCellForward() const { return {*this, &cell_type<Cell>(), &cell, in}; }
};

template <class Cell>
struct CellBackward : CellBackwardArrays {
  ConstArray<3> in[Cell::inputs];  ///< as in forward
  Array<3> din[Cell::inputs];      ///< as the inputs, each optional, written
  Cell cell;                       ///< as in forward
  operator AnyCellBackward() const { return {*this, &cell_type<Cell>(), &cell, in, din}; }
};

std::size_t cell_forward_workspace_bytes(const AnyCellForward& call, const Target& target = {});
std::size_t cell_backward_workspace_bytes(const AnyCellBackward& call, const Target& target = {});
void cell_forward(const AnyCellForward& call, Workspace workspace, const Target& target = {});
void cell_backward(const AnyCellBackward& call, Workspace workspace, const Target& target = {});

}  // namespace scanrnn
