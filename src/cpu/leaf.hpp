// SPDX-License-Identifier: Apache-2.0
// The leaf kernels: a cell's step over the lanes of one leaf. Written once for every cell, register
// type and instruction set. Narrow blocks keep their lanes in registers over the whole leaf; wide
// ones walk row by row, as memory lies, and keep the lanes' states in the first-level cache.
#pragma once

#include "cpu/along.hpp"
#include "cpu/kernels.hpp"
#include "cpu/simd.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

/// Vectors side by side that a narrow block keeps in registers.
inline constexpr int kBlock = 4;

enum class Pass { map, run, states, map_backward, run_backward };

template <class Cell, class R>
struct Leaf {
  using S = typename Register<R>::Scalar;
  using Reg = Register<R>;
  static constexpr unsigned all_inputs = CellTraits<Cell>::all_inputs;
  static_assert(CellTraits<Cell>::is_cell);

  static constexpr unsigned find_opened() {
    if constexpr (opens_gates<Cell>) return Cell::opened_inputs;
    return 0;
  }
  static constexpr unsigned opened_inputs = find_opened();
  static constexpr bool is_summed(int input) {
    return ((CellTraits<Cell>::summed_inputs >> input) & 1u) != 0;
  }

  static SCANRNN_HD const S* row(const ConstRows& rows, int t, int lane) {
    return static_cast<const S*>(rows.data) + t * rows.stride + lane;
  }
  static SCANRNN_HD S* row(const Rows& rows, int t, int lane) {
    return static_cast<S*>(rows.data) + t * rows.stride + lane;
  }

  static SCANRNN_HD void write(const LeafArgs& g, const Rows& rows, int t, int lane, const R& r) {
    if (g.past_cache) {
      Reg::store_past_cache(row(rows, t, lane), g.plane, r);
    } else {
      Reg::store(row(rows, t, lane), g.plane, r);
    }
  }

  static SCANRNN_HD R get(const void* vector, int lane, std::ptrdiff_t plane) {
    return Reg::load(static_cast<const S*>(vector) + lane, plane);
  }
  static SCANRNN_HD void put(void* vector, int lane, std::ptrdiff_t plane, const R& r) {
    Reg::store(static_cast<S*>(vector) + lane, plane, r);
  }

  static SCANRNN_HD Gain<R> get_gain(const void* vector, int lane, std::ptrdiff_t plane) {
    return Gain<R>::load(static_cast<const double*>(vector) + lane, plane);
  }
  static SCANRNN_HD void put_gain(void* vector, int lane, std::ptrdiff_t plane, const Gain<R>& a) {
    a.store(static_cast<double*>(vector) + lane, plane);
  }
  static SCANRNN_HD void put_doubles(void* vector, int lane, std::ptrdiff_t plane,
                                     const Gain<R>& a) {
    Register<Wide<R>>::store(static_cast<double*>(vector) + lane, plane, a.widen());
  }

  static SCANRNN_HD bool is_reset(const LeafArgs& g, int t) {
    return g.reset != nullptr && g.reset[t * g.reset_stride] != 0;
  }

  template <unsigned Wanted>
  static SCANRNN_HD void read(const LeafArgs& g, int t, int lane, R (&in)[Cell::inputs]) {
    for (int i = 0; i < Cell::inputs; ++i) {
      in[i] = (Wanted >> i) & 1u ? Reg::load(row(g.in[i], t, lane), g.plane) : R{};
    }
  }

  /// What a lane carries through a leaf. Forward `state` is c; backward it is the adjoint that
  /// flows into the step from later ones. (a, x) is the map composed so far.
  struct Carry {
    R state;
    Gain<R> a;
    R x;
  };

  // The kernels differ in their step alone; each reads and updates the carry of one register.

  struct MapStep {
    static constexpr bool has_state = false, has_map = true, descending = false, has_sums = false,
                          has_gradients = false;
    static SCANRNN_HD void step(const LeafArgs& g, const Cell& cell, int t, int lane, bool cut,
                                Carry& c, R*, R*) {
      R in[Cell::inputs];
      read<Cell::map_inputs>(g, t, lane, in);
      const Affine<R> map = cell.step(in);
      c.a = c.a.times(map.a).unless(cut);
      c.x = cut ? map.x : fma(map.a, c.x, map.x);
    }
  };

