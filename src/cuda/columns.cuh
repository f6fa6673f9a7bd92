// SPDX-License-Identifier: Apache-2.0
// The kernel for arrays whose steps lie side by side, one launch for a whole pass.
//
// A warp works for itself, without a barrier: it takes one channel's tile of 32 leaves, or, of
// sequences that need fewer, several channels at once. It stages the tile in shared memory, runs
// the leaves, merges their maps by shuffles, publishes the tile's node and looks back, its lanes
// holding the nodes of four levels of the tree (tree.cuh), and finishes. Outputs take the place of
// inputs in shared memory and leave it in whole lines.
#pragma once

#include "cuda/pass.cuh"
#include "cuda/tree.cuh"

namespace scanrnn::cuda {

template <class Cell, bool kBackward, class T>
struct ColumnPass : Pass<Cell, kBackward> {
  using Base = Pass<Cell, kBackward>;
  static constexpr int leaf = column_leaf(sizeof(T));
  static constexpr int rows = kWarp * leaf;  // of a warp: steps times channels
  static constexpr int slot_bytes = rows * static_cast<int>(sizeof(T));
  static constexpr int states_bytes =  // recomputed, (leaf + 1) a lane
      Base::recomputes ? kWarp * (leaf + 1) * static_cast<int>(sizeof(Acc<T>)) : 0;
  static constexpr int warp_bytes = Base::slots * slot_bytes + states_bytes;
  /// Warps of a block; a device with less shared memory runs fewer.
  static constexpr int warps = column_warps(Base::slots + (Base::recomputes ? 1 : 0));
  static constexpr int wanted_blocks = 216 * 1024 / (warps * warp_bytes + 2 * 1024);
  static constexpr int most_blocks = 1536 / (warps * kWarp);
  static constexpr int blocks =
      wanted_blocks < 1 ? 1 : (wanted_blocks < most_blocks ? wanted_blocks : most_blocks);
};

/// Whether 16 bytes at a time can be read or written from this row on.
__device__ __forceinline__ bool is_aligned(const char* p) {
  return (reinterpret_cast<unsigned long long>(p) & (kVectorBytes - 1)) == 0;
}

/// Copies one channel's rows [low, high) into a slot, from element `first` of it on.
template <class T>
__device__ __forceinline__ void stage_column(const Steps& s, const char* base, int low, int high,
                                             int first, char* slot, int lane) {
  constexpr int W = kWidth<T>, kBytes = static_cast<int>(sizeof(T));
  int done = low;  // rows [low, done) are copied
  if (s.vector && is_aligned(base)) {
    const int begin = (low + W - 1) / W, end = high / W;
#pragma unroll 4
    for (int c = begin + lane; c < end; c += kWarp) {
      copy_async<kVectorBytes>(slot + swizzled(first / W + c) * kVectorBytes,
                               base + c * kVectorBytes);
    }
    if (end >= begin) {  // what no whole vector holds, at either end
      if (low + lane < begin * W) {
        copy_async<kBytes>(slot + element_offset<T>(first + low + lane),
                           base + (low + lane) * s.time * kBytes);
      }
      done = end * W;
    }
  }
#pragma unroll 4
  for (int r = done + lane; r < high; r += kWarp) {
    copy_async<kBytes>(slot + element_offset<T>(first + r), base + r * s.time * kBytes);
  }
}

template <class T>
__device__ __forceinline__ void write_column(const Steps& s, char* base, int low, int high,
                                             int first, const char* slot, int lane) {
  constexpr int W = kWidth<T>, kBytes = static_cast<int>(sizeof(T));
  int done = low;
  const auto write = [&](int r) {
    *reinterpret_cast<T*>(base + r * s.time * kBytes) =
        *reinterpret_cast<const T*>(slot + element_offset<T>(first + r));
  };
  if (s.vector && is_aligned(base)) {
    const int begin = (low + W - 1) / W, end = high / W;
#pragma unroll 4
    for (int c = begin + lane; c < end; c += kWarp) {
      store_streaming(base + c * kVectorBytes, *reinterpret_cast<const uint4*>(
                                                   slot + swizzled(first / W + c) * kVectorBytes));
    }
    if (end >= begin) {
      if (low + lane < begin * W) write(low + lane);
      done = end * W;
    }
  }
#pragma unroll 4
  for (int r = done + lane; r < high; r += kWarp) write(r);
}

/// A lane's leaf: P::leaf steps of one channel, in the order of the pass.
template <class P, class T>
struct ColumnLeaf {
  using A = Acc<T>;
  static constexpr int W = kWidth<T>;

