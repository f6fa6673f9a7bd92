// SPDX-License-Identifier: Apache-2.0
// The kernels for one channel whose steps lie side by side: lanes are steps. A register's maps are
// scanned in log2(lanes) rounds of shifts (Hillis & Steele 1986), and registers follow one another.
// Memory is read and written once, in order, and nothing is transposed.
#pragma once

#include "cpu/kernels.hpp"
#include "cpu/simd.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

template <class Cell, class R>
struct Along {
  using S = typename Register<R>::Scalar;
  using Reg = Register<R>;
  static constexpr unsigned all_inputs = CellTraits<Cell>::all_inputs;

  /// What passes from register to register, the same in every lane.
  struct Carry {
    R state;
    Affine<R> map;
  };

  template <bool Down, int By>
  static SCANRNN_HD void scan_lanes(Affine<R>& m) {
    if constexpr (By < Reg::lanes) {
      const Affine<R> earlier = {shift<Down, By>(m.a, Constant<R>::of(1)),
                                 shift<Down, By>(m.x, R{})};
      m = {product(m.a, earlier.a), fma(m.a, earlier.x, m.x)};
      scan_lanes<Down, 2 * By>(m);
    }
  }

  /// The states after the steps of a register, whose maps are `m`; the last one is in lane `last`.
  template <bool Down, bool HasState, bool HasMap>
  static SCANRNN_HD R solve(const Affine<R>& m, int last, Carry& carry) {
    Affine<R> whole = m;
    scan_lanes<Down, 1>(whole);
    R states = {};
    if (any_not_finite(whole.a)) {
      // A product of gains overflowed. Step by step a zero state stays zero; so these go one by
      // one.
      for (int i = 0; i < Reg::lanes; ++i) {
        const int lane = Down ? Reg::lanes - 1 - i : i;
        const Affine<R> one = {spread(m.a, lane), spread(m.x, lane)};
        carry.map = {product(one.a, carry.map.a), fma(one.a, carry.map.x, one.x)};
        carry.state = fma(one.a, carry.state, one.x);
        states = select(lanes_between<S>(lane, lane + 1), carry.state, states);
      }
      return states;
    }
    if (HasState) {
      states = fma(whole.a, carry.state, whole.x);
      carry.state = spread(states, last);
    }
    if (HasMap) {
      const R a = spread(whole.a, last);
      carry.map = {product(a, carry.map.a), fma(a, carry.map.x, spread(whole.x, last))};
    }
    return states;
  }

  /// Reads and writes `count` steps from `at` on: a whole register, or the run's last few, which
  /// take the lanes that come first in the recurrence.
  template <bool Whole, bool Down>
  struct Access {
    const RunArgs& g;
    int at;
    int count;

    SCANRNN_HD int first_lane() const { return Whole || !Down ? 0 : Reg::lanes - count; }
    SCANRNN_HD int last_lane() const { return Down ? first_lane() : first_lane() + count - 1; }

    SCANRNN_HD R read_at(const S* p) const {
      return Whole ? Reg::load(p, g.plane) : Reg::load_some(p, g.plane, first_lane(), count);
    }
    SCANRNN_HD R read(const void* array) const {
      return read_at(static_cast<const S*>(array) + at);
    }
    SCANRNN_HD R read_previous() const {
      return read_at(at == g.edge ? static_cast<const S*>(g.c_edge)
                                  : static_cast<const S*>(g.c_prev) + at);
    }
    template <unsigned Wanted>
    SCANRNN_HD void read(R (&in)[Cell::inputs]) const {
      for (int i = 0; i < Cell::inputs; ++i) {
        if (((Wanted >> i) & 1u) == 0) {
          in[i] = R{};
        } else if ((g.fixed >> i) & 1u) {
          in[i] = Reg::splat(static_cast<const S*>(g.in[i]), g.plane);
        } else {
          in[i] = read(g.in[i]);
        }
      }
    }
    SCANRNN_HD void write(void* array, const R& r) const {
      S* p = static_cast<S*>(array) + at;
      if (!Whole) {
        Reg::store_some(p, g.plane, r, first_lane(), count);
      } else if (g.past_cache) {
        Reg::store_past_cache(p, g.plane, r);
      } else {
        Reg::store(p, g.plane, r);
      }
    }
    /// Lanes beyond the run change nothing.
    SCANRNN_HD R inside(const R& r, const R& outside) const {
      return Whole ? r : select(lanes_between<S>(first_lane(), first_lane() + count), r, outside);
    }
    SCANRNN_HD Affine<R> inside(const Affine<R>& m) const {
      return {inside(m.a, Constant<R>::of(1)), inside(m.x, R{})};
    }
  };

  struct MapStep {
    static constexpr bool has_state = false, has_map = true, has_sums = false;
    template <bool Whole, bool Down>
    static SCANRNN_HD void step(const Access<Whole, Down>& io, const Cell& cell, Carry& carry, R*) {
      R in[Cell::inputs];
      io.template read<Cell::map_inputs>(in);
      solve<Down, false, true>(io.inside(cell.step(in)), io.last_lane(), carry);
    }
  };

  struct RunStep {
    static constexpr bool has_state = true, has_map = true, has_sums = false;
    template <bool Whole, bool Down>
    static SCANRNN_HD void step(const Access<Whole, Down>& io, const Cell& cell, Carry& carry, R*) {
      R in[Cell::inputs];
      io.template read<all_inputs>(in);
      const R c = solve<Down, true, true>(io.inside(cell.step(in)), io.last_lane(), carry);
      io.write(io.g.out, cell.output(in, c));
    }
  };