  struct RunStep {
    static constexpr bool has_state = true, has_map = true, descending = false, has_sums = false,
                          has_gradients = false;
    static SCANRNN_HD void step(const LeafArgs& g, const Cell& cell, int t, int lane, bool cut,
                                Carry& c, R*, R*) {
      R in[Cell::inputs];
      read<all_inputs>(g, t, lane, in);
      const Affine<R> map = cell.step(in);
      c.a = c.a.times(map.a).unless(cut);
      c.x = cut ? map.x : fma(map.a, c.x, map.x);
      c.state = cut ? map.x : fma(map.a, c.state, map.x);
      const R y = cell.output(in, c.state);
      write(g, g.out, t, lane, y);
    }
  };

  /// Backward's first pass: the states, and what the second reads in place of some inputs.
  struct StatesStep {
    static constexpr bool has_state = true, has_map = false, descending = false, has_sums = false,
                          has_gradients = false;
    static SCANRNN_HD void step(const LeafArgs& g, const Cell& cell, int t, int lane, bool cut,
                                Carry& c, R*, R*) {
      R in[Cell::inputs];
      read<Cell::map_inputs | opened_inputs | Cell::vector_inputs>(g, t, lane, in);
      const Affine<R> map = cell.step(in);
      c.state = cut ? map.x : fma(map.a, c.state, map.x);
      Reg::store(row(g.out, t, lane), g.plane, c.state);
      if constexpr (opens_gates<Cell>) {
        cell.open(in);
        for (int i = 0; i < Cell::inputs; ++i) {
          if (((opened_inputs >> i) & 1u) == 0 || g.opened[i].data == nullptr) continue;
          Reg::store(row(g.opened[i], t, lane), g.plane, in[i]);
        }
      }
    }
  };

  /// dL/dy of a step, and the state after it where the cell's adjoint reads it.
  static SCANRNN_HD void read_adjoint(const LeafArgs& g, int t, int lane, R& dy, R& c_after) {
    dy = Reg::load(row(g.dy, t, lane), g.plane);
    c_after = Cell::state_is_output ? R{} : Reg::load(row(g.c, t, lane), g.plane);
  }

  struct MapBackwardStep {
    static constexpr bool has_state = false, has_map = true, descending = true, has_sums = false,
                          has_gradients = false;
    static SCANRNN_HD void step(const LeafArgs& g, const Cell& cell, int t, int lane, bool cut,
                                Carry& c, R*, R*) {
      R in[Cell::inputs], dy, c_after;
      read<Cell::backward_inputs>(g, t, lane, in);
      read_adjoint(g, t, lane, dy, c_after);
      const R gain = cell.gain(in);
      const R local = c.x + cell.output_adjoint(in, c_after, dy);
      c.a = c.a.times(gain).unless(cut);
      c.x = unless(cut, product(gain, local));
    }
  };

  /// With Sums, gradients are also added up over the leaf for the inputs that ask for it.
  template <bool Sums>
  struct RunBackwardStep {
    static constexpr bool has_state = true, has_map = true, descending = true, has_sums = Sums,
                          has_gradients = true;
    static SCANRNN_HD void step(const LeafArgs& g, const Cell& cell, int t, int lane, bool cut,
                                Carry& c, R* sum, R* gradient) {
      R in[Cell::inputs], din[Cell::inputs], dy, c_after;
      read<Cell::backward_inputs>(g, t, lane, in);
      read_adjoint(g, t, lane, dy, c_after);
      const R c_prev =
          cut ? R{}
              : Reg::load(t == 0 ? static_cast<const S*>(g.c_first) + lane : row(g.c_prev, t, lane),
                          g.plane);
      const R gain = cell.gain(in);
      const R local = cell.output_adjoint(in, c_after, dy);
      const R whole = c.state + local;
      cell.pullback(in, c_prev, c_after, dy, whole, din);
      for (int i = 0; i < Cell::inputs; ++i) {
        gradient[i] = din[i];
        if (Sums && is_summed(i)) sum[i] = sum[i] + din[i];
      }
      c.state = unless(cut, product(gain, whole));
      c.a = c.a.times(gain).unless(cut);
      c.x = unless(cut, product(gain, c.x + local));
    }
  };

  static SCANRNN_HD int time_of(const LeafArgs& g, int i, bool descending) {
    return descending ? g.steps - 1 - i : i;
  }

  /// What a pass reads of step t, into the second-level cache. Where backward takes two passes, the
  /// first asks for both.
  template <class Step>
  static SCANRNN_HD void prefetch(const LeafArgs& g, int t, int lane) {
    constexpr bool backward = Step::descending || !Step::has_map;
    constexpr unsigned read = backward          ? Cell::backward_inputs
                              : Step::has_state ? all_inputs
                                                : Cell::map_inputs;
    for (int i = 0; i < Cell::inputs; ++i) {
      if (((read & ~Cell::vector_inputs) >> i) & 1u) {
        __builtin_prefetch(row(g.in[i], t, lane), 0, 2);
      }
    }
    if constexpr (backward) {
      __builtin_prefetch(row(g.dy, t, lane), 0, 2);
      if (Cell::state_is_output && Step::has_state) {
        __builtin_prefetch(row(g.c_prev, t, lane), 0, 2);
      }
    }
  }

