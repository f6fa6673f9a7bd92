// SPDX-License-Identifier: Apache-2.0
// The kernels of nonlinear cells: a cell's step over lanes that know nothing of each other. Written
// once for every cell, register type and instruction set.
#pragma once

#include "cpu/kernels.hpp"
#include "cpu/simd.hpp"
#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

template <class Cell, class S>
struct SolveLeaf {
  using R = Vec<S>;
  static constexpr int states = Cell::states;
  static constexpr int inputs = Cell::inputs;
  static_assert(NonlinearCellTraits<Cell>::is_cell);

  static constexpr bool is_vector(int input) { return (Cell::vector_inputs >> input & 1u) != 0; }

  static SCANRNN_HD R get(const ConstRows& rows, int t, int lane) {
    return load(static_cast<const S*>(rows.data) + t * rows.stride + lane);
  }
  static SCANRNN_HD void put(const Rows& rows, int t, int lane, const R& r) {
    if (rows.data != nullptr) store(static_cast<S*>(rows.data) + t * rows.stride + lane, r);
  }
  static SCANRNN_HD void read(const SolveArgs& g, int t, int lane, R (&in)[inputs]) {
    for (int i = 0; i < inputs; ++i) in[i] = get(g.in[i], t, lane);
  }

  /// `r` in lanes that pass the step's start, 0 where a reset drops what comes.
  static SCANRNN_HD R kept(const SolveArgs& g, int t, int lane, const R& r) {
    if (g.reset.data == nullptr) return r;
    const R flag = get(g.reset, t, lane);
    return select(Mask<S>{flag.v != R{}.v}, R{}, r);
  }

  // What lanes carry rests in rows, in the first-level cache: lane 0's numbers are `plane` apart.

  static SCANRNN_HD R get(const void* rows, std::ptrdiff_t plane, int index, int lane) {
    return load(static_cast<const S*>(rows) + index * plane + lane);
  }
  static SCANRNN_HD void put(void* rows, std::ptrdiff_t plane, int index, int lane, const R& r) {
    store(static_cast<S*>(rows) + index * plane + lane, r);
  }

  template <bool Tangent>
  static void run(const SolveArgs& args) {
    const SolveArgs g = args;  // whose address goes nowhere: stores into rows can't change it
    const Cell cell = *static_cast<const Cell*>(g.cell);
    for (int t = 0; t < g.steps; ++t) {
      for (int lane = 0; lane < g.lanes; lane += R::lanes) {
        R in[inputs], before[states], after[states];
        read(g, t, lane, in);
        for (int s = 0; s < states; ++s) {
          before[s] = after[s] = kept(g, t, lane, get(g.state, g.plane, s, lane));
        }
        if constexpr (Tangent) {
          Dual<R, states> dual[states];
          for (int s = 0; s < states; ++s) {
            dual[s].value = before[s];
            for (int i = 0; i < states; ++i) {
              dual[s].slope[i] = kept(g, t, lane, get(g.map, g.plane, s * states + i, lane));
            }
          }
          cell.step(in, dual);
          for (int s = 0; s < states; ++s) {
            after[s] = dual[s].value;
            for (int i = 0; i < states; ++i) {
              put(g.map, g.plane, s * states + i, lane, dual[s].slope[i]);
            }
          }
        } else {
          cell.step(in, after);
        }
        for (int s = 0; s < states; ++s) put(g.state, g.plane, s, lane, after[s]);
        if (g.out.data != nullptr) put(g.out, t, lane, cell.output(in, before, after));
        if constexpr (Cell::kept_state >= 0) put(g.kept, t, lane, after[Cell::kept_state]);
      }
    }
  }

  /// Downwards from the last step, on what forward's states were.
  template <class Body>
  static SCANRNN_HD void each_step_back(const SolveArgs& g, const Body& body) {
    for (int t = g.steps - 1; t >= 0; --t) {
      for (int lane = 0; lane < g.lanes; lane += R::lanes) {
        R in[inputs], before[states], after[states];
        read(g, t, lane, in);
        for (int s = 0; s < states; ++s) {
          before[s] = kept(g, t, lane, get(g.before[s], t, lane));
          after[s] = get(g.after[s], t, lane);
        }
        body(t, lane, in, before, after, get(g.dy, t, lane));
      }
    }
  }

  /// A segment's adjoint as a map: the pullback is linear, so it takes the offset and every column
  /// of the gain back as it would an adjoint.
  static void map_back(const SolveArgs& args) {
    const SolveArgs g = args;
    const Cell cell = *static_cast<const Cell*>(g.cell);
    each_step_back(g, [&](int t, int lane, const R(&in)[inputs], const R(&before)[states],
                          const R(&after)[states], const R& dy) {
      R unused[inputs], enters[states], leaves[states];
      for (int s = 0; s < states; ++s) enters[s] = get(g.state, g.plane, s, lane);
      cell.pullback(in, before, after, dy, enters, unused, leaves);
      for (int s = 0; s < states; ++s) {
        put(g.state, g.plane, s, lane, kept(g, t, lane, leaves[s]));
      }
      for (int i = 0; i < states; ++i) {
        for (int s = 0; s < states; ++s) enters[s] = get(g.map, g.plane, s * states + i, lane);
        cell.pullback(in, before, after, R{}, enters, unused, leaves);
        for (int s = 0; s < states; ++s) {
          put(g.map, g.plane, s * states + i, lane, kept(g, t, lane, leaves[s]));
        }
      }
    });
  }

  static void run_back(const SolveArgs& args) {
    const SolveArgs g = args;
    const Cell cell = *static_cast<const Cell*>(g.cell);
    each_step_back(g, [&](int t, int lane, const R(&in)[inputs], const R(&before)[states],
                          const R(&after)[states], const R& dy) {
      R din[inputs], enters[states], leaves[states];
      for (int s = 0; s < states; ++s) enters[s] = get(g.state, g.plane, s, lane);
      cell.pullback(in, before, after, dy, enters, din, leaves);
      for (int s = 0; s < states; ++s) {
        put(g.state, g.plane, s, lane, kept(g, t, lane, leaves[s]));
      }
      for (int i = 0; i < inputs; ++i) {
        if (!is_vector(i)) put(g.din[i], t, lane, din[i]);
        if (g.sum[i] != nullptr) {
          put(g.sum[i], 0, 0, lane, get(g.sum[i], 0, 0, lane) + din[i]);
        }
      }
    });
  }

  static SolveKernels kernels() { return {R::lanes, run<false>, run<true>, map_back, run_back}; }
};

}  // namespace scanrnn::cpu::SCANRNN_ISA
