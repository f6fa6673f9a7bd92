// SPDX-License-Identifier: Apache-2.0
// The kernels for one channel whose steps lie side by side: lanes are steps. Registers are taken in
// blocks. The maps of neighbouring steps merge in pairs, and the pairs' in pairs, until one
// register is left, whose lanes are scanned in log2(lanes) rounds of shifts (Hillis & Steele 1986);
// on the way back every pair's first state follows from what came before it (Blelloch 1990). Memory
// is read and written once, in order, and nothing is transposed.
#pragma once

#include <type_traits>

#include "cpu/kernels.hpp"
#include "cpu/simd.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

/// The cell of a call; a prepared one has the same data as the one that the call was given.
template <class Cell>
SCANRNN_HD Cell read_cell(const void* given) {
  Cell cell;
  __builtin_memcpy(static_cast<void*>(&cell), given, sizeof(Cell));
  return cell;
}

template <class Cell, class R>
struct Along {
  using S = typename Register<R>::Scalar;
  using Reg = Register<R>;
  static constexpr unsigned all_inputs = CellTraits<Cell>::all_inputs;
  static constexpr bool is_summed(int input) {
    return ((CellTraits<Cell>::summed_inputs >> input) & 1u) != 0;
  }

  // Registers of a block. Few enough that the roundings of gains within it don't show: with 128
  // steps a block, errors at constant gates near 0.997 reach 3 times a serial loop's. (AVX-512, ns
  // a register in the cache, the map alone and the states: 4 registers 5.0 and 6.7, 8 registers 4.1
  // and 6.8; each register by itself 6.4 and 7.6.)
  static constexpr int kRegisters = Reg::lanes >= 16 ? 4 : 8;
  static constexpr int kBlockSteps = kRegisters * Reg::lanes;

  /// What passes from block to block, in double precision: the same in every lane.
  using Double = DoubleOf<R>;
  using D = typename Double::Type;
  struct Carry {
    D state;
    Affine<D> map;
    R states;  ///< of the last register, as they were written

    SCANRNN_HD void pass(const Affine<D>& by) {
      state = fma(by.a, state, by.x);
      map = {product(by.a, map.a), fma(by.a, map.x, by.x)};
    }
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

  /// Every other lane of two registers, of which p comes first in the recurrence.
  template <bool Down, bool Later>
  static SCANRNN_HD R half(const R& p, const R& q) {
    return Down ? alternate<!Later>(q, p) : alternate<Later>(p, q);
  }

  /// The states after the steps of `count` registers with the maps `m`, from the state `start`; and
  /// in `whole` the map of all of them, in the lane that comes last.
  template <bool Down, bool HasState, int count>
  static SCANRNN_HD void solve(const Affine<R>* m, const R& start, R* states, Affine<R>& whole) {
    if constexpr (count == 1) {
      whole = m[0];
      scan_lanes<Down, 1>(whole);
      if (HasState) states[0] = fma(whole.a, start, whole.x);
    } else {
      constexpr int pairs = count / 2;
      Affine<R> first[pairs], both[pairs];
      R ends[pairs];
#pragma GCC unroll 8
      for (int k = 0; k < pairs; ++k) {
        const Affine<R>&p = m[2 * k], &q = m[2 * k + 1];
        first[k] = {half<Down, false>(p.a, q.a), half<Down, false>(p.x, q.x)};
        const Affine<R> second = {half<Down, true>(p.a, q.a), half<Down, true>(p.x, q.x)};
        both[k] = {product(second.a, first[k].a), fma(second.a, first[k].x, second.x)};
      }
      solve<Down, HasState, pairs>(both, start, ends, whole);
#pragma GCC unroll 8
      for (int k = 0; HasState && k < pairs; ++k) {
        const R before = after<Down>(ends[k], k == 0 ? start : ends[k - 1]);
        const R middle = fma(first[k].a, before, first[k].x);
        states[2 * k + (Down ? 1 : 0)] =
            Down ? interleave<false>(ends[k], middle) : interleave<false>(middle, ends[k]);
        states[2 * k + (Down ? 0 : 1)] =
            Down ? interleave<true>(ends[k], middle) : interleave<true>(middle, ends[k]);
      }
    }
  }