  /// `Width` registers from `lane` on, in registers for the whole leaf.
  template <class Step, int Width>
  static SCANRNN_HD void narrow(const LeafArgs& g, int first_lane) {
    const Cell cell = read_cell<Cell>(g.cell);
    Carry carry[Width];
    R sum[Width][Cell::inputs];
    for (int v = 0; v < Width; ++v) {
      const int lane = first_lane + v * Reg::lanes;
      carry[v] = {Step::has_state ? get(g.state, lane, g.plane) : R{}, Gain<R>::one(), R{}};
      for (int i = 0; i < Cell::inputs; ++i) sum[v][i] = R{};
    }
    for (int i = 0; i < g.steps; ++i) {
      const int t = time_of(g, i, Step::descending);
      const bool cut = is_reset(g, t);
      R gradient[Width][Cell::inputs];
#pragma GCC unroll 8
      for (int k = 0; k < Width; ++k) {
        const int v = Step::descending ? Width - 1 - k : k;  // as memory is walked
        const int lane = first_lane + v * Reg::lanes;
        constexpr int of_line = 64 / kVectorBytes;
        if (!Cell::step_is_input && v % of_line == 0 && (g.ahead_steps | g.ahead_lanes) != 0) {
          prefetch<Step>(g, t + g.ahead_steps, lane + g.ahead_lanes);
        }
        Step::step(g, cell, t, lane, cut, carry[v], sum[v], gradient[v]);
      }
      // Array by array: of stores past the caches, those at the same place of different pages wait
      // for each other.
      for (int k = 0; Step::has_gradients && k < Cell::inputs; ++k) {
        if (g.din[k].data == nullptr) continue;
#pragma GCC unroll 8
        for (int v = Width - 1; v >= 0; --v) {
          write(g, g.din[k], t, first_lane + v * Reg::lanes, gradient[v][k]);
        }
      }
    }
    for (int v = 0; v < Width; ++v) {
      const int lane = first_lane + v * Reg::lanes;
      if (Step::has_state) put(g.state, lane, g.plane, carry[v].state);
      if (Step::has_map) {
        put_doubles(g.map_a, lane, g.plane, carry[v].a);
        put(g.map_x, lane, g.plane, carry[v].x);
      }
      for (int i = 0; Step::has_sums && i < Cell::inputs; ++i) {
        if (g.sum[i] != nullptr) put(g.sum[i], lane, g.plane, sum[v][i]);
      }
    }
  }