  const Args& g;
  const Tile& t;
  const char* slots;
  int first;  // element of a slot that row 0 of the channel is
  int from;   // row of step 0
  bool ascending;
  Index channel;
  A vector_in[P::inputs];

  __device__ __forceinline__ int row(int i) const { return ascending ? from + i : from - i; }
  __device__ __forceinline__ bool is_reset(int r) const {
    return g.reset != nullptr &&
           g.reset[t.row * g.reset_batch + (t.position + r) * g.reset_time] != 0;
  }
  __device__ __forceinline__ A read_outside(int slot, int r) const {
    const Steps& s = staged_array<P>(g, slot);
    if (s.data == nullptr) return Constant<A>::of(0);
    return load_element<T>(
        s.data, t.row * s.batch + (t.position + r) * s.time + channel * s.channel, false);
  }
  /// One row.
  __device__ __forceinline__ A read(int slot, int r) const {
    if (staged_array<P>(g, slot).data == nullptr) return Constant<A>::of(0);
    return Element<T>::widen(
        *reinterpret_cast<const T*>(slots + slot * P::slot_bytes + element_offset<T>(first + r)));
  }
  /// Steps [i, i + W) of the pass.
  __device__ __forceinline__ void read_steps(int slot, int i, A (&to)[W]) const {
    if (staged_array<P>(g, slot).data == nullptr) {
#pragma unroll
      for (int v = 0; v < W; ++v) to[v] = Constant<A>::of(0);
      return;
    }
    const int r = ascending ? from + i : from - i - (W - 1);
    A rows[W];
    widen<T>(*reinterpret_cast<const Vector<T>*>(slots + slot * P::slot_bytes +
                                                 element_offset<T>(first + r)),
             rows);
#pragma unroll
    for (int v = 0; v < W; ++v) to[v] = ascending ? rows[v] : rows[W - 1 - v];
  }
  __device__ __forceinline__ void write_steps(char* into, int slot, int i,
                                              const A (&value)[W]) const {
    const int r = ascending ? from + i : from - i - (W - 1);
    A rows[W];
#pragma unroll
    for (int v = 0; v < W; ++v) rows[v] = ascending ? value[v] : value[W - 1 - v];
    *reinterpret_cast<Vector<T>*>(into + slot * P::slot_bytes + element_offset<T>(first + r)) =
        narrow<T>(rows);
  }
  __device__ __forceinline__ void read_inputs(unsigned set, int i, A (&in)[P::inputs][W]) const {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(set, k)) continue;
      if (P::has(P::vectors, k)) {
#pragma unroll
        for (int v = 0; v < W; ++v) in[k][v] = vector_in[k];
      } else {
        read_steps(P::slot(k), i, in[k]);
      }
    }
  }
};

