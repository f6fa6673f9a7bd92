// SPDX-License-Identifier: Apache-2.0
// Rows that start anywhere: the tiles, leaves and merges of rows.cuh, and so its bits, but a lane
// has one channel and a warp reads and writes a row's line of memory with an element a lane.
//
// A lane runs all the leaves of its band. Forward its registers hold them; backward they hold the
// gains, and shared memory the other arrays, where a lane reads only what it has copied itself:
// nothing has to be turned, and nobody waits for anybody else's copies. Rows beyond a sequence's
// end change no state (fill_leaf in columns.cuh), so that no step is tested but where memory is
// read and written.
//
// What is on its way to registers, or to shared memory by copies of 4 bytes, lies in the L1 cache:
// shared memory may not take all of it (Kernel::carveout).
#pragma once

#include <type_traits>

#include "cuda/columns.cuh"
#include "cuda/kernels/table.hpp"
#include "cuda/rows.cuh"

namespace scanrnn::cuda {

template <class Cell, bool kBackward, class T>
struct LinePass : Pass<Cell, kBackward> {
  using Base = Pass<Cell, kBackward>;
  using Rows = RowPass<Cell, kBackward, T>;
  static constexpr int leaf = Rows::leaf, leaves = Rows::band_leaves;
  static constexpr int steps = leaf * leaves;  // of a band
  static constexpr int rows = kWarps * steps;  // of a tile
  /// Arrays in registers: the first ones, as many as there is room for.
  static constexpr int held = kBackward ? 1 : Base::slots;
  static constexpr int copied = Base::slots - held;  // the others
  static constexpr int slot_bytes = steps * kWarp * static_cast<int>(sizeof(T));
  static constexpr int shared_bytes = kWarps * copied * slot_bytes;
  static constexpr int blocks = 2;  // of a multiprocessor
  static_assert(Rows::band_vectors * Rows::width == kWarp && leaves == 4 && sizeof(T) >= 4);
  static_assert(Cell::step_is_input && std::is_floating_point_v<Acc<T>>);
};

/// For calls without resets, sequence offsets or sums over time.
template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__(kThreads, (LinePass<Cell, kBackward, T>::blocks))
    run_lines(const __grid_constant__ Args args, const __grid_constant__ Cell cell) {
  using P = LinePass<Cell, kBackward, T>;
  using A = Acc<T>;
  using One = Lanes<T, 1>;
  constexpr int kLeaf = P::leaf, kLeaves = P::leaves, kSteps = P::steps, kHeld = P::held;
  constexpr int kBytes = static_cast<int>(sizeof(T));
  constexpr int kAdded = kBackward ? P::dy_slot : 1;  // the slot of what a step adds
  constexpr int kOutputs = kBackward ? P::inputs : 1;
  Args g = args;
  g.cu_seqlens = g.lengths = nullptr;
  g.reset = nullptr;

  extern __shared__ __align__(128) char line_slots[];
  __shared__ unsigned shared_ticket;
  __shared__ A maps_a[kWarps][kWarp], maps_x[kWarps][kWarp];
  using Loss = typename P::template Loss<T>;
  __shared__ Loss maps_lost[kWarps][kWarp];
  __shared__ A part_a[kMaxLevels * kGroups][kWarp], part_x[kMaxLevels * kGroups][kWarp];

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  await_clearing();
  if (threadIdx.x == 0) shared_ticket = g.levels > 0 ? atomicAdd(g.ticket, 1u) : blockIdx.x;
  __syncthreads();
  const Tile t = tile_of<kBackward>(g, shared_ticket, P::rows);
  const bool ascending = kBackward == g.reverse;
  const int down = ascending ? 1 : -1;
  const int from = ascending ? warp * kSteps : P::rows - 1 - warp * kSteps;  // row of step 0
  const Index channel = t.group * kWarp + lane;
  const bool has_channel = channel < g.channels;
  const Index readable = has_channel ? channel : g.channels - 1;
  // Steps [begin, end) of the band, in the order of the pass, are the sequence's.
  const int begin = max(0, ascending ? t.low - from : from - (t.high - 1));
  const int end = min(kSteps, ascending ? t.high - from : from - t.low + 1);
  const bool is_whole = begin == 0 && end == kSteps;

  const auto address = [&](const Steps& s, Index ch) {
    return s.data + (t.row * s.batch + (t.position + from) * s.time + ch) * kBytes;
  };
  const auto apart = [&](const Steps& s) {
    return down * static_cast<int>(s.time) * kBytes;  // which fits: the executor has looked
  };
  char* const own = line_slots + warp * (P::copied * P::slot_bytes) + lane * kBytes;
  const auto slot_of = [&](int slot, int i) -> T& {
    return *reinterpret_cast<T*>(own + (slot - kHeld) * P::slot_bytes + i * (kWarp * kBytes));
  };
  A held[kHeld][kSteps]{};
  const auto read = [&](int slot, int i) -> A {
    return slot < kHeld ? held[slot < kHeld ? slot : 0][i] : Element<T>::widen(slot_of(slot, i));
  };

  // --- stage -----------------------------------------------------------------------------------
  const auto stage = [&](auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
#pragma unroll
    for (int s = P::slots - 1; s >= 0; --s) {
      const Steps& array = staged_array<P>(g, s);
      const char* const at = address(array, readable);
      const int step = apart(array);
      const A identity = Constant<A>::of(s == P::slot(0) ? 1.0 : -0.0);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const char* const element = at + static_cast<Index>(step) * i;
        const bool is_there = kWhole || (i >= begin && i < end);
        if (s < kHeld) {
          held[s < kHeld ? s : 0][i] =
              is_there ? Element<T>::widen(__ldg(reinterpret_cast<const T*>(element))) : identity;
        } else if (is_there) {
          copy_async<kBytes>(reinterpret_cast<char*>(&slot_of(s, i)), element);
        } else {
          slot_of(s, i) = Element<T>::narrow(identity);
        }
      }
    }
    end_copies();
  };
  if (is_whole) {
    stage(std::true_type{});
  } else {
    stage(std::false_type{});
  }