  /// `Rows` rows from the i-th of the walk on, and each in the direction that rows go, so that
  /// memory is walked from one end to the other. What lanes carry rests in the caches.
  template <class Step, int Rows>
  static SCANRNN_HD void sweep(const LeafArgs& g, const Cell& cell, int i, bool prefetches) {
    for (int l = 0; l < g.lanes; l += Reg::lanes) {
      const int lane = Step::descending ? g.lanes - Reg::lanes - l : l;
      for (int r = 0; prefetches && r < Rows; ++r) {
        prefetch<Step>(g, i + r + Rows * Rows, lane);
      }
      Carry carry = {Step::has_state ? get(g.state, lane, g.plane) : R{},
                     Step::has_map ? get_gain(g.map_a, lane, g.plane) : Gain<R>{},
                     Step::has_map ? get(g.map_x, lane, g.plane) : R{}};
      R sum[Cell::inputs];
      for (int k = 0; Step::has_sums && k < Cell::inputs; ++k) {
        sum[k] = g.sum[k] != nullptr ? get(g.sum[k], lane, g.plane) : R{};
      }
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        const int t = time_of(g, i + r, Step::descending);
        R gradient[Cell::inputs];
        Step::step(g, cell, t, lane, is_reset(g, t), carry, sum, gradient);
        for (int k = 0; Step::has_gradients && k < Cell::inputs; ++k) {
          if (g.din[k].data != nullptr) write(g, g.din[k], t, lane, gradient[k]);
        }
      }
      if (Step::has_state) put(g.state, lane, g.plane, carry.state);
      if (Step::has_map) {
        put_gain(g.map_a, lane, g.plane, carry.a);
        put(g.map_x, lane, g.plane, carry.x);
      }
      for (int k = 0; Step::has_sums && k < Cell::inputs; ++k) {
        if (g.sum[k] != nullptr) put(g.sum[k], lane, g.plane, sum[k]);
      }
    }
  }

  /// More lanes than registers hold: row by row, or in pairs of rows, which halves the loads and
  /// stores of what lanes carry.
  template <class Step, int Rows>
  static SCANRNN_HD void wide(const LeafArgs& g) {
    const Cell cell = read_cell<Cell>(g.cell);
    for (int lane = 0; lane < g.lanes; lane += Reg::lanes) {
      if (Step::has_map) {
        put_gain(g.map_a, lane, g.plane, Gain<R>::one());
        put(g.map_x, lane, g.plane, R{});
      }
      for (int i = 0; Step::has_sums && i < Cell::inputs; ++i) {
        if (g.sum[i] != nullptr) put(g.sum[i], lane, g.plane, R{});
      }
    }
    // Asking ahead pays where rows are a page. (CPU time on one thread: (8,4096,1024) 15 ms to
    // 12.5. With rows of half a page 5% longer, backward up to 20%.)
    const bool prefetches = !Step::descending && row_bytes(g) >= 4096;
    int i = 0;
    for (; i + Rows <= g.steps; i += Rows) sweep<Step, Rows>(g, cell, i, prefetches);
    if constexpr (Rows > 1) {
      for (; i < g.steps; ++i) sweep<Step, 1>(g, cell, i, prefetches);
    }
    for (int lane = 0; Step::has_map && lane < g.lanes; lane += Reg::lanes) {
      put_doubles(g.map_a, lane, g.plane, get_gain(g.map_a, lane, g.plane));
    }
  }

  static SCANRNN_HD int row_bytes(const LeafArgs& g) {
    return g.lanes * static_cast<int>(sizeof(S));
  }

  /// Whether pairs of rows pay: where rows are long, and a step is little work. (The scan, float32,
  /// CPU time on one thread, ms, single rows and pairs: forward (128,320,8192) 203, 164,
  /// (8,512,8192) 20.2, 16.0, (8,2048,2048) 18.5, 15.8; with backward 60.1, 51.8 and 54.5, 51.4.
  /// Rows of a page or less lose: (8,4096,1024) 15.4, 15.7, with backward 44, 57; (1,65536,512)
  /// 14.8, 27.7. Four rows are too many streams, (8,512,8192) 19.8; narrower blocks, whose carries
  /// fit the first-level cache, change nothing.)
  template <class Step>
  static SCANRNN_HD bool takes_pairs(const LeafArgs& g) {
    return row_bytes(g) >= (Step::descending ? 16384 : 8192);
  }

  template <class Step>
  static void kernel(const LeafArgs& args) {
    // A copy whose address goes nowhere: stores into rows can't change it, so it stays in
    // registers.
    const LeafArgs g = args;
    constexpr int block = kBlock * Reg::lanes;
    if constexpr (Cell::step_is_input) {
      if (g.lanes > block && !g.resident) {
        return takes_pairs<Step>(g) ? wide<Step, 2>(g) : wide<Step, 1>(g);
      }
    }
    int lane = 0;
    for (; lane + block <= g.lanes; lane += block) narrow<Step, kBlock>(g, lane);
    for (; lane + 2 * Reg::lanes <= g.lanes; lane += 2 * Reg::lanes) narrow<Step, 2>(g, lane);
    if (lane < g.lanes) narrow<Step, 1>(g, lane);
  }

  template <Pass pass>
  static void call(const LeafArgs& args) {
    if constexpr (pass == Pass::map) kernel<MapStep>(args);
    if constexpr (pass == Pass::run) kernel<RunStep>(args);
    if constexpr (pass == Pass::states) kernel<StatesStep>(args);
    if constexpr (pass == Pass::map_backward || pass == Pass::run_backward) {
      Leaf<OpenedType<Cell>, R>::template call_backward<pass>(args);
    }
  }
  template <Pass pass>
  static SCANRNN_HD void call_backward(const LeafArgs& args) {
    if constexpr (pass == Pass::map_backward) return kernel<MapBackwardStep>(args);
    if constexpr (CellTraits<Cell>::summed_inputs != 0) {
      for (int i = 0; i < Cell::inputs; ++i) {
        if (args.sum[i] != nullptr) return kernel<RunBackwardStep<true>>(args);
      }
    }
    kernel<RunBackwardStep<false>>(args);
  }

  /// The kernel of the case that a call is: options that are known leave no branches between
  /// registers. In single precision alone, for the sake of the library's size.
  template <Pass pass, class... Case>
  static SCANRNN_HD void choose(const LeafArgs& args, CellCases<Case...>) {
    [[maybe_unused]] const Cell cell = read_cell<Cell>(args.cell);
    const bool is_case =
        ((Case::suits(cell) && (Leaf<Case, R>::template call<pass>(args), true)) || ...);
    if (!is_case) call<pass>(args);
  }
  template <Pass pass>
  static void call_case(const LeafArgs& args) {
    if constexpr (sizeof(S) == sizeof(float)) {
      choose<pass>(args, typename CasesOf<Cell>::Type());
    } else {
      call<pass>(args);
    }
  }

  /// The vector inputs of some lanes, in place.
  static void prepare(int lanes, std::ptrdiff_t plane, void* const* rows) {
    if constexpr (Cell::is_prepared) {
      for (int lane = 0; lane < lanes; lane += Reg::lanes) {
        R in[Cell::inputs];
        for (int i = 0; i < Cell::inputs; ++i) {
          in[i] = (Cell::vector_inputs >> i) & 1u ? get(rows[i], lane, plane) : R{};
        }
        Cell::prepare(in);
        for (int i = 0; i < Cell::inputs; ++i) {
          if ((Cell::vector_inputs >> i) & 1u) put(rows[i], lane, plane, in[i]);
        }
      }
    }
  }

  static CellKernels kernels() {
    return {Along<Cell, R>::kernels(),
            Reg::lanes,
            Cell::step_is_input,
            opened_inputs,
            Cell::is_prepared ? prepare : nullptr,
            call_case<Pass::map>,
            call_case<Pass::run>,
            Cell::state_is_output ? nullptr : call_case<Pass::states>,
            call_case<Pass::map_backward>,
            call_case<Pass::run_backward>};
  }
};