  /// What lies a page from `p` on, into the second-level cache: a block is more work than the
  /// processor looks ahead, and what the first level can wait for is less than memory can deliver.
  /// (CPU time of (1, 2^22, 1) where all tiles are taken twice, 2 threads: into the first level 1.7
  /// ms each, into the second 1.3.)
  template <bool Down>
  static SCANRNN_HD void prefetch(const S* p) {
    __builtin_prefetch(p + (Down ? -4096 : 4096) / static_cast<int>(sizeof(S)), 0, 2);
  }

  /// Reads and writes `count` steps from `at` on: a whole register, or the run's last few, which
  /// take the lanes that come first in the recurrence.
  template <bool Whole, bool Down>
  struct Access {
    static constexpr bool down = Down;
    const RunArgs& g;
    int at;
    int count;

    SCANRNN_HD bool is_whole() const { return Whole || count == Reg::lanes; }
    SCANRNN_HD int first_lane() const { return is_whole() || !Down ? 0 : Reg::lanes - count; }

    SCANRNN_HD R read_at(const S* p) const {
      return is_whole() ? Reg::load(p, g.plane) : Reg::load_some(p, g.plane, first_lane(), count);
    }
    SCANRNN_HD R read(const void* array) const {
      const S* p = static_cast<const S*>(array) + at;
      if (Whole) prefetch<Down>(p);
      return read_at(p);
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
      if (!is_whole()) {
        Reg::store_some(p, g.plane, r, first_lane(), count);
      } else if (g.past_cache) {
        Reg::store_past_cache(p, g.plane, r);
      } else {
        Reg::store(p, g.plane, r);
      }
    }
    /// Lanes beyond the run change nothing.
    SCANRNN_HD R inside(const R& r, const R& outside) const {
      return is_whole() ? r
                        : select(lanes_between<S>(first_lane(), first_lane() + count), r, outside);
    }
    SCANRNN_HD Affine<R> inside(const Affine<R>& m) const {
      return {inside(m.a, Constant<R>::of(1)), inside(m.x, R{})};
    }
  };

  // The kernels differ in the map of a step, and in what they do once the states are known:
  // `before` is the register of states that comes before `states`.

  struct MapStep {
    static constexpr bool has_state = false, has_map = true, has_sums = false;
    template <class Io>
    static SCANRNN_HD Affine<R> map(const Io& io, const Cell& cell) {
      R in[Cell::inputs];
      io.template read<Cell::map_inputs>(in);
      return io.inside(cell.step(in));
    }
    template <class Io>
    static SCANRNN_HD void finish(const Io&, const Cell&, const R&, const R&, R*) {}
  };

  struct RunStep : MapStep {
    static constexpr bool has_state = true;
    template <class Io>
    static SCANRNN_HD void finish(const Io& io, const Cell& cell, const R&, const R& states, R*) {
      R in[Cell::inputs];
      io.template read<all_inputs>(in);
      io.write(io.g.out, cell.output(in, states));
    }
  };

  struct StatesStep : MapStep {
    static constexpr bool has_state = true, has_map = false;
    template <class Io>
    static SCANRNN_HD void finish(const Io& io, const Cell&, const R&, const R& states, R*) {
      io.write(io.g.out, states);
    }
  };

  template <class Io>
  static SCANRNN_HD R read_adjoint(const Io& io, const Cell& cell, R (&in)[Cell::inputs], R& c,
                                   R& dy) {
    io.template read<Cell::backward_inputs>(in);
    dy = io.g.dy != nullptr ? io.read(io.g.dy) : R{};
    c = Cell::state_is_output ? R{} : io.read(io.g.c);
    return io.inside(cell.output_adjoint(in, c, dy), R{});
  }

