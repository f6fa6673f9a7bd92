// SPDX-License-Identifier: Apache-2.0
// What a cell is.
//
// A cell is the mathematics of one step of one channel, written once, over any register type R
// (float, double, Complex of them, or a backend's SIMD vectors). Executors supply the loops, the
// merge tree, the layouts and the dtypes; a cell supplies these members. cells/sru.hpp is the
// worked example: read it beside this list.
//
//   static constexpr int inputs;                arrays that a step reads, in the order of `in`
//   static constexpr unsigned map_inputs;       bit i: `step` reads in[i]
//   static constexpr unsigned backward_inputs;  bit i: the backward members read in[i]
//   static constexpr bool state_is_output;      output(in, c) is c: backward then reads the states
//                                               from the output instead of recomputing them
//
//   Affine<R> step(in)                          the map of this step: c_t = a c_{t-1} + x
//   R output(in, c)                             y_t from the state after the step
//   R gain(in)                                  da_t of the adjoint: what g_t passes on to g_{t-1}
//   R output_adjoint(in, c, dy)                 d(output)/dc applied to dy
//   void pullback(in, c_prev, c, dy, g, din)    gradients of every input, g = dL/dc_t in full
//
// `in` is R[inputs]. An input that is constant over time or batch (a bias) is an ordinary input
// with stride 0: the executor sums its gradient over the axes it is broadcast over.
//
// What callers see of a cell is data beside these: `name` and `names` (of the inputs, as errors
// call them), and what CellBase has defaults for. Where the state is the output, `c` of the
// backward members isn't read: it is c_t, but not given.
#pragma once

#include <type_traits>

#include "scanrnn/core/affine.hpp"

namespace scanrnn {

/// Inputs that an executor makes room for.
inline constexpr int kMaxInputs = 8;

/// A cell derives from it, and has members of the same names where it differs.
struct CellBase {
  static constexpr unsigned vector_inputs = 0;  ///< bit i: in[i] is one value a channel (a bias)
  static constexpr unsigned optional_inputs =
      0;  ///< bit i: in[i] may be absent: then it reads as 0
  static constexpr unsigned broadcast_inputs = 0;  ///< bit i: in[i] may be of size 1 on any axis
  static constexpr unsigned state_inputs = ~0u;    ///< bit i: the gradient of in[i] reads c_prev
  static constexpr unsigned output_inputs = ~0u;   ///< bit i: `output` reads in[i]
  static constexpr unsigned gain_inputs = ~0u;     ///< bit i: `gain` reads in[i]
  static constexpr unsigned adjoint_inputs = ~0u;  ///< bit i: `output_adjoint` reads in[i]
  static constexpr bool step_is_input = false;     ///< `step` only hands inputs on
  static constexpr bool is_input_costly = false;   ///< `input` (HasInput) takes exponentials
  static constexpr int left_out = 0;               ///< inputs of its cell that a case lacks
  static constexpr const char* state = "h";        ///< its initial value is "h0"

  /// Run-time options: option(name, member, least, most) for each, the member a number or an enum.
  template <class Self, class Option>
  static void options(Self&, Option&&) {}
  /// A cell may name a type `Prepared`, with the same data and is_prepared = true, for executors
  /// that read vector inputs once for many steps: its `prepare(in)` turns these into the quantities
  /// that its other members then find in their place.
  static constexpr bool is_prepared = false;
  /// Called before a run: bit i says that in[i] was given.
  void given(unsigned) {}
};

template <class Cell, class = void>
struct PreparedType {
  using Type = Cell;
};
template <class Cell>
struct PreparedType<Cell, std::void_t<typename Cell::Prepared>> {
  using Type = typename Cell::Prepared;
  static_assert(Type::is_prepared && sizeof(Type) == sizeof(Cell));
};
template <class Cell>
using Prepared = typename PreparedType<Cell>::Type;

/// A cell may also name a type `Opened`, with the same data, for executors that run a step several
/// times: its `open(in)` turns the inputs in `opened_inputs`, none of them a vector, into what the
/// members of Opened then find in their place, each from itself and vectors alone.
template <class Cell, class = void>
struct OpenedOf {
  using Type = Cell;
};
template <class Cell>
struct OpenedOf<Cell, std::void_t<typename Cell::Opened>> {
  using Type = typename Cell::Opened;
  static_assert(sizeof(Type) == sizeof(Cell));
};
template <class Cell>
using OpenedType = typename OpenedOf<Cell>::Type;
template <class Cell>
inline constexpr bool opens_gates = !std::is_same_v<OpenedType<Cell>, Cell>;

/// A cell may have `R input(in, gain)`, the x of its step's map from the a, where that takes far
/// less than the a: an executor that runs a step twice then keeps the a alone.
template <class Cell, class = void>
struct HasInput : std::false_type {};
template <class Cell>
struct HasInput<Cell, std::void_t<decltype(&Cell::template input<float>)>> : std::true_type {};

/// A cell may also name `Cases`, CellCases of types with the same data: itself with options that
/// are often used as constants, and without its last input where that is then absent. A case's
/// `suits(cell)` says whether a call of the cell is one. Executors may have kernels of their own
/// for cases, which give the same bits.
template <class... Case>
struct CellCases {};
/// The value of an option that a case knows, where `known` is none of a number below 0.
template <class Option>
constexpr SCANRNN_HD Option known_or(int known, Option given) {
  return known < 0 ? given : static_cast<Option>(known);
}
template <class Cell, class = void>
struct CasesOf {
  using Type = CellCases<>;
};
template <class Cell>
struct CasesOf<Cell, std::void_t<typename Cell::Cases>> {
  using Type = typename Cell::Cases;
};

template <class Cell>
struct CellTraits {
  static constexpr unsigned all_inputs = (1u << Cell::inputs) - 1;
  /// Inputs whose gradient may have to be summed over time.
  static constexpr unsigned summed_inputs = Cell::vector_inputs | Cell::broadcast_inputs;
  static constexpr bool is_cell =
      Cell::inputs >= 1 && Cell::inputs <= kMaxInputs && (Cell::map_inputs & ~all_inputs) == 0 &&
      (Cell::backward_inputs & ~all_inputs) == 0 && (Cell::vector_inputs & 1u) == 0 &&
      (Cell::optional_inputs & 1u) == 0;  // in[0] gives the extents
};

}  // namespace scanrnn