  struct StatesStep {
    static constexpr bool has_state = true, has_map = false, has_sums = false;
    template <bool Whole, bool Down>
    static SCANRNN_HD void step(const Access<Whole, Down>& io, const Cell& cell, Carry& carry, R*) {
      R in[Cell::inputs];
      io.template read<Cell::map_inputs>(in);
      io.write(io.g.out, solve<Down, true, false>(io.inside(cell.step(in)), io.last_lane(), carry));
    }
  };

  template <bool Whole, bool Down>
  static SCANRNN_HD void read_adjoint(const Access<Whole, Down>& io, const Cell& cell,
                                      R (&in)[Cell::inputs], R& c, R& dy, R& local,
                                      Affine<R>& map) {
    io.template read<Cell::backward_inputs>(in);
    dy = io.g.dy != nullptr ? io.read(io.g.dy) : R{};
    c = Cell::state_is_output ? R{} : io.read(io.g.c);
    local = io.inside(cell.output_adjoint(in, c, dy), R{});
    const R gain = cell.gain(in);
    map = io.inside(Affine<R>{gain, product(gain, local)});
  }

  struct MapBackwardStep {
    static constexpr bool has_state = false, has_map = true, has_sums = false;
    template <bool Whole, bool Down>
    static SCANRNN_HD void step(const Access<Whole, Down>& io, const Cell& cell, Carry& carry, R*) {
      R in[Cell::inputs], c, dy, local;
      Affine<R> map;
      read_adjoint(io, cell, in, c, dy, local, map);
      solve<Down, false, true>(map, io.last_lane(), carry);
    }
  };

  template <bool Sums>
  struct RunBackwardStep {
    static constexpr bool has_state = true, has_map = true, has_sums = Sums;
    template <bool Whole, bool Down>
    static SCANRNN_HD void step(const Access<Whole, Down>& io, const Cell& cell, Carry& carry,
                                R* sum) {
      R in[Cell::inputs], din[Cell::inputs], c, dy, local;
      Affine<R> map;
      read_adjoint(io, cell, in, c, dy, local, map);
      const R incoming = carry.state;
      const R leaving = solve<Down, true, true>(map, io.last_lane(), carry);
      const R whole = shift<Down, 1>(leaving, incoming) + local;
      cell.pullback(in, io.read_previous(), c, dy, whole, din);
      for (int i = 0; i < Cell::inputs; ++i) {
        if (io.g.din[i] != nullptr) io.write(io.g.din[i], din[i]);
        if (Sums) sum[i] = sum[i] + io.inside(din[i], R{});
      }
    }
  };

  static SCANRNN_HD void put(void* scalar, std::ptrdiff_t plane, const R& r) {
    Reg::store_some(static_cast<S*>(scalar), plane, r, 0, 1);
  }

  /// The sum of all lanes in lane 0, halves first.
  template <int By = Reg::lanes / 2>
  static SCANRNN_HD R sum_of_lanes(const R& r) {
    if constexpr (By == 0) {
      return r;
    } else {
      return sum_of_lanes<By / 2>(r + shift<true, By>(r, R{}));
    }
  }

  template <class Step, bool Down>
  static SCANRNN_HD void steps(const RunArgs& g) {
    const Cell cell = *static_cast<const Cell*>(g.cell);
    Carry carry = {
        Step::has_state ? Reg::splat(static_cast<const S*>(g.state), g.state_plane) : R{},
        {Constant<R>::of(1), R{}}};
    R sum[Cell::inputs];
    for (int i = 0; i < Cell::inputs; ++i) sum[i] = R{};
    // Registers start where the recurrence does, so that a run and its mirror image give the same
    // bits; the last few steps are those that come last.
    const int whole = g.steps / Reg::lanes * Reg::lanes;
    const int rest = g.steps - whole;
    for (int i = 0; i < whole; i += Reg::lanes) {
      const Access<true, Down> io = {g, Down ? g.steps - Reg::lanes - i : i, Reg::lanes};
      Step::step(io, cell, carry, sum);
    }
    if (rest > 0) {
      Step::step(Access<false, Down>{g, Down ? 0 : whole, rest}, cell, carry, sum);
    }
    if (Step::has_state) put(g.state, g.state_plane, carry.state);
    if (Step::has_map) {
      put(g.map_a, g.state_plane, carry.map.a);
      put(g.map_x, g.state_plane, carry.map.x);
    }
    for (int i = 0; Step::has_sums && i < Cell::inputs; ++i) {
      if (g.sum[i] != nullptr) put(g.sum[i], g.state_plane, sum_of_lanes(sum[i]));
    }
  }

  template <class Step>
  static void kernel(const RunArgs& args) {
    const RunArgs g = args;
    if (g.descending) {
      steps<Step, true>(g);
    } else {
      steps<Step, false>(g);
    }
  }

  static void run_backward(const RunArgs& args) {
    for (int i = 0; i < Cell::inputs; ++i) {
      if (args.sum[i] != nullptr) return kernel<RunBackwardStep<true>>(args);
    }
    kernel<RunBackwardStep<false>>(args);
  }

  static RunKernels kernels() {
    return {kernel<MapStep>, kernel<RunStep>, Cell::state_is_output ? nullptr : kernel<StatesStep>,
            kernel<MapBackwardStep>, run_backward};
  }
};

}  // namespace scanrnn::cpu::SCANRNN_ISA