  struct MapBackwardStep {
    static constexpr bool has_state = false, has_map = true, has_sums = false;
    template <class Io>
    static SCANRNN_HD Affine<R> map(const Io& io, const Cell& cell) {
      R in[Cell::inputs], c, dy;
      const R local = read_adjoint(io, cell, in, c, dy);
      const R gain = cell.gain(in);
      return io.inside(Affine<R>{gain, product(gain, local)});
    }
    template <class Io>
    static SCANRNN_HD void finish(const Io&, const Cell&, const R&, const R&, R*) {}
  };

  template <bool Sums>
  struct RunBackwardStep : MapBackwardStep {
    static constexpr bool has_state = true, has_sums = Sums;
    template <class Io>
    static SCANRNN_HD void finish(const Io& io, const Cell& cell, const R& before, const R& states,
                                  R* sum) {
      R in[Cell::inputs], din[Cell::inputs], c, dy;
      const R local = read_adjoint(io, cell, in, c, dy);
      const R whole = after<Io::down>(states, before) + local;
      cell.pullback(in, io.read_previous(), c, dy, whole, din);
      for (int i = 0; i < Cell::inputs; ++i) {
        if (io.g.din[i] != nullptr) io.write(io.g.din[i], din[i]);
        if (Sums && is_summed(i)) sum[i] = sum[i] + io.inside(din[i], R{});
      }
    }
  };