/// The merge tree's arithmetic on whole vectors of lanes: R is a register of rows, M one of maps.
template <class R, class M>
struct Maps {
  using S = typename Register<R>::Scalar;
  using Reg = Register<M>;
  using MapS = typename Reg::Scalar;

  static void merge(int lanes, std::ptrdiff_t plane, const void* earlier_a, const void* earlier_x,
                    void* a, void* x) {
    const MapS* ea = static_cast<const MapS*>(earlier_a);
    const MapS* ex = static_cast<const MapS*>(earlier_x);
    MapS* la = static_cast<MapS*>(a);
    MapS* lx = static_cast<MapS*>(x);
    for (int i = 0; i < lanes; i += Reg::lanes) {
      const Affine<M> earlier = {Reg::load(ea + i, plane), Reg::load(ex + i, plane)};
      const Affine<M> later = {Reg::load(la + i, plane), Reg::load(lx + i, plane)};
      const Affine<M> both = scanrnn::merge(earlier, later);
      Reg::store(la + i, plane, both.a);
      Reg::store(lx + i, plane, both.x);
    }
  }

  static void apply(int lanes, std::ptrdiff_t plane, const void* a, const void* x, const void* s,
                    void* out) {
    for (int i = 0; i < lanes; i += Reg::lanes) {
      const Affine<M> map = {Reg::load(static_cast<const MapS*>(a) + i, plane),
                             Reg::load(static_cast<const MapS*>(x) + i, plane)};
      const M state = Reg::load(static_cast<const MapS*>(s) + i, plane);
      Reg::store(static_cast<MapS*>(out) + i, plane, scanrnn::apply(map, state));
    }
  }

  static void add(int lanes, std::ptrdiff_t plane, const void* earlier, void* sum) {
    for (int i = 0; i < lanes; i += Reg::lanes) {
      MapS* target = static_cast<MapS*>(sum) + i;
      const M total =
          Reg::load(static_cast<const MapS*>(earlier) + i, plane) + Reg::load(target, plane);
      Reg::store(target, plane, total);
    }
  }

  static void widen(int lanes, std::ptrdiff_t plane, const void* row, void* vector) {
    for (int i = 0; i < lanes; i += Register<R>::lanes) {
      const R r = Register<R>::load(static_cast<const S*>(row) + i, plane);
      Register<Wide<R>>::store(static_cast<MapS*>(vector) + i, plane, SCANRNN_ISA::widen(r));
    }
  }
  static void narrow(int lanes, std::ptrdiff_t plane, const void* vector, void* row) {
    for (int i = 0; i < lanes; i += Register<R>::lanes) {
      const Wide<R> w = Register<Wide<R>>::load(static_cast<const MapS*>(vector) + i, plane);
      Register<R>::store(static_cast<S*>(row) + i, plane, SCANRNN_ISA::narrow(w));
    }
  }

  static MapKernels kernels() { return {merge, apply, add, widen, narrow}; }
};

}  // namespace scanrnn::cpu::SCANRNN_ISA