  const A enter = load_state<T>(g.enter, t.sequence, readable);
  A entry_gain = Constant<A>::of(1), next_state = enter;
  const auto gain_of = [&](A a) {
    One in[P::inputs];
    in[0].lane[0] = a;
    return cell.gain(in).lane[0];
  };
  if constexpr (kBackward) {
    const int before = from - down, after = from + kSteps * down;
    if (t.in_sequence(before)) {
      entry_gain = gain_of(Element<T>::widen(
          *reinterpret_cast<const T*>(address(g.in[0], readable) - apart(g.in[0]))));
    }
    if (t.in_sequence(after)) {
      next_state = Element<T>::widen(*reinterpret_cast<const T*>(
          address(g.states, readable) + static_cast<Index>(apart(g.states)) * kSteps));
    } else {
      next_state = load_state<T>(g.initial, t.sequence, readable);
    }
  }
  await_groups<0>();

  // What the state is multiplied by: backward, the gain of the step that comes later in time.
  const auto gain_at = [&](int i) -> A {
    if constexpr (!kBackward) return read(0, i);
    return i == 0 ? entry_gain : gain_of(read(0, i > 0 ? i - 1 : 0));
  };

  // --- leaves ----------------------------------------------------------------------------------
  Affine<A> map[kLeaves];
  Loss loss[kLeaves];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
    GainProduct<T> gains;
    A x = Constant<A>::of(0);
#pragma unroll
    for (int j = 0; j < kLeaf; ++j) {
      const int i = l * kLeaf + j;
      const A gain = gain_at(i);
      x = fma(gain, x, read(kAdded, i));
      gains.times(gain);
    }
    map[l] = {gains.value(), x};
    loss[l] = gains.loss();
  }

  // --- merge -----------------------------------------------------------------------------------
  // As scan_lanes would: each leaf with the one before it, then with the two before that.
  static_assert(kLeaves == 4);
  const Affine<A> two = merge(map[0], map[1]), three = merge(map[0], merge(map[1], map[2]));
  const Affine<A> last_two = merge(map[2], map[3]), four = merge(two, last_two);
  const Loss lost_of_two = loss[1].after(loss[0], map[0].a, map[1].a);
  const Loss lost_of_last = loss[3].after(loss[2], map[2].a, map[3].a);
  const Affine<A> before_leaf[kLeaves] = {identity<Affine<A>>(), map[0], two, three};
  maps_a[warp][lane] = four.a;
  maps_x[warp][lane] = four.x;
  maps_lost[warp][lane] = lost_of_last.after(lost_of_two, two.a, last_two.a);
  __syncthreads();

  // --- the tree between tiles ------------------------------------------------------------------
  if (g.levels > 0) {
    constexpr Index kWords = Node<A>::words;
    const Index stride = g.groups * kWarp * kWords;
    Word* const nodes = g.nodes + ((t.first_item * g.groups + t.group) * kWarp + lane) * kWords;
    if (warp == 0) {
      Segment<A> band[kWarps];
      Loss lost[kWarps];
#pragma unroll
      for (int b = 0; b < kWarps; ++b) {
        band[b] = {{maps_a[b][lane], maps_x[b][lane]}, false};
        lost[b] = maps_lost[b][lane];
      }
#pragma unroll
      for (int by = 1; by < kWarps; by *= 2) {
#pragma unroll
        for (int b = 0; b < kWarps; b += 2 * by) {
          lost[b] = lost[b + by].after(lost[b], band[b].map.a, band[b + by].map.a);
          band[b] = merge(band[b], band[b + by]);
        }
      }
      band[0].map.a = lost[0].corrected(band[0].map.a);
      for (int level = 0; digit_of(t.number, level) == kRadix - 1; ++level) {
        band[0] = merge(await_level<A, false>(nodes, stride, t.number, level), band[0]);
      }
      Node<A>::publish(nodes + t.number * stride, band[0]);
    } else {
      for (int part = warp - 1; part < g.levels * kGroups; part += kWarps - 1) {
        const int level = part / kGroups, first = part % kGroups * kAhead;
        if (digit_of(t.number, level) <= first) continue;
        const Segment<A> before = await_group<A, false>(nodes, stride, t.number, level, first);
        part_a[part][lane] = before.map.a;
        part_x[part][lane] = before.map.x;
      }
    }
    __syncthreads();
  }
  A run = enter;
  for (int level = g.levels - 1; level >= 0; --level) {
    const int digit = digit_of(t.number, level);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (digit <= group * kAhead) break;
      const int part = level * kGroups + group;
      run = apply(Affine<A>{part_a[part][lane], part_x[part][lane]}, run);
    }
  }
  for (int b = 0; b < warp; ++b) run = apply(Affine<A>{maps_a[b][lane], maps_x[b][lane]}, run);

  // --- finish ----------------------------------------------------------------------------------
  A leave = run;
  const auto finish = [&](auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    char* out_at[kOutputs];
    int out_apart[kOutputs];
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) {
      const Steps& s = kBackward ? g.din[k] : g.out;
      out_at[k] = has_channel && s.data != nullptr ? address(s, channel) : nullptr;
      out_apart[k] = apart(s);
    }
