// SPDX-License-Identifier: Apache-2.0
// What a nonlinear cell is: one whose step isn't affine in the state. cells/gru.hpp is the worked
// example.
//
// As for a linear cell (cell.hpp), it is the mathematics of one step of one channel over any
// register type R. The state is one number or two. Members:
//
//   static constexpr int states;                 1, or 2
//   static constexpr const char* state_names[];  "h"; its initial value is "h0"
//   static constexpr int output_state;           output is this state, or -1
//   static constexpr int kept_state;             backward reads this state from an array that
//                                                forward writes beside the output, or -1
//   static constexpr double bounds[];            the state stays in [-b, b] once there; 0: none
//   static constexpr int inputs;                 this, names, vector_inputs and optional_inputs are
//                                                as in cell.hpp
//
//   void step(in, S (&state)[states])            the state after the step, in place. S is R, or
//                                                Dual<R, states>: then the step's tangent too
//   R output(in, before, after)                  y_t from the states before and after the step
//   void pullback(in, before, after, dy, adjoint, din, dbefore)
//                                                gradients of every input and of the state before,
//                                                from `adjoint`, that of the state after (less
//                                                what reaches it through dy). Linear in dy and
//                                                adjoint: executors read the adjoint's map from it
//
// Every state is the output or kept. `in` is R[inputs]; recurrent weights and biases are vector
// inputs, (D), whose gradients the executor sums over batch and time.
#pragma once

#include "scanrnn/core/cell.hpp"
#include "scanrnn/core/dual.hpp"

namespace scanrnn {

/// Inputs that an executor of nonlinear cells makes room for.
inline constexpr int kMaxNonlinearInputs = 12;
inline constexpr int kMaxStates = 2;

struct NonlinearCellBase {
  static constexpr unsigned vector_inputs = 0;
  static constexpr unsigned optional_inputs = 0;
  static constexpr int output_state = 0;
  static constexpr int kept_state = -1;

  template <class Self, class Option>
  static void options(Self&, Option&&) {}
  void given(unsigned) {}
};

template <class Cell>
struct NonlinearCellTraits {
  static constexpr bool all_states_are_known() {
    for (int s = 0; s < Cell::states; ++s) {
      if (s != Cell::output_state && s != Cell::kept_state) return false;
    }
    return true;
  }
  static constexpr bool is_cell = Cell::inputs >= 1 && Cell::inputs <= kMaxNonlinearInputs &&
                                  Cell::states >= 1 && Cell::states <= kMaxStates &&
                                  all_states_are_known() && (Cell::vector_inputs & 1u) == 0 &&
                                  (Cell::optional_inputs & 1u) == 0;  // in[0] gives the extents
};

/// A segment map of that many states: Affine or Affine2.
template <class R, int N>
struct SegmentMap;
template <class R>
struct SegmentMap<R, 1> {
  using Type = Affine<R>;
};
template <class R>
struct SegmentMap<R, 2> {
  using Type = Affine2<R>;
};

/// The state as a function of itself: where a segment's tangent starts.
template <class R, int N>
SCANRNN_HD void independent(const R (&state)[N], Dual<R, N> (&dual)[N]) {
  for (int s = 0; s < N; ++s) {
    dual[s].value = state[s];
    for (int i = 0; i < N; ++i) dual[s].slope[i] = Constant<R>::of(i == s ? 1 : 0);
  }
}

/// One step of the adjoint as a map: what leaves the step, backwards in time, as a function of what
/// enters it. `gain[i][j]` is the derivative of what leaves in state i by what enters in state j.
template <class Cell, class R, int N, int I>
SCANRNN_HD void adjoint_map(const Cell& cell, const R (&in)[I], const R (&before)[N],
                            const R (&after)[N], const R& dy, R (&gain)[N][N], R (&offset)[N]) {
  static_assert(N == Cell::states && I == Cell::inputs);
  const R zero = Constant<R>::of(0), one = Constant<R>::of(1);
  R unused[I], enters[N];
  for (int s = 0; s < N; ++s) enters[s] = zero;
  cell.pullback(in, before, after, dy, enters, unused, offset);
  for (int j = 0; j < N; ++j) {
    R leaves[N];
    enters[j] = one;
    cell.pullback(in, before, after, zero, enters, unused, leaves);
    enters[j] = zero;
    for (int i = 0; i < N; ++i) gain[i][j] = leaves[i];
  }
}

}  // namespace scanrnn