template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__((ColumnPass<Cell, kBackward, T>::warps * kWarp),
                                  (ColumnPass<Cell, kBackward, T>::blocks))
    run_columns(const __grid_constant__ Args g, const __grid_constant__ Cell cell) {
  using P = ColumnPass<Cell, kBackward, T>;
  using A = Acc<T>;
  constexpr int kLeaf = P::leaf, W = kWidth<T>;
  const A zero = Constant<A>::of(0), one = Constant<A>::of(1);

  extern __shared__ __align__(128) char slots_of_block[];
  __shared__ Tile tiles[P::warps];

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  char* const slots = slots_of_block + warp * P::warp_bytes;
  A* const own_states = reinterpret_cast<A*>(slots + P::slots * P::slot_bytes) + lane * (kLeaf + 1);
  // Lanes of a channel are neighbours; the leaves of `each` lanes are its tile.
  const int held = 1 << g.across_log2;  // channels of the warp
  const int each = kWarp >> g.across_log2;
  const int rows = each * kLeaf;

  if (lane == 0) {
    Index ticket;
    if (g.levels > 0) {
      // Warps take theirs one after the other, so that none comes before its block runs.
      ticket = static_cast<Index>(atomicAdd(g.ticket, 1u));
    } else {
      ticket = static_cast<Index>(blockIdx.x) * (blockDim.x / kWarp) + warp;
    }
    if (ticket < g.tile_items * g.groups) {
      tiles[warp] = tile_of<kBackward>(g, ticket, rows);
    } else {
      tiles[warp].group = -1;
    }
  }
  __syncwarp();
  const Tile& t = tiles[warp];
  if (t.group < 0) return;

  const bool ascending = kBackward == g.reverse;
  const Index channel0 = t.group * held;
  const int channels = static_cast<int>(min(static_cast<Index>(held), g.channels - channel0));
  const auto base_of = [&](const Steps& s, int c) {
    return s.data + (t.row * s.batch + t.position * s.time + (channel0 + c) * s.channel) *
                        static_cast<Index>(sizeof(T));
  };

  // --- stage -----------------------------------------------------------------------------------
  const int low = t.low, high = t.high;
  for (int c = 0; c < channels; ++c) {
#pragma unroll
    for (int s = 0; s < P::slots; ++s) {
      const Steps& array = staged_array<P>(g, s);
      if (array.data == nullptr) continue;
      stage_column<T>(array, base_of(array, c), low, high, c * rows, slots + s * P::slot_bytes,
                      lane);
    }
  }

  const int mine = lane >> (5 - g.across_log2);  // channel of the warp
  const int place = lane & (each - 1);           // leaf, in the order of the pass
  const bool has_channel = mine < channels;
  ColumnLeaf<P, T> leaf{g,
                        t,
                        slots,
                        mine * rows,
                        ascending ? place * kLeaf : (each - place) * kLeaf - 1,
                        ascending,
                        channel0 + (has_channel ? mine : 0),
                        {}};
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
    if (!P::has(P::vectors, k)) continue;
    leaf.vector_in[k] =
        g.in[k].data != nullptr && has_channel
            ? load_element<T>(g.in[k].data, leaf.channel * g.in[k].channel, g.in[k].wide)
            : zero;
  }
  unsigned valid = 0, resets = 0;  // bit i: step i of the pass is one of the sequence's; a reset
  {
    const int begin = ascending ? low - leaf.from : leaf.from - (high - 1);
    const int end = ascending ? high - leaf.from : leaf.from - low + 1;
    const int count = min(end, kLeaf);
    if (has_channel && count > 0 && begin < kLeaf) {
      valid = count == 32 ? kAllLanes : (1u << count) - 1;
      if (begin > 0) valid &= ~((1u << begin) - 1);
    }
    if (g.reset != nullptr) {
      for (int i = 0; i < kLeaf; ++i) {
        if ((valid >> i & 1u) != 0 && leaf.is_reset(leaf.row(i))) resets |= 1u << i;
      }
    }
  }
  A state = has_channel ? load_state<T>(g.enter, t.sequence, leaf.channel) : zero;

  // Backward needs the row before the leaf, for its gain, and the state of the row after it.
  A entry_gain = one, next_state = zero;
  bool entry_cut = false;
  const int before_row = leaf.row(-1), after_row = leaf.row(kLeaf);
  const auto is_inside = [&](int r) { return r >= 0 && r < rows; };
  const auto take_entry = [&](bool outside) {
    A in[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(P::vectors, k)) {
        in[k] = leaf.vector_in[k];
      } else if (P::has(Cell::map_inputs & Cell::backward_inputs, k)) {
        in[k] =
            outside ? leaf.read_outside(P::slot(k), before_row) : leaf.read(P::slot(k), before_row);
      }
    }
    entry_gain = cell.gain(in);
    entry_cut = leaf.is_reset(before_row);
  };
  if constexpr (kBackward) {
    if (has_channel) {
      if (!is_inside(before_row) && t.in_sequence(before_row)) take_entry(true);
      if constexpr (P::reads_states) {
        if (!is_inside(after_row) && t.in_sequence(after_row)) {
          next_state = leaf.read_outside(P::states_slot, after_row);
        }
      }
    }
  }
  await_copies();
  __syncwarp();

  if constexpr (kBackward) {
    if (has_channel) {
      if (is_inside(before_row) && t.in_sequence(before_row)) take_entry(false);
      if constexpr (P::reads_states) {
        if (is_inside(after_row) && t.in_sequence(after_row)) {
          next_state = leaf.read(P::states_slot, after_row);
        }
      }
    }
    if constexpr (P::recomputes) {
      // In the order of time, against the pass: own_states[j] is the state before step j of the
      // leaf, from the checkpoint before it on.
      const Index step0 = t.step_of(leaf.row(kLeaf - 1), rows, g.reverse);
      const bool has_steps = valid != 0;
      const Index at = has_steps ? checkpoint_row(g, t, step0) * g.channels + leaf.channel : 0;
      A run = has_steps ? reinterpret_cast<const A*>(g.checkpoints)[at] : zero;
      const auto steps_in_time = [&](auto&& take) {
#pragma unroll 1
        for (int i = kLeaf - W; i >= 0; i -= W) {
          A in[P::inputs][W];
          leaf.read_inputs(Cell::map_inputs, i, in);
#pragma unroll
          for (int v = W - 1; v >= 0; --v) {
            A in_v[P::inputs];
#pragma unroll
            for (int k = 0; k < P::inputs; ++k) in_v[k] = in[k][v];
            if ((valid >> (i + v) & 1u) != 0) {
              take(i + v, cell.step(in_v), (resets >> (i + v) & 1u) != 0);
            } else {
              take(i + v, identity<Affine<A>>(), false);
            }
          }
        }
      };
      if constexpr (kLeafSteps > kLeaf) {
        // Several leaves share a checkpoint: those that are earlier in time are later lanes.
        Affine<A> map = identity<Affine<A>>();
        bool cut = false;
        steps_in_time([&](int, const Affine<A>& step, bool reset) {
          map.x = reset ? step.x : fma(step.a, map.x, step.x);
          map.a = product(map.a, step.a);
          cut = cut || reset;
        });
        const int behind = static_cast<int>(step0 % kLeafSteps) / kLeaf;
        for (int b = kLeafSteps / kLeaf - 1; b > 0; --b) {
          const int from_lane = (lane + b) % kWarp;
          const Segment<A> earlier{shuffle(map, from_lane),
                                   __shfl_sync(kAllLanes, static_cast<int>(cut), from_lane) != 0};
          if (b <= behind) run = apply(earlier, run);
        }
      }
      own_states[0] = run;
      steps_in_time([&](int i, const Affine<A>& step, bool reset) {
        run = reset ? step.x : fma(step.a, run, step.x);
        own_states[kLeaf - i] = run;
      });
    }
  }
  // The states after steps [i, i + W) of the pass.
  const auto states_after = [&](int i, A(&to)[W]) {
    if constexpr (P::recomputes) {
#pragma unroll
      for (int v = 0; v < W; ++v) to[v] = own_states[kLeaf - i - v];
    } else if constexpr (P::reads_states) {
      leaf.read_steps(P::states_slot, i, to);
    }
  };

  // --- leaves ----------------------------------------------------------------------------------
  Affine<A> map[1] = {identity<Affine<A>>()};
  bool cut = false;
  {
    A gain = entry_gain;
    bool reset = entry_cut;
#pragma unroll 2
    for (int i = 0; i < kLeaf; i += W) {
      if ((valid >> i) == 0) break;
      A in[P::inputs][W];
      A dy[W], after[W];
      if constexpr (kBackward) {
        leaf.read_inputs(Cell::backward_inputs, i, in);
        leaf.read_steps(P::dy_slot, i, dy);
        states_after(i, after);
      } else {
        leaf.read_inputs(Cell::map_inputs, i, in);
      }
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if ((valid >> (i + v) & 1u) == 0) continue;
        const bool reset_here = (resets >> (i + v) & 1u) != 0;
        A in_v[P::inputs];
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) in_v[k] = in[k][v];
        if constexpr (kBackward) {
          const A x = cell.output_adjoint(in_v, after[v], dy[v]);
          map[0].x = reset ? x : fma(gain, map[0].x, x);
          map[0].a = product(map[0].a, gain);
          cut = cut || reset;
          gain = cell.gain(in_v);
          reset = reset_here;
        } else {
          const Affine<A> step = cell.step(in_v);
          map[0].x = reset_here ? step.x : fma(step.a, map[0].x, step.x);
          map[0].a = product(map[0].a, step.a);
          cut = cut || reset_here;
        }
      }
    }
  }

  // --- merge -----------------------------------------------------------------------------------
  scan_lanes(map, cut, place, 1, each, g.reset != nullptr);
  Segment<A> own{shuffle(map[0], kWarp - 1),
                 __shfl_sync(kAllLanes, static_cast<int>(cut), kWarp - 1) != 0};
  Segment<A> before{shuffle_up(map[0], 1),
                    __shfl_up_sync(kAllLanes, static_cast<int>(cut), 1) != 0};
  if (place == 0) before = {identity<Affine<A>>(), false};

  if (g.levels > 0) {  // then a warp holds one channel
    constexpr Index kWords = Node<A>::words;
    const bool is_idle = low >= high;
    const Index stride = g.groups * kWords;
    const uint4* const nodes = g.nodes + (t.first_item * g.groups + t.group) * kWords;
    uint4* const own_node = g.nodes + (t.item * g.groups + t.group) * kWords;
    int closed = 0;  // levels at which this tile is the last child
    while (!is_idle && digit_of(t.number, closed) == kRadix - 1) ++closed;
    if (closed == 0 && lane == 0) Node<A>::publish(own_node, own);
    // Four levels at a time; the highest four have the earliest nodes, but what this tile has to
    // publish needs the lowest ones first. Maps are applied to the state last.
    constexpr int kAtOnce = kWarp / kRadix;
    Segment<A> prefix{identity<Affine<A>>(), false};
    for (int level0 = 0; level0 < g.levels && !is_idle; level0 += kAtOnce) {
      if (t.number >> (kRadixLog2 * level0) == 0) break;
      // Lane groups in the order of time: the highest level first.
      const int level = level0 + kAtOnce - 1 - lane / kRadix;
      const int child = lane % kRadix;
      const bool wanted = child < digit_of(t.number, level);
      const uint4* const at = nodes + (wanted ? node_tile(t.number, level, child) * stride : 0);
      Node<A> node;
      bool ready = !wanted;
      if (wanted) {
        node.load(at);
        ready = node.is_published();
      }
      const auto await = [&](bool needed) {
        while (__any_sync(kAllLanes, needed && !ready)) {
          if (needed && !ready) {
            node.load(at);
            ready = node.is_published();
          }
        }
      };
      // The products of the levels' nodes, in each level's last lane.
      const auto levels_product = [&] {
        Affine<A> m[1] = {wanted ? node.segment().map : identity<Affine<A>>()};
        bool m_cut = wanted && node.segment().cut;
        scan_lanes(m, m_cut, child, 1, kRadix, true);
        return Segment<A>{m[0], m_cut};
      };
      const auto level_of = [&](const Segment<A>& products, int l) -> Segment<A> {
        const int from_lane = (kAtOnce - 1 - (l - level0)) * kRadix + kRadix - 1;
        return {shuffle(products.map, from_lane),
                __shfl_sync(kAllLanes, static_cast<int>(products.cut), from_lane) != 0};
      };
      if (closed > level0) {
        await(level < closed);
        const Segment<A> products = levels_product();
        for (int l = level0; l < closed && l < level0 + kAtOnce; ++l) {
          own = merge(level_of(products, l), own);
        }
        if (closed <= level0 + kAtOnce && lane == 0) Node<A>::publish(own_node, own);
      }
      await(true);
      const Segment<A> products = levels_product();
      for (int l = level0; l < level0 + kAtOnce && l < g.levels; ++l) {
        prefix = merge(level_of(products, l), prefix);
      }
    }
    if (t.number > 0) state = apply(prefix, state);
  }
  state = apply(before, state);

  // --- finish ----------------------------------------------------------------------------------
  __syncwarp();   // from here on, outputs take the place of what neighbouring lanes have read
  int last = -1;  // the leaf's step that is the last of the pass, if it is here
  if (valid != 0 && t.is_last()) {
    const int i = 31 - __clz(static_cast<int>(valid));
    if (!t.in_sequence(leaf.row(i + 1))) last = i;
  }
  if constexpr (!kBackward && !Cell::state_is_output) {
    const Index step0 = t.step_of(leaf.from, rows, g.reverse);
    if (g.checkpoints != nullptr && (valid & 1u) != 0 && step0 % kLeafSteps == 0) {
      reinterpret_cast<A*>(g.checkpoints)[checkpoint_row(g, t, step0) * g.channels + leaf.channel] =
          state;
    }
  }
  A sum[P::inputs];
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) sum[k] = zero;
  const auto write_wide = [&](const Steps& s, int i, const A& value) {
    store_element<T>(
        s.data, t.row * s.batch + (t.position + leaf.row(i)) * s.time + leaf.channel * s.channel,
        true, value);
  };
  A leave = state, gain = entry_gain;
  bool reset = entry_cut;