#pragma unroll
    for (int l = 0; l < kLeaves; ++l) {
      A state = apply(before_leaf[l], run);
#pragma unroll
      for (int j = 0; j < kLeaf; ++j) {
        const int i = l * kLeaf + j;
        state = fma(gain_at(i), state, read(kAdded, i));
        One out[P::inputs];
        if constexpr (kBackward) {
          const One in[P::inputs] = {{read(0, i)}, {}}, dy{read(kAdded, i)};
          const One before{i + 1 < kSteps ? read(P::states_slot, i + 1 < kSteps ? i + 1 : 0)
                                          : next_state};
          cell.pullback(in, before, before, dy, One{state}, out);
        } else {
          out[0].lane[0] = state;
        }
#pragma unroll
        for (int k = 0; k < kOutputs; ++k) {
          if (out_at[k] == nullptr || (!kWhole && (i < begin || i >= end))) continue;
          __stcs(reinterpret_cast<T*>(out_at[k] + static_cast<Index>(out_apart[k]) * i),
                 Element<T>::narrow(out[k].lane[0]));
        }
      }
      if (l * kLeaf < end) leave = state;
    }
    if constexpr (kBackward) leave = product(gain_of(read(0, kSteps - 1)), leave);
  };
  if (is_whole) {
    finish(std::true_type{});
  } else {
    finish(std::false_type{});
  }
  if (has_channel && begin < end && t.is_last() && !t.in_sequence(from + end * down)) {
    store_state<T>(g.leave, t.sequence, channel, leave);
  }
}

template <class Cell, class T, bool kBackward>
void set_ragged(PassKernels& kernels) {
  using P = LinePass<Cell, kBackward, T>;
  Kernel& lines = kernels.lines;
  lines.function = reinterpret_cast<const void*>(&run_lines<Cell, T, kBackward>);
  lines.name = "lines";
  lines.leaf = P::leaf;
  lines.warps = kWarps;
  lines.vector_bytes = P::Rows::vector_bytes;
  lines.carveout = 75;
  lines.shared_bytes = [](int, int, int, int) { return P::shared_bytes; };
  kernels.ragged_columns = kernels.columns;
  kernels.ragged_columns.function =
      reinterpret_cast<const void*>(&run_columns<Cell, T, kBackward, true>);
}

/// The kernels of such a cell, with those for arrays that start anywhere.
template <class Cell, class T>
CellKernels with_ragged(CellKernels kernels) {
  set_ragged<Cell, T, false>(kernels.forward);
  set_ragged<Cell, T, true>(kernels.backward);
  return kernels;
}

}  // namespace scanrnn::cuda
