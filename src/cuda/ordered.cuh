// SPDX-License-Identifier: Apache-2.0
// One thread a channel of a short sequence, as in serial.cuh, but in the order of the tree: it
// keeps each leaf's map beside its states, and a leaf starts from what the merged maps before it
// make of the initial state. So the results have the bits of rows.cuh and columns.cuh, and which
// kernel is taken may depend on anything, the size of the batch too (choice.hpp).
//
// It costs a serial loop's time or less: the inputs are read once, some steps ahead, and the maps'
// arithmetic hides behind their latency.
#pragma once

#include "cuda/choice.hpp"
#include "cuda/kernels/table.hpp"
#include "cuda/pass.cuh"

namespace scanrnn::cuda {

/// The maps of leaves, merged as the lanes of a warp merge them (scan_lanes): each with 1, 2, 4,
/// ... leaves before it or with all there are.
template <class A>
struct LeafScan {
  static constexpr int kLevels = 3;
  static_assert(kOrderedLeaves <= 1 << kLevels);
  /// [level]: the 1 << level latest leaves before the merge of that level, the last one first. They
  /// move on with every leaf: a place that depends on the leaf's number would be local memory.
  Segment<A> latest[kLevels][1 << (kLevels - 1)];

  __device__ __forceinline__ LeafScan() {
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
#pragma unroll
      for (int i = 0; i < 1 << level; ++i) latest[level][i] = {identity<Affine<A>>(), false};
    }
  }
  /// Takes a leaf that has `within` leaves before it in its band. `told` hears of the merges.
  /// Returns the map from the band's start on.
  template <class Told>
  __device__ __forceinline__ Segment<A> take(int within, Segment<A> own, Told&& told) {
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const int count = 1 << level;
      const Segment<A> earlier = latest[level][count - 1];
#pragma unroll
      for (int i = count - 1; i > 0; --i) latest[level][i] = latest[level][i - 1];
      latest[level][0] = own;
      if (within < count) continue;
      const Segment<A> before = own;
      own = merge(earlier, own);
      told(count, before, own);
    }
    return own;
  }
};

/// Gradients of leaves, summed as rows and columns sum them: those of a band in a tree, then bands.
template <class A>
struct LeafSums {
  A in_band[kOrderedLeaves];
  A total;

  __device__ __forceinline__ void begin() {
    total = Constant<A>::of(0);
    clear();
  }
  __device__ __forceinline__ void add(int place, const A& sum) {
    in_band[place % kOrderedLeaves] = sum;  // of larger bands an eighth is used
  }
  /// What is missing from a band is zero, which changes no sum.
  __device__ __forceinline__ void end_band() {
#pragma unroll
    for (int by = 1; by < kOrderedLeaves; by *= 2) {
#pragma unroll
      for (int w = 0; w < kOrderedLeaves; w += 2 * by) in_band[w] = in_band[w] + in_band[w + by];
    }
    total = total + in_band[0];
    clear();
  }

 private:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int w = 0; w < kOrderedLeaves; ++w) in_band[w] = Constant<A>::of(0);
  }
};

/// What is read of an array that isn't there.
__device__ const uint4 kNothing{};