  /// `count` steps, the block from step `begin` of the recurrence on.
  template <class Step, bool Whole, bool Down>
  static SCANRNN_HD void block(const RunArgs& g, const Cell& cell, int begin, int count,
                               Carry& carry, R* sum) {
    const auto access = [&](int r) {
      const int first = begin + r * Reg::lanes;
      const int left = count - r * Reg::lanes;
      const int here = Whole || left >= Reg::lanes ? Reg::lanes : left;
      return Access<Whole, Down>{g, Down ? g.steps - first - here : first, here};
    };
    const int registers = Whole ? kRegisters : (count + Reg::lanes - 1) / Reg::lanes;
    Affine<R> m[kRegisters], whole;
    if constexpr (Whole) {
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) m[r] = Step::map(access(r), cell);
    } else {
#pragma GCC unroll 1
      for (int r = 0; r < kRegisters; ++r) {
        m[r] = r < registers ? Step::map(access(r), cell) : identity<Affine<R>>();
      }
    }
    Gain<R> gain = Gain<R>::of(m[0].a);
#pragma GCC unroll 8
    for (int r = 1; r < kRegisters; ++r) gain = gain.times(m[r].a);
    const R start = Step::has_state ? Double::back(carry.state) : R{};
    R states[kRegisters];
    solve<Down, Step::has_state, kRegisters>(m, start, states, whole);
    constexpr int last = Down ? 0 : Reg::lanes - 1;
    Affine<D> map = {Double::spread(whole.a, last), Double::spread(whole.x, last)};
    if (first_not_finite(map.a)) {
      one_by_one<Step, Whole, Down>(access, cell, registers, carry, states);
    } else {
      // Where gates are constant and close to 1, a rounded gain would be off by the same in every
      // block. Lane by lane the product is exact, but may leave the range that it stays in in
      // order.
      if (sizeof(S) < sizeof(double) && gain.is_exact()) {
        const D exact = spread(product_of_lanes(gain.widen()), 0);
        if (!first_not_finite(exact)) map.a = exact;
      }
      carry.pass(map);
    }
    if constexpr (!Step::has_state) return;
    carry.states = states[registers - 1];
    const auto finish = [&](int r) {
      Step::finish(access(r), cell, r == 0 ? start : states[r - 1], states[r], sum);
    };
    if constexpr (Whole) {
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) finish(r);
    } else {
#pragma GCC unroll 1
      for (int r = 0; r < registers; ++r) finish(r);
    }
  }

  /// The same where a product of gains overflowed. Step by step a zero state stays zero.
  template <class Step, bool Whole, bool Down, class Registers>
  static void one_by_one(const Registers& access, const Cell& cell, int registers, Carry& carry,
                         R* states) {
    for (int r = 0; r < registers; ++r) {
      const Access<Whole, Down> io = access(r);
      const Affine<R> m = Step::map(io, cell);
      for (int i = 0; i < io.count; ++i) {
        const int lane = Down ? Reg::lanes - 1 - i : i;
        carry.pass({Double::spread(m.a, lane), Double::spread(m.x, lane)});
        states[r] = select(lanes_between<S>(lane, lane + 1), Double::back(carry.state), states[r]);
      }
    }
  }

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
    const Cell cell = read_cell<Cell>(g.cell);
    Carry carry = {D{}, identity<Affine<D>>(), R{}};
    if (Step::has_state) {
      carry.state = Double::spread(Reg::splat(static_cast<const S*>(g.state), g.state_plane), 0);
    }
    R sum[Cell::inputs];
    for (int i = 0; i < Cell::inputs; ++i) sum[i] = R{};
    // Blocks start where the recurrence does, so that a run and its mirror image give the same
    // bits; the last few steps are those that come last.
    int start = 0;
    for (; start + kBlockSteps <= g.steps; start += kBlockSteps) {
      block<Step, true, Down>(g, cell, start, kBlockSteps, carry, sum);
    }
    if (start < g.steps) block<Step, false, Down>(g, cell, start, g.steps - start, carry, sum);
    if (Step::has_state) {
      const int lane = (g.steps - 1) % Reg::lanes;
      put(g.state, g.state_plane, spread(carry.states, Down ? Reg::lanes - 1 - lane : lane));
    }
    if (Step::has_map) put_map(g, carry.map);
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

  // Forward, a square of steps at a time: each lane takes as many of them in a row as there are
  // lanes, for which the square is transposed on its way through registers. The maps of the lanes
  // are scanned in double precision; then their first states are known, and each runs by itself.
  // Where the state before the run isn't known yet, what has been found so far is kept, so that
  // nothing is done twice. (AVX-512, ns a register in the cache: a run 6.8, what is kept 4.4 and
  // the rest 2.1, where blocks take 7.0 for a run and 5.0 for its map.)

  static constexpr bool has_squares = Cell::step_is_input && std::is_same_v<R, Vec<S>>;
  static constexpr int kSquare = Reg::lanes * Reg::lanes;

  /// What is kept of a square, in the order of the recurrence from the lane on that comes first.
  struct Square {
    R a[Reg::lanes], x[Reg::lanes];  ///< the map of each step
    Affine<Wide<R>> until;           ///< from the square's start to each lane's end
  };

  static SCANRNN_HD int squares(const RunArgs& g) { return g.steps / kSquare; }
  static SCANRNN_HD Square* kept(const RunArgs& g) { return static_cast<Square*>(g.kept); }

  /// The maps of the lanes so far, one half of a register's lanes.
  template <bool Down, int By = 1, class T>
  static SCANRNN_HD Affine<T> scanned(const Affine<T>& m) {
    if constexpr (By >= Register<T>::lanes) {
      return m;
    } else {
      const Affine<T> earlier = {shift<Down, By>(m.a, Constant<T>::of(1)),
                                 shift<Down, By>(m.x, T{})};
      return scanned<Down, 2 * By>(Affine<T>{product(m.a, earlier.a), fma(m.a, earlier.x, m.x)});
    }
  }
  template <bool Down>
  static SCANRNN_HD Affine<Doubles> scanned(const Affine<Doubles>& m) {
    constexpr int last = Down ? 0 : Register<D>::lanes - 1;
    const Affine<D> low = scanned<Down>(Affine<D>{m.a.low, m.x.low});
    const Affine<D> high = scanned<Down>(Affine<D>{m.a.high, m.x.high});
    const Affine<D>&first = Down ? high : low, &second = Down ? low : high;
    const D a = spread(first.a, last), x = spread(first.x, last);
    const Affine<D> both = {product(second.a, a), fma(second.a, x, second.x)};
    return Down ? Affine<Doubles>{{both.a, first.a}, {both.x, first.x}}
                : Affine<Doubles>{{first.a, both.a}, {first.x, both.x}};
  }
  /// The same where a product overflowed: a zero state stays out of it.
  template <bool Down>
  static Affine<Wide<R>> scanned_one_by_one(const Affine<Wide<R>>& m) {
    double a[Reg::lanes], x[Reg::lanes];
    Register<Wide<R>>::store(a, 0, m.a);
    Register<Wide<R>>::store(x, 0, m.x);
    Affine<double> all = identity<Affine<double>>();
    for (int i = 0; i < Reg::lanes; ++i) {
      const int l = Down ? Reg::lanes - 1 - i : i;
      all = merge(all, Affine<double>{a[l], x[l]});
      a[l] = all.a, x[l] = all.x;
    }
    return {Register<Wide<R>>::load(a, 0), Register<Wide<R>>::load(x, 0)};
  }

  /// The number in the lane that comes last.
  template <bool Down>
  static SCANRNN_HD D last(const Vec<double>& v) {
    return spread(v, Down ? 0 : Vec<double>::lanes - 1);
  }
  template <bool Down>
  static SCANRNN_HD D last(const Doubles& v) {
    return last<Down>(Down ? v.low : v.high);
  }
  static SCANRNN_HD D applied(const Affine<D>& m, const D& state) { return apply(m, state); }
  static SCANRNN_HD Doubles applied(const Affine<Doubles>& m, const D& state) {
    return {apply(Affine<D>{m.a.low, m.x.low}, state), apply(Affine<D>{m.a.high, m.x.high}, state)};
  }

  /// Square `n` of the recurrence: where it starts in memory.
  template <bool Down>
  static SCANRNN_HD int square_at(const RunArgs& g, int n) {
    return Down ? g.steps - (n + 1) * kSquare : n * kSquare;
  }

  template <bool Down>
  static SCANRNN_HD void keep_square(const RunArgs& g, const Cell& cell, int begin, Square& to) {
    constexpr int width = kPartLanes<S>;
    Wide<R> a = Constant<Wide<R>>::of(1);
    R x = {};
#pragma GCC unroll 8
    for (int c = 0; c < Reg::lanes; c += width) {
      const int column = Down ? Reg::lanes - width - c : c;
      R in[Cell::inputs][width];
      for (int i = 0; i < Cell::inputs; ++i) {
        const S* from = static_cast<const S*>(g.in[i]);
        if (((Cell::map_inputs >> i) & 1u) == 0) {
          for (int k = 0; k < width; ++k) in[i][k] = R{};
        } else if ((g.fixed >> i) & 1u) {
          for (int k = 0; k < width; ++k) in[i][k] = splat(*from);
        } else {
          for (int k = 0; k < width; ++k) {
            prefetch<Down>(from + begin + (column + k) * Reg::lanes);
          }
          load_columns(from + begin + column, Reg::lanes, in[i]);
        }
      }
#pragma GCC unroll 4
      for (int k = 0; k < width; ++k) {
        R step[Cell::inputs];
        for (int i = 0; i < Cell::inputs; ++i) step[i] = in[i][Down ? width - 1 - k : k];
        const Affine<R> map = cell.step(step);
        a = product(widen(map.a), a);
        x = fma(map.a, x, map.x);
        to.a[c + k] = map.a;
        to.x[c + k] = map.x;
      }
    }
    const Affine<Wide<R>> lanes = {a, widen(x)};
    to.until = scanned<Down>(lanes);
    if (first_not_finite(last<Down>(to.until.a))) to.until = scanned_one_by_one<Down>(lanes);
  }

  /// Writes the outputs of a square that `state` comes before, and what comes after it.
  template <bool Down>
  static SCANRNN_HD void finish_square(const RunArgs& g, const Cell& cell, int begin,
                                       const Square& square, Carry& carry) {
    const Wide<R> ends = applied(square.until, carry.state);
    R state = after<Down>(narrow(ends), Double::back(carry.state));
    R rows[Reg::lanes];
#pragma GCC unroll 16
    for (int k = 0; k < Reg::lanes; ++k) {
      state = fma(square.a[k], state, square.x[k]);
      rows[Down ? Reg::lanes - 1 - k : k] = state;
    }
    carry.state = last<Down>(ends);
    carry.states = state;
    transpose(rows);
#pragma GCC unroll 16
    for (int l = 0; l < Reg::lanes; ++l) {
      const Access<true, Down> io{g, begin + l * Reg::lanes, Reg::lanes};
      R in[Cell::inputs];
      io.template read<Cell::output_inputs>(in);
      io.write(g.out, cell.output(in, rows[l]));
    }
  }

  template <bool Down>
  static SCANRNN_HD void pass(Carry& carry, const Square& square) {
    carry.map = merge(carry.map, {last<Down>(square.until.a), last<Down>(square.until.x)});
  }

  /// Finds the maps of a run, of which its outputs follow, or either by itself.
  template <bool Down, bool Keeps, bool Finishes>
  static SCANRNN_HD void squares_of(const RunArgs& g) {
    const Cell cell = read_cell<Cell>(g.cell);
    Carry carry = {D{}, identity<Affine<D>>(), R{}};
    if (Finishes) {
      carry.state = Double::spread(Reg::splat(static_cast<const S*>(g.state), 0), 0);
    }
    Square own;
    for (int n = 0; n < squares(g); ++n) {
      Square& square = Keeps && Finishes ? own : kept(g)[n];
      const int begin = square_at<Down>(g, n);
      if (Keeps) keep_square<Down>(g, cell, begin, square);
      pass<Down>(carry, square);
      if (Finishes) finish_square<Down>(g, cell, begin, square, carry);
    }
    int start = squares(g) * kSquare;
    using Step = std::conditional_t<Finishes, RunStep, MapStep>;
    for (; start + kBlockSteps <= g.steps; start += kBlockSteps) {
      block<Step, true, Down>(g, cell, start, kBlockSteps, carry, nullptr);
    }
    if (start < g.steps) {
      block<Step, false, Down>(g, cell, start, g.steps - start, carry, nullptr);
    }
    put_map(g, carry.map);
    if (Finishes) {
      const int lane = (g.steps - 1) % Reg::lanes;
      put(g.state, g.state_plane, spread(carry.states, Down ? Reg::lanes - 1 - lane : lane));
    }
  }

  static SCANRNN_HD void put_map(const RunArgs& g, const Affine<D>& map) {
    Register<D>::store_some(static_cast<double*>(g.map_a), g.state_plane, map.a, 0, 1);
    put(g.map_x, g.state_plane, Double::back(map.x));
  }

  template <bool Keeps, bool Finishes>
  static void square_kernel(const RunArgs& args) {
    const RunArgs g = args;
    g.descending ? squares_of<true, Keeps, Finishes>(g) : squares_of<false, Keeps, Finishes>(g);
  }

  static void run_backward(const RunArgs& args) {
    if constexpr (CellTraits<Cell>::summed_inputs != 0) {
      for (int i = 0; i < Cell::inputs; ++i) {
        if (args.sum[i] != nullptr) return kernel<RunBackwardStep<true>>(args);
      }
    }
    kernel<RunBackwardStep<false>>(args);
  }

  static RunKernels kernels() {
    RunKernels all = {nullptr,
                      nullptr,
                      kernel<MapStep>,
                      kernel<RunStep>,
                      Cell::state_is_output ? nullptr : kernel<StatesStep>,
                      kernel<MapBackwardStep>,
                      run_backward};
    if constexpr (has_squares) {
      all.keep = square_kernel<true, false>;
      all.finish = square_kernel<false, true>;
      all.run = square_kernel<true, true>;
      static_assert(sizeof(Square) * (kRunSteps / kSquare) <= kKeptRunBytes<S>);
    }
    return all;
  }
};

}  // namespace scanrnn::cpu::SCANRNN_ISA