#pragma unroll 1
  for (int i = 0; i < kLeaf; i += W) {
    if ((valid >> i) == 0) break;
    A in[P::inputs][W];
    if constexpr (kBackward) {
      A dy[W], after[W], previous[W], din[P::inputs][W];
      leaf.read_inputs(Cell::backward_inputs, i, in);
      leaf.read_steps(P::dy_slot, i, dy);
      states_after(i, after);
      // The state before a step is the one after the next step of the pass.
      if constexpr (P::recomputes) {
#pragma unroll
        for (int v = 0; v < W; ++v) previous[v] = own_states[kLeaf - 1 - i - v];
      } else {
#pragma unroll
        for (int v = 0; v + 1 < W; ++v) previous[v] = after[v + 1];
        previous[W - 1] = i + W < kLeaf ? leaf.read(P::states_slot, leaf.row(i + W)) : next_state;
      }
#pragma unroll
      for (int v = 0; v < W; ++v) {
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) din[k][v] = zero;
        if ((valid >> (i + v) & 1u) == 0) continue;
        const bool reset_here = (resets >> (i + v) & 1u) != 0;
        const bool is_last = i + v == last;
        if (is_last) previous[v] = load_state<T>(g.initial, t.sequence, leaf.channel);
        A in_v[P::inputs], din_v[P::inputs];
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) in_v[k] = in[k][v];
        const A x = cell.output_adjoint(in_v, after[v], dy[v]);
        state = reset ? x : fma(gain, state, x);
        gain = cell.gain(in_v);
        cell.pullback(in_v, reset_here ? zero : previous[v], after[v], dy[v], state, din_v);
        if (is_last) leave = reset_here ? zero : product(gain, state);
        reset = reset_here;
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) din[k][v] = din_v[k];
      }
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
#pragma unroll
          for (int v = 0; v < W; ++v) sum[k] = sum[k] + din[k][v];
        } else if (!P::has(P::vectors, k) && g.din[k].data != nullptr) {
          if (g.din[k].wide) {
#pragma unroll
            for (int v = 0; v < W; ++v) {
              if ((valid >> (i + v) & 1u) != 0) write_wide(g.din[k], i + v, din[k][v]);
            }
          } else {
            leaf.write_steps(slots, P::din_slot(k), i, din[k]);
          }
        }
      }
    } else {
      A out[W];
      leaf.read_inputs(P::all, i, in);
#pragma unroll
      for (int v = 0; v < W; ++v) {
        out[v] = zero;
        if ((valid >> (i + v) & 1u) == 0) continue;
        const bool reset_here = (resets >> (i + v) & 1u) != 0;
        A in_v[P::inputs];
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) in_v[k] = in[k][v];
        const Affine<A> step = cell.step(in_v);
        state = reset_here ? step.x : fma(step.a, state, step.x);
        out[v] = cell.output(in_v, state);
        if (i + v == last) leave = state;
      }
      leaf.write_steps(slots, 0, i, out);
    }
  }
  // A sequence without steps ends as it began.
  if (t.length == 0 && t.number == 0 && place == 0 && has_channel) last = 0;
  if (last >= 0) store_state<T>(g.leave, t.sequence, leaf.channel, leave);
  __syncwarp();

  const auto write_out = [&](const Steps& s, int slot) {
    if (s.data == nullptr) return;
    for (int c = 0; c < channels; ++c) {
      if (!s.wide) {
        write_column<T>(s, base_of(s, c), low, high, c * rows, slots + slot * P::slot_bytes, lane);
      }
      if (g.lengths == nullptr) continue;
      const Padding p = padding_of(g, t);
      for (Index r = p.begin + lane; r < p.end; r += kWarp) {
        store_element<T>(s.data, t.row * s.batch + r * s.time + (channel0 + c) * s.channel, s.wide,
                         zero);
      }
    }
  };
  if constexpr (kBackward) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
        for (int by = 1; by < each; by *= 2) sum[k] = sum[k] + shuffle_xor(sum[k], by);
        if (place == 0) {
          reinterpret_cast<A*>(
              g.sums)[((g.sum_slot[k] * g.tile_items + t.item) * g.groups + t.group) * held +
                      mine] = sum[k];
        }
      } else if (!P::has(P::vectors, k)) {
        write_out(g.din[k], P::din_slot(k));
      }
    }
  } else {
    write_out(g.out, 0);
  }
}

}  // namespace scanrnn::cuda