/// For cells whose state is the output and that have no vector inputs.
template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    run_ordered(const __grid_constant__ Args g, const __grid_constant__ Cell cell) {
  using P = Pass<Cell, kBackward>;
  using A = Acc<T>;
  static_assert(Cell::state_is_output && Cell::vector_inputs == 0);
  // Steps that are read at once, while those before them are computed with.
  constexpr int kAhead = sizeof(A) <= 4 ? 8 : (sizeof(A) == 8 ? 4 : 2);
  const A zero = Constant<A>::of(0);

  const Index worker = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  const Index n = worker / g.channels, d = worker % g.channels;
  if (n >= g.sequences) return;
  const Span span = span_of(g, n);
  const int length = static_cast<int>(span.end - span.begin);

  // Steps of the sequence to places along time.
  const auto place_of = [&](int step) {
    return g.reverse ? span.end - 1 - step : span.begin + step;
  };
  // An array's elements from a step on, in the order of the pass. A thread alone on its
  // multiprocessor is as slow as it has instructions: no element is tested for.
  const bool ascending = kBackward == g.reverse;
  struct Walk {
    char* at;
    Index apart;
    __device__ __forceinline__ void next() { at = opaque(at + apart); }
  };
  const auto walk = [&](const Steps& s, int step) -> Walk {
    if (s.data == nullptr) {
      return {const_cast<char*>(reinterpret_cast<const char*>(&kNothing)), 0};
    }
    const Index bytes = s.wide ? sizeof(A) : sizeof(T);
    return {s.data + (span.row * s.batch + place_of(step) * s.time + d * s.channel) * bytes,
            opaque((ascending ? s.time : -s.time) * bytes)};
  };
  const auto read = [&](Walk& w) -> A {
    const A value = load_element<T>(w.at, 0, false);
    w.next();
    return value;
  };
  const auto write = [&](const Steps& s, Walk& w, const A& value) {
    if (s.data != nullptr) store_element<T>(w.at, 0, s.wide, value);
    w.next();
  };
  // Bit j: the state is dropped before step `step`, or so many steps on in the order of the pass.
  const auto resets_of = [&](int step, int count) {
    unsigned resets = 0;
    if (g.reset != nullptr) {
#pragma unroll 1
      for (int j = 0; j < count; ++j) {
        const Index at = place_of(kBackward ? step - j : step + j);
        if (g.reset[span.row * g.reset_batch + at * g.reset_time] != 0) resets |= 1u << j;
      }
    }
    return resets;
  };
  const auto is_summed = [&](int k) { return P::has(P::summed, k) && g.sum_slot[k] >= 0; };
  Tile tile;  // for a Tracer
  tile.sequence = n;
  tile.row = span.row;
  tile.begin = span.begin;
  tile.length = length;
  tile.step = 0;

  const int leaves = length > 0 ? (length + g.leaf - 1) >> (31 - __clz(g.leaf)) : 1;
  LeafScan<A> scan;
  Segment<A> prefix{identity<Affine<A>>(), false};  // of the band, up to the leaf
  A enter = load_state<T>(g.enter, n, d);           // before the band
  A leave = enter;                                  // of an empty sequence
  const A first = kBackward ? load_state<T>(g.initial, n, d) : zero;
  A gain = Constant<A>::of(1);  // backward: of the row before
  unsigned was_reset = 0;
  LeafSums<A> sums[kBackward ? P::inputs : 1];
  if constexpr (kBackward) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (is_summed(k)) sums[k].begin();
    }
  }
  int within = 0;

  const int step0 = kBackward ? length - 1 : 0;
  Walk in_walk[P::inputs], out_walk[P::inputs], dy_walk{}, states_walk{};
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
    if (P::has(P::staged, k)) in_walk[k] = walk(g.in[k], step0);
    out_walk[k] = walk(kBackward ? g.din[k] : g.out, step0);
  }
  if constexpr (kBackward) {
    dy_walk = walk(g.dy, step0);
    states_walk = walk(g.states, step0 - 1);
  }
  struct Ahead {
    A in[kAhead][P::inputs], dy[kBackward ? kAhead : 1], before[kBackward ? kAhead : 1];
  };
  int unread = length;
  const auto read_ahead = [&](Ahead& ahead, int count) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (j >= count) break;
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (P::has(P::staged, k)) ahead.in[j][k] = read(in_walk[k]);
      }
      if constexpr (kBackward) {
        ahead.dy[j] = read(dy_walk);
        ahead.before[j] = unread - j > 1 ? read(states_walk) : first;
      }
    }
    unread -= count;
  };
  const auto begin_of = [&](int p) { return (kBackward ? leaves - 1 - p : p) * g.leaf; };
  const auto steps_of = [&](int p) { return min(g.leaf, length - begin_of(p)); };
  Ahead ahead;
  read_ahead(ahead, min(kAhead, steps_of(0)));

#pragma unroll 1  // eight times the code would not fit into the instruction cache
  for (int p = 0; p < leaves; ++p) {
    const int leaf = kBackward ? leaves - 1 - p : p;  // in the order of time
    // Bands start at multiples of their size in time in both passes.
    const int of_band = leaf & (g.band_leaves - 1);
    const int place = kBackward ? g.band_leaves - 1 - of_band : of_band;
    if (p > 0 && place == 0) {
      enter = apply(prefix, enter);
      prefix = {identity<Affine<A>>(), false};
      within = 0;
      if constexpr (kBackward) {
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) {
          if (is_summed(k)) sums[k].end_band();
        }
      }
    }
    const int begin = begin_of(p), steps = steps_of(p), end = begin + steps;
    A state = apply(prefix, enter);
    Segment<A> own{identity<Affine<A>>(), false};
    GainProduct<T> gains;
    A sum[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) sum[k] = zero;
    const auto take = [&](const A& a, const A& x, bool reset) {
      own.map.x = reset ? x : fma(a, own.map.x, x);
      gains.times(a);
      state = reset ? x : fma(a, state, x);
    };
