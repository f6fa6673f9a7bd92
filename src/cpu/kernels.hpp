// SPDX-License-Identifier: Apache-2.0
// What an instruction set supplies to the executor: leaf kernels per cell and accumulation type,
// and the transfers between the caller's arrays and the kernels' rows. Plain structs and function
// pointers, so that code built for one instruction set shares nothing with the rest.
//
// A kernel works on `lanes` lanes side by side, each with a state of its own. A row holds one step
// of all lanes, in the accumulation type; complex rows hold the real parts, then, `plane` scalars
// later, the imaginary ones. What a lane is, a channel or a segment of time, the executor decides.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scanrnn/core/cells/list.hpp"
#include "scanrnn/core/cells/nonlinear_list.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn::cpu {

struct ConstRows {
  const void* data = nullptr;  ///< row 0
  std::ptrdiff_t stride = 0;   ///< scalars from one row to the next
};

struct Rows {
  void* data = nullptr;
  std::ptrdiff_t stride = 0;
};

/// One leaf: at most kLeafSteps steps of `lanes` lanes (a multiple of the kernel's vector width).
struct LeafArgs {
  const void* cell = nullptr;
  int steps = 0;
  int lanes = 0;
  std::ptrdiff_t plane = 0;
  /// Kernels need not walk memory in its own order: rows lie in the caches, or are short pieces.
  bool resident = false;
  /// Not 0: rows are pieces of longer ones, which processors don't see coming; kernels that open
  /// gates ask for what lies so many steps and lanes on.
  int ahead_steps = 0, ahead_lanes = 0;
  /// Every row that is written is aligned to 16 bytes and one of too many to be worth caching.
  bool past_cache = false;
  ConstRows in[kMaxInputs];
  const std::uint8_t* reset = nullptr;  ///< one flag a step, or null
  std::ptrdiff_t reset_stride = 0;
  void* state = nullptr;  ///< (lanes) forward: h, backward: the incoming adjoint; updated by run
  void* map_a = nullptr;  ///< (lanes) written, in double precision: the leaf's map
  void* map_x = nullptr;  ///< (lanes) written
  // Forward.
  Rows out;
  /// Of `states`: the inputs that the cell opens, opened; without data: absent, or not wanted.
  Rows opened[kMaxInputs];
  // Backward.
  const void* c_first = nullptr;  ///< (lanes) state before step 0
  ConstRows c_prev;               ///< row t: state before step t, read for t >= 1
  ConstRows c;                    ///< row t: state after step t, where the cell needs it
  ConstRows dy;
  Rows din[kMaxInputs];   ///< without data: not wanted
  void* sum[kMaxInputs];  ///< (lanes) written: din summed over the leaf; null: not wanted
};

/// Up to kRunSteps consecutive steps of one channel that lie side by side in memory, in the order
/// of time. Lanes are steps here; the recurrence runs through them upwards, or downwards.
struct RunArgs {
  const void* cell = nullptr;
  int steps = 0;
  bool descending = false;
  bool past_cache = false;   ///< as in LeafArgs
  std::ptrdiff_t plane = 0;  ///< of the arrays below, where they are complex
  const void* in[kMaxInputs] = {};
  unsigned fixed = 0;  ///< bit i: in[i] is one value for all steps
  // One scalar each, imaginary parts `state_plane` further on; types as in LeafArgs.
  std::ptrdiff_t state_plane = 0;
  void* state = nullptr;
  void* map_a = nullptr;
  void* map_x = nullptr;
  void* sum[kMaxInputs] = {};
  // Forward.
  void* out = nullptr;
  void* kept = nullptr;  ///< kKeptRunBytes: written by keep, read by finish
  // Backward.
  const void* c_prev = nullptr;  ///< the state before each step, but for those of the register
  const void* c_edge = nullptr;  ///< from step `edge` on, which are here
  int edge = -1;
  const void* c = nullptr;     ///< the state after each step, where the cell needs it
  const void* dy = nullptr;    ///< null: 0
  void* din[kMaxInputs] = {};  ///< null: not wanted
};

/// Long enough that the tree's own work doesn't show, short enough that a run stays in the caches.
inline constexpr int kRunSteps = 4096;

/// Room for what `keep` keeps of a run: the map of each step, and those that the lanes of 16 bytes
/// make of them, in double precision.
template <class S>
inline constexpr std::size_t kKeptRunBytes = 2 * kRunSteps * (sizeof(S) + sizeof(double) / 2);

struct RunKernels {
  /// Forward, in place of map: keeps what finish needs to do what run does. Null: map and run.
  void (*keep)(const RunArgs&);
  void (*finish)(const RunArgs&);
  void (*map)(const RunArgs&);
  void (*run)(const RunArgs&);
  void (*states)(const RunArgs&);
  void (*map_backward)(const RunArgs&);
  void (*run_backward)(const RunArgs&);
};