#pragma unroll 1
    for (int i0 = 0; i0 < steps; i0 += kAhead) {
      const Ahead now = ahead;
      const bool is_leaf_end = i0 + kAhead >= steps;
      const int rest = is_leaf_end ? (p + 1 < leaves ? steps_of(p + 1) : 0) : steps - i0 - kAhead;
      read_ahead(ahead, min(kAhead, rest));
      const int count = min(kAhead, steps - i0);
      const unsigned resets = resets_of(kBackward ? end - 1 - i0 : begin + i0, count);
      // Backward, an adjoint is dropped one step after the state was.
      const unsigned dropped = kBackward ? resets << 1 | was_reset : resets;
      own.cut = own.cut || (dropped & ((1u << count) - 1u)) != 0;
      was_reset = resets >> (count - 1);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (j >= count) break;
        const A(&in)[P::inputs] = now.in[j];
        const bool is_dropped = (dropped >> j & 1u) != 0;
        if constexpr (!kBackward) {
          const Affine<A> map = cell.step(in);
          take(map.a, map.x, is_dropped);
          write(g.out, out_walk[0], cell.output(in, state));
        } else {
          A din[P::inputs];
          const A before = (resets >> j & 1u) != 0 ? zero : now.before[j];
          take(gain, cell.output_adjoint(in, zero, now.dy[j]), is_dropped);
          gain = cell.gain(in);
          cell.pullback(in, before, zero, now.dy[j], state, din);
#pragma unroll
          for (int k = 0; k < P::inputs; ++k) {
            if (is_summed(k)) {
              sum[k] = sum[k] + din[k];
            } else {
              write(g.din[k], out_walk[k], din[k]);
            }
          }
        }
      }
    }
    if (length > 0) leave = kBackward ? (was_reset != 0 ? zero : product(gain, state)) : state;
    own.map.a = gains.value();

    Tracer<Cell, A, 1> tracer(cell, g, tile, Division{g.leaf, leaves, g.band_leaves, 1}, p, d);
    const Affine<A> map[1] = {own.map};
    const A ends[1] = {state};
    tracer.leaf(map, own.cut);
    tracer.finish(ends);
    prefix =
        scan.take(within, own, [&](int count, const Segment<A>& former, const Segment<A>& merged) {
          const Affine<A> was[1] = {former.map}, is[1] = {merged.map};
          tracer.lanes(count, was, is, merged.cut);
        });
    ++within;
    if constexpr (kBackward) {
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (is_summed(k)) sums[k].add(place, sum[k]);
      }
    }
  }
  store_state<T>(g.leave, n, d, leave);
  if constexpr (kBackward) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!is_summed(k)) continue;
      sums[k].end_band();
      reinterpret_cast<A*>(g.sums)[(g.sum_slot[k] * g.sequences + n) * g.channels + d] =
          sums[k].total;
    }
  }

  if (g.lengths == nullptr) return;
  const Index pad_begin = span.begin > 0 ? 0 : length;
  const auto pad = [&](const Steps& s) {
    if (s.data == nullptr) return;
    for (Index i = pad_begin; i < pad_begin + g.time - length; ++i) {
      store_element<T>(s.data, span.row * s.batch + i * s.time + d * s.channel, s.wide, zero);
    }
  };
  if constexpr (kBackward) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (g.sum_slot[k] < 0) pad(g.din[k]);
    }
  } else {
    pad(g.out);
  }
}

template <class Cell, class T, bool kBackward>
Kernel ordered_kernel() {
  Kernel kernel;
  kernel.function = reinterpret_cast<const void*>(&run_ordered<Cell, T, kBackward>);
  kernel.name = "ordered";
  kernel.warps = kWarps;
  kernel.vector_bytes = kVectorBytes;
  kernel.shared_bytes = [](int, int, int, int) { return 0; };
  return kernel;
}

/// The kernels of such a cell, with these.
template <class Cell, class T>
CellKernels with_ordered(CellKernels kernels) {
  kernels.forward.ordered = ordered_kernel<Cell, T, false>();
  kernels.backward.ordered = ordered_kernel<Cell, T, true>();
  return kernels;
}

}  // namespace scanrnn::cuda