struct CellKernels {
  RunKernels along;  ///< lanes are steps
  int vector_lanes;
  bool step_is_input;      ///< as the cell's
  unsigned opened_inputs;  ///< that backward kernels read as `states` has opened them
  /// Turns the rows of a cell's vector inputs into what its kernels read instead; null: nothing.
  void (*prepare)(int lanes, std::ptrdiff_t plane, void* const* rows);
  void (*map)(const LeafArgs&);     ///< map_a, map_x
  void (*run)(const LeafArgs&);     ///< map_a, map_x, state, out
  void (*states)(const LeafArgs&);  ///< out = states after each step from `state`, which is updated
  void (*map_backward)(const LeafArgs&);
  void (*run_backward)(const LeafArgs&);
};

/// Arithmetic on maps: vectors of `lanes` lanes in double precision, whatever rows are in. (Where
/// gates are constant and close to 1, a gain that is rounded to float is off by the same in every
/// segment, and the states' errors add up with one sign: 20 to 40 times a serial loop's error.)
struct MapKernels {
  /// (a, x) = merge((earlier_a, earlier_x), (a, x))
  void (*merge)(int lanes, std::ptrdiff_t plane, const void* earlier_a, const void* earlier_x,
                void* a, void* x);
  /// out = a s + x
  void (*apply)(int lanes, std::ptrdiff_t plane, const void* a, const void* x, const void* s,
                void* out);
  /// sum = earlier + sum
  void (*add)(int lanes, std::ptrdiff_t plane, const void* earlier, void* sum);
  /// Between a row of one accumulation type and such a vector.
  void (*widen)(int lanes, std::ptrdiff_t plane, const void* row, void* vector);
  void (*narrow)(int lanes, std::ptrdiff_t plane, const void* vector, void* row);
};

/// Some steps of a nonlinear cell, of `lanes` lanes (a multiple of the kernel's vector width) that
/// are channels of any segments of any sequences. A row holds one step of all lanes.
struct SolveArgs {
  const void* cell = nullptr;
  int steps = 0;
  int lanes = 0;
  ConstRows in[kMaxNonlinearInputs];
  ConstRows reset;           ///< not 0: what comes into the step is dropped; without data: nowhere
  std::ptrdiff_t plane = 0;  ///< scalars between the rows of `state` and of `map`
  void* state = nullptr;     ///< [states][lanes] forward: states; back: adjoints; updated
  void* map = nullptr;  ///< [states * states][lanes] derivative of `state` by its start; updated
  // Forward. Without data: not wanted.
  Rows out, kept;
  // Back.
  ConstRows before[kMaxStates];  ///< row t: states before step t, by state
  ConstRows after[kMaxStates];
  ConstRows dy;
  Rows din[kMaxNonlinearInputs];        ///< without data: not wanted
  void* sum[kMaxNonlinearInputs] = {};  ///< [lanes] added to: din; or null
};

struct SolveKernels {
  int vector_lanes;
  void (*run)(const SolveArgs&);          ///< state, out, kept
  void (*run_tangent)(const SolveArgs&);  ///< and map
  void (*map_back)(const SolveArgs&);     ///< state and map, from an adjoint of 0
  void (*run_back)(const SolveArgs&);     ///< state, din, sum
};

/// Between `steps` x `lanes` elements of a caller's array (strides in elements) and rows.
struct TransferArgs {
  std::ptrdiff_t steps;
  int lanes;
  const void* source;
  void* target;
  std::ptrdiff_t step_stride;  ///< of the caller's array
  std::ptrdiff_t lane_stride;
  std::ptrdiff_t row_stride;  ///< of the rows, scalars
  std::ptrdiff_t plane;
  bool past_cache = false;  ///< to an array too large to be worth caching
};

/// The kernels of a cell that isn't the library's, for the one instruction set that its file was
/// compiled for.
struct CustomCell {
  const char* isa;
  CellKernels kernels[2];  ///< float, double
};

using Transfer = void (*)(const TransferArgs&);

inline constexpr int kFloatDTypes = 6;  // f16 .. c128, the first entries of DType

struct InstructionSet {
  const char* name;
  /// Indexed by CellKind, then by accumulation type: f32, f64, c64, c128 (DType minus f32).
  CellKernels cell[kCells][4];
  MapKernels map[4];
  SolveKernels solve[kNonlinearCells][2];  ///< by NonlinearCellKind, then f32, f64
  Transfer load[kFloatDTypes];             ///< caller's array of that dtype -> rows
  Transfer store[kFloatDTypes];            ///< rows -> caller's array
};

}  // namespace scanrnn::cpu
