// SPDX-License-Identifier: Apache-2.0
// The kernel for arrays whose channels lie side by side, one launch for a whole pass.
//
// A block takes a tile: all rows (steps) of `across` 16-byte vectors of channels. It
//   1. stages the tile's arrays in shared memory, asynchronously, 16 bytes a thread;
//   2. runs the leaves: a thread has up to eight steps of one vector of channels and keeps their
//   map;
//   3. merges: the maps of a warp by shuffles, those of the block through shared memory. Warp 0
//      publishes the tile's node, the others meanwhile fetch what precedes the tile, a warp a level
//      of the tree (tree.cuh);
//   4. finishes: every thread runs its leaf again from the state before it and writes the outputs.
// Several blocks share a multiprocessor, so one's loads hide another's waiting.
#pragma once

#include "cuda/pass.cuh"
#include "cuda/tree.cuh"

namespace scanrnn::cuda {

/// Vectors of a row from which on it is a whole line. A warp's band then has four leaves, and four
/// leaves are merged first also where rows are wider and a warp holds fewer: results don't depend
/// on how long the call's other sequences are.
inline constexpr int kBandVectors = 8;
inline constexpr int kBandLeaves = kWarp / kBandVectors;

template <class Cell, bool kBackward>
struct RowPass : Pass<Cell, kBackward> {
  using Base = Pass<Cell, kBackward>;
  /// Steps of a leaf; a device with less shared memory runs shorter ones (Args::leaf).
  static constexpr int leaf = row_leaf(Base::slots);
  static constexpr SCANRNN_HD int slot_bytes(int leaf_steps) {
    return kThreads * leaf_steps * kVectorBytes;
  }
  static constexpr SCANRNN_HD int staged_bytes(int leaf_steps) {
    return Base::slots * slot_bytes(leaf_steps);
  }

  /// Maps that a block of `width` channels keeps in shared memory: one for each of its bands, the
  /// parts of the time axis that a warp holds; or one for each leaf.
  static constexpr SCANRNN_HD int maps(int across, int width) {
    const bool by_leaf = Base::recomputes || across > kBandVectors;
    return (by_leaf ? kThreads / across : kWarps) * width;
  }
  /// What a block is given beside its static part: slots, maps, states that the pass starts from.
  template <class T>
  static constexpr int shared_bytes(int across, int leaf_steps) {
    const int width = across * kWidth<T>;
    return staged_bytes(leaf_steps) +
           maps(across, width) * static_cast<int>(sizeof(Affine<Acc<T>>)) +
           width * static_cast<int>(sizeof(Acc<T>));
  }
  /// Blocks that a multiprocessor is meant to hold, from which the compiler takes the registers
  /// that a thread may use.
  static constexpr int blocks(std::size_t element_bytes) {
    if (element_bytes == 2) return 2;
    return 224 * 1024 / (staged_bytes(leaf) + (Base::recomputes ? 16 : 8) * 1024);
  }
};

/// Levels of the tree: enough for 8^9 tiles.
inline constexpr int kMaxLevels = 9;

template <class T>
struct RowShared {
  Tile tile;
  bool band_cut[kWarps];
  unsigned lane_cuts[kWarps];              // a bit a lane
  bool leaf_cut[kThreads / kBandVectors];  // where leaves are kept one by one
  // What precedes the tile: (levels, groups of children, channels).
  static constexpr int parts = kMaxLevels * kGroups;
  Acc<T> part_a[parts * kBandVectors * kWidth<T>], part_x[parts * kBandVectors * kWidth<T>];
  bool part_cut[parts];
};

/// A thread's leaf: g.leaf steps of W channels, in the order of the pass.
template <class P, class T>
struct RowLeaf {
  using A = Acc<T>;
  static constexpr int W = kWidth<T>;

  const Args& g;
  const Tile& t;
  const char* slots;
  int place;      // of the leaf in the tile, in the order of the pass
  int column;     // vector of the row
  int from;       // row of step 0
  int down;       // from a step's row to the next one's
  Index channel;  // [channel, channel + channels)
  int channels;
  A vector_in[P::inputs][W];

  __device__ __forceinline__ RowLeaf(const Args& args, const Tile& tile, const char* staged,
                                     Index channel0)
      : g(args), t(tile), slots(staged) {
    const bool ascending = P::backward == g.reverse;
    const int leaves = kThreads >> g.across_log2;
    place = static_cast<int>(threadIdx.x) >> g.across_log2;
    column = static_cast<int>(threadIdx.x) & ((1 << g.across_log2) - 1);
    from = ascending ? place * g.leaf : (leaves - place) * g.leaf - 1;
    down = ascending ? 1 : -1;
    channel = channel0 + column * W;
    const Index rest = g.channels - channel;
    channels = static_cast<int>(rest < 0 ? 0 : (rest < W ? rest : W));
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(P::vectors, k)) continue;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        vector_in[k][v] =
            g.in[k].data != nullptr && v < channels
                ? load_element<T>(g.in[k].data, (channel + v) * g.in[k].channel, g.in[k].wide)
                : Constant<A>::of(0);
      }
    }
  }

  /// The row of step i; those of steps -1 and g.leaf are the neighbouring leaves' nearest.
  __device__ __forceinline__ int row(int i) const { return from + i * down; }
  __device__ __forceinline__ bool is_reset(int r) const {
    return g.reset != nullptr &&
           g.reset[t.row * g.reset_batch + (t.position + r) * g.reset_time] != 0;
  }
  __device__ __forceinline__ int chunk(int r) const {
    return swizzled((r << g.across_log2) + column);
  }

  /// A row of the array in a slot.
  __device__ __forceinline__ void read(int slot, int r, A (&to)[W]) const {
    if (staged_array<P>(g, slot).data == nullptr) {
#pragma unroll
      for (int v = 0; v < W; ++v) to[v] = Constant<A>::of(0);
    } else {
      widen<T>(*reinterpret_cast<const Vector<T>*>(slots + slot * P::slot_bytes(g.leaf) +
                                                   chunk(r) * kVectorBytes),
               to);
    }
  }
  /// A row beyond the tile.
  __device__ __forceinline__ void read_outside(int slot, int r, A (&to)[W]) const {
    const Steps& s = staged_array<P>(g, slot);
#pragma unroll
    for (int v = 0; v < W; ++v) {
      to[v] =
          s.data != nullptr && v < channels
              ? load_element<T>(
                    s.data, t.row * s.batch + (t.position + r) * s.time + (channel + v) * s.channel,
                    false)
              : Constant<A>::of(0);
    }
  }
  /// The inputs in `set` of a row.
  __device__ __forceinline__ void read_inputs(unsigned set, int r, bool outside,
                                              A (&in)[P::inputs][W]) const {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(set, k)) continue;
      if (P::has(P::vectors, k)) {
#pragma unroll
        for (int v = 0; v < W; ++v) in[k][v] = vector_in[k][v];
      } else if (outside) {
        read_outside(P::slot(k), r, in[k]);
      } else {
        read(P::slot(k), r, in[k]);
      }
    }
  }
};

/// The inputs of one channel.
template <class A, int kInputs, int W>
__device__ __forceinline__ void take_channel(const A (&in)[kInputs][W], int v, A (&one)[kInputs]) {
#pragma unroll
  for (int k = 0; k < kInputs; ++k) one[k] = in[k][v];
}

/// Copies an array's part of the tile into a slot. Rows that aren't the sequence's and channels
/// that aren't there are left as they are.
template <class T>
__device__ __forceinline__ void stage_rows(const Steps& s, const Args& g, const Tile& t,
                                           Index channel0, int rows, char* slot) {
  if (s.data == nullptr) return;
  const char* base = s.data + (t.row * s.batch + t.position * s.time + channel0 * s.channel) *
                                  static_cast<Index>(sizeof(T));
  const int across = 1 << g.across_log2;
  const int channels =
      static_cast<int>(min(g.channels - channel0, static_cast<Index>(across * kWidth<T>)));
  const int low = t.low, high = t.high;
  if (s.vector) {
    const Index row_bytes = s.time * static_cast<Index>(sizeof(T));
#pragma unroll 4
    for (int e = threadIdx.x; e < rows << g.across_log2; e += kThreads) {
      const int r = e >> g.across_log2, c = e & (across - 1);
      if (r >= low && r < high && c * kWidth<T> < channels) {
        copy_async<kVectorBytes>(slot + swizzled(e) * kVectorBytes,
                                 base + r * row_bytes + c * kVectorBytes);
      }
    }
    return;
  }
  const int wide = across * kWidth<T>;
#pragma unroll 4
  for (int e = threadIdx.x; e < rows * wide; e += kThreads) {
    const int r = e / wide, c = e & (wide - 1);
    if (r >= low && r < high && c < channels) {
      copy_async<static_cast<int>(sizeof(T))>(
          slot + element_offset<T>(e),
          base + (r * s.time + c * s.channel) * static_cast<Index>(sizeof(T)));
    }
  }
}

/// Writes a slot's part of the tile to an output.
template <class T>
__device__ __forceinline__ void write_rows(const Steps& s, const Args& g, const Tile& t,
                                           Index channel0, int rows, const char* slot) {
  char* base = s.data + (t.row * s.batch + t.position * s.time + channel0 * s.channel) *
                            static_cast<Index>(sizeof(T));
  const int across = 1 << g.across_log2;
  const int channels =
      static_cast<int>(min(g.channels - channel0, static_cast<Index>(across * kWidth<T>)));
  const int low = t.low, high = t.high;
  if (s.vector) {
    for (int e = threadIdx.x; e < rows << g.across_log2; e += kThreads) {
      const int r = e >> g.across_log2, c = e & (across - 1);
      if (r >= low && r < high && c * kWidth<T> < channels) {
        store_streaming(base + (r * s.time) * static_cast<Index>(sizeof(T)) + c * kVectorBytes,
                        *reinterpret_cast<const uint4*>(slot + swizzled(e) * kVectorBytes));
      }
    }
    return;
  }
  const int wide = across * kWidth<T>;
  for (int e = threadIdx.x; e < rows * wide; e += kThreads) {
    const int r = e / wide, c = e & (wide - 1);
    if (r >= low && r < high && c < channels) {
      reinterpret_cast<T*>(base)[r * s.time + c * s.channel] =
          *reinterpret_cast<const T*>(slot + element_offset<T>(e));
    }
  }
}

/// Zeros in the padding of the tile's channels.
template <class T>
__device__ __forceinline__ void pad_rows(const Steps& s, const Args& g, const Tile& t,
                                         Index channel0, int channels) {
  if (s.data == nullptr) return;
  const Padding p = padding_of(g, t);
  const Index count = (p.end - p.begin) * channels;
  for (Index e = threadIdx.x; e < count; e += kThreads) {
    const Index r = e / channels, c = e % channels;
    store_element<T>(s.data, t.row * s.batch + (p.begin + r) * s.time + (channel0 + c) * s.channel,
                     s.wide, Constant<Acc<T>>::of(0));
  }
}

template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__(kThreads, (RowPass<Cell, kBackward>::blocks(sizeof(T))))
    run_rows(const __grid_constant__ Args g, const __grid_constant__ Cell cell) {
  using P = RowPass<Cell, kBackward>;
  using A = Acc<T>;
  constexpr int kLeaf = P::leaf, W = kWidth<T>;
  const A zero = Constant<A>::of(0), one = Constant<A>::of(1);

  extern __shared__ __align__(128) char slots[];
  __shared__ RowShared<T> shared;

  const int across = 1 << g.across_log2;
  const int leaves = kThreads >> g.across_log2;
  const int rows = leaves * g.leaf;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  if (threadIdx.x == 0) {
    const Index ticket =
        g.levels > 0 ? static_cast<Index>(atomicAdd(g.ticket, 1u)) : static_cast<Index>(blockIdx.x);
    shared.tile = tile_of<kBackward>(g, ticket, rows);
  }
  __syncthreads();
  const Tile& t = shared.tile;
  const int width = across * W;  // channels of the tile
  const Index channel0 = t.group * width;
  A* const maps_a = reinterpret_cast<A*>(slots + P::staged_bytes(g.leaf));
  A* const maps_x = maps_a + P::maps(across, width);
  A* const enter = maps_x + P::maps(across, width);

  // --- stage -----------------------------------------------------------------------------------
#pragma unroll
  for (int s = 0; s < P::slots; ++s) {
    stage_rows<T>(staged_array<P>(g, s), g, t, channel0, rows, slots + s * P::slot_bytes(g.leaf));
  }

  RowLeaf<P, T> leaf(g, t, slots, channel0);
  const int column = leaf.column, channels = leaf.channels, down = leaf.down;
  const Index channel = leaf.channel;
  unsigned valid = 0;   // bit i: step i of the pass is one of the sequence's
  unsigned resets = 0;  // bit i: and the state is dropped before it
#pragma unroll
  for (int i = 0; i < kLeaf; ++i) {
    if (i >= g.leaf || !t.contains(leaf.row(i))) continue;
    valid |= 1u << i;
    if (leaf.is_reset(leaf.row(i))) resets |= 1u << i;
  }
  if (leaf.place == 0) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      enter[column * W + v] = v < channels ? load_state<T>(g.enter, t.sequence, channel + v) : zero;
    }
  }

  // Backward needs the row before the leaf, for its gain, and the state of the row after it. Rows
  // beyond the tile come straight from memory, on their way together with the tile.
  const int before_row = leaf.row(-1), after_row = leaf.row(g.leaf);
  const auto is_inside = [&](int r) { return r >= 0 && r < rows; };
  A entry_gain[W];  // what the adjoint of the row before is multiplied by
  bool entry_cut = false;
  A next_state[W];            // of the row after the leaf
  A c_start[W], c[kLeaf][W];  // recomputed: before and after each step, in the order of time
  const auto take_entry = [&](bool outside) {
    A in[P::inputs][W];
    leaf.read_inputs(Cell::map_inputs & Cell::backward_inputs, before_row, outside, in);
#pragma unroll
    for (int v = 0; v < W; ++v) {
      A in_v[P::inputs];
      take_channel(in, v, in_v);
      entry_gain[v] = cell.gain(in_v);
    }
    entry_cut = leaf.is_reset(before_row);
  };
  if constexpr (kBackward) {
#pragma unroll
    for (int v = 0; v < W; ++v) entry_gain[v] = one, next_state[v] = zero;
    if (!is_inside(before_row) && t.in_sequence(before_row)) take_entry(true);
    if constexpr (P::reads_states) {
      if (!is_inside(after_row) && t.in_sequence(after_row)) {
        leaf.read_outside(P::states_slot, after_row, next_state);
      }
    }
  }
  await_copies();
  __syncthreads();

  if constexpr (kBackward) {
    if (is_inside(before_row) && t.in_sequence(before_row)) take_entry(false);
    if constexpr (P::reads_states) {
      if (is_inside(after_row) && t.in_sequence(after_row)) {
        leaf.read(P::states_slot, after_row, next_state);
      }
    }
    if constexpr (P::recomputes) {
      // Leaf maps in the order of time, which the pass goes against.
      Affine<A> map[W];
      bool cut = false;
#pragma unroll
      for (int v = 0; v < W; ++v) map[v] = identity<Affine<A>>();
#pragma unroll
      for (int i = kLeaf - 1; i >= 0; --i) {
        if ((valid >> i & 1u) == 0) continue;
        A in[P::inputs][W];
        leaf.read_inputs(Cell::map_inputs, leaf.row(i), false, in);
        const bool reset = (resets >> i & 1u) != 0;
        cut = cut || reset;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          A in_v[P::inputs];
          take_channel(in, v, in_v);
          const Affine<A> step = cell.step(in_v);
          map[v].x = reset ? step.x : fma(step.a, map[v].x, step.x);
          map[v].a = product(map[v].a, step.a);
        }
      }
      // Folded from the checkpoint before the leaf.
#pragma unroll
      for (int v = 0; v < W; ++v) {
        maps_a[threadIdx.x * W + v] = map[v].a;
        maps_x[threadIdx.x * W + v] = map[v].x;
      }
      const Index step0 = t.step_of(leaf.row(g.leaf - 1), rows, g.reverse);
      const int behind = static_cast<int>(step0 % kLeafSteps) / g.leaf;  // leaves since then
      const bool has_steps = valid != 0 && channels > 0;
      const Index at = has_steps ? checkpoint_row(g, t, step0) * g.channels + channel : 0;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        c_start[v] =
            has_steps && v < channels ? reinterpret_cast<const A*>(g.checkpoints)[at + v] : zero;
      }
      const unsigned cuts = __ballot_sync(kAllLanes, cut);
      if (lane == 0) shared.lane_cuts[warp] = cuts;
      __syncthreads();
      for (int b = behind; b > 0; --b) {  // the leaf b places later in the pass is b earlier
        const int thread = static_cast<int>(threadIdx.x) + (b << g.across_log2);
        const bool was_cut = (shared.lane_cuts[thread / kWarp] >> (thread % kWarp) & 1u) != 0;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          const Segment<A> earlier{{maps_a[thread * W + v], maps_x[thread * W + v]}, was_cut};
          c_start[v] = apply(earlier, c_start[v]);
        }
      }
      A run[W];
#pragma unroll
      for (int v = 0; v < W; ++v) run[v] = c_start[v];
#pragma unroll
      for (int i = kLeaf - 1; i >= 0; --i) {
        if ((valid >> i & 1u) != 0) {
          A in[P::inputs][W];
          leaf.read_inputs(Cell::map_inputs, leaf.row(i), false, in);
#pragma unroll
          for (int v = 0; v < W; ++v) {
            A in_v[P::inputs];
            take_channel(in, v, in_v);
            const Affine<A> step = cell.step(in_v);
            run[v] = (resets >> i & 1u) != 0 ? step.x : fma(step.a, run[v], step.x);
          }
        }
#pragma unroll
        for (int v = 0; v < W; ++v) c[kLeaf - 1 - i][v] = run[v];
      }
      __syncthreads();
    }
  }
  // State after and before step i of the pass.
  const auto state_after = [&](int i, A(&to)[W]) {
    if constexpr (P::recomputes) {
#pragma unroll
      for (int v = 0; v < W; ++v) to[v] = c[kLeaf - 1 - i][v];
    } else if constexpr (P::reads_states) {
      leaf.read(P::states_slot, leaf.row(i), to);
    }
  };

  // --- leaves ----------------------------------------------------------------------------------
  Affine<A> map[W];
  bool cut = false;
#pragma unroll
  for (int v = 0; v < W; ++v) map[v] = identity<Affine<A>>();
  {
    A gain[W];
    bool reset = entry_cut;
    if constexpr (kBackward) {
#pragma unroll
      for (int v = 0; v < W; ++v) gain[v] = entry_gain[v];
    }
#pragma unroll
    for (int i = 0; i < kLeaf; ++i) {
      if ((valid >> i & 1u) == 0) continue;
      A in[P::inputs][W];
      if constexpr (kBackward) {
        A dy[W], after[W];
        leaf.read_inputs(Cell::backward_inputs, leaf.row(i), false, in);
        leaf.read(P::dy_slot, leaf.row(i), dy);
        state_after(i, after);
        cut = cut || reset;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          A in_v[P::inputs];
          take_channel(in, v, in_v);
          const A x = cell.output_adjoint(in_v, after[v], dy[v]);
          map[v].x = reset ? x : fma(gain[v], map[v].x, x);
          map[v].a = product(map[v].a, gain[v]);
          gain[v] = cell.gain(in_v);
        }
        reset = (resets >> i & 1u) != 0;
      } else {
        reset = (resets >> i & 1u) != 0;
        cut = cut || reset;
        leaf.read_inputs(Cell::map_inputs, leaf.row(i), false, in);
#pragma unroll
        for (int v = 0; v < W; ++v) {
          A in_v[P::inputs];
          take_channel(in, v, in_v);
          const Affine<A> step = cell.step(in_v);
          map[v].x = reset ? step.x : fma(step.a, map[v].x, step.x);
          map[v].a = product(map[v].a, step.a);
        }
      }
    }
  }

  // --- merge -----------------------------------------------------------------------------------
  // Neighbours in time are `across` threads apart.
  const bool is_wide = across > kBandVectors;
  if (is_wide) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      maps_a[leaf.place * width + column * W + v] = map[v].a;
      maps_x[leaf.place * width + column * W + v] = map[v].x;
    }
    if (column == 0) shared.leaf_cut[leaf.place] = cut;
  } else {
    scan_lanes(map, cut, lane, across, kWarp, g.reset != nullptr);
    if (lane + across >= kWarp) {  // the band's last leaf
#pragma unroll
      for (int v = 0; v < W; ++v) {
        maps_a[warp * width + column * W + v] = map[v].a;
        maps_x[warp * width + column * W + v] = map[v].x;
      }
      shared.band_cut[warp] = cut;
    }
    // From here on: what precedes the leaf in its band.
#pragma unroll
    for (int v = 0; v < W; ++v) {
      map[v] = shuffle_up(map[v], across);
      if (lane < across) map[v] = identity<Affine<A>>();
    }
    cut = __shfl_up_sync(kAllLanes, static_cast<int>(cut), across) != 0 && lane >= across;
  }
  __syncthreads();

  // --- the tree between tiles ------------------------------------------------------------------
  A state[W];
  const auto take_enter = [&] {
#pragma unroll
    for (int v = 0; v < W; ++v) state[v] = enter[column * W + v];
  };
  if (g.levels > 0) {
    constexpr Index kWords = Node<A>::words;
    const auto total = [&](int b, int ch) -> Segment<A> {
      return {{maps_a[b * width + ch], maps_x[b * width + ch]}, shared.band_cut[b]};
    };
    const Index stride = g.groups * width * kWords;
    const auto nodes_of = [&](int ch) {
      return g.nodes + ((t.first_item * g.groups + t.group) * width + ch) * kWords;
    };
    const bool is_idle = t.low >= t.high;
    if (warp == 0) {
      for (int ch = lane; ch < width; ch += kWarp) {
        Segment<A> own = total(0, ch);
        for (int b = 1; b < kWarps; ++b) own = merge(own, total(b, ch));
        for (int level = 0; !is_idle && digit_of(t.number, level) == kRadix - 1; ++level) {
          own = merge(await_level<A>(nodes_of(ch), stride, t.number, level), own);
        }
        Node<A>::publish(g.nodes + ((t.item * g.groups + t.group) * width + ch) * kWords, own);
      }
    } else if (!is_idle) {
      for (int part = warp - 1; part < g.levels * kGroups; part += kWarps - 1) {
        const int level = part / kGroups, first = part % kGroups * kAhead;
        if (digit_of(t.number, level) <= first) continue;
        for (int ch = lane; ch < width; ch += kWarp) {
          const Segment<A> before = await_group<A>(nodes_of(ch), stride, t.number, level, first);
          shared.part_a[part * width + ch] = before.map.a;
          shared.part_x[part * width + ch] = before.map.x;
          if (ch == 0) shared.part_cut[part] = before.cut;
        }
      }
    }
    __syncthreads();
    take_enter();
    // The highest level has the earliest nodes.
    for (int level = is_idle ? -1 : g.levels - 1; level >= 0; --level) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (digit_of(t.number, level) <= group * kAhead) break;
        const int part = level * kGroups + group;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          const int at = part * width + column * W + v;
          state[v] = apply(
              Segment<A>{{shared.part_a[at], shared.part_x[at]}, shared.part_cut[part]}, state[v]);
        }
      }
    }
  } else {
    take_enter();
  }
  if (is_wide) {
    // Bands of leaves, in the brackets that scan_lanes has.
    const auto of_leaf = [&](int place, int v) -> Segment<A> {
      const int at = place * width + column * W + v;
      return {{maps_a[at], maps_x[at]}, shared.leaf_cut[place]};
    };
    const int within = leaf.place % kBandLeaves, first = leaf.place - within;
#pragma unroll
    for (int v = 0; v < W; ++v) {
      for (int p = 0; p < first; p += kBandLeaves) {
        state[v] = apply(merge(merge(of_leaf(p, v), of_leaf(p + 1, v)),
                               merge(of_leaf(p + 2, v), of_leaf(p + 3, v))),
                         state[v]);
      }
      Segment<A> before{identity<Affine<A>>(), false};
      if (within > 1)
        before = merge(of_leaf(first + within - 2, v), of_leaf(first + within - 1, v));
      if (within == 1) before = of_leaf(first, v);
      if (within == 3) before = merge(of_leaf(first, v), before);
      state[v] = apply(before, state[v]);
    }
  } else {
    for (int b = 0; b < warp; ++b) {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        const int at = b * width + column * W + v;
        state[v] = apply(Segment<A>{{maps_a[at], maps_x[at]}, shared.band_cut[b]}, state[v]);
      }
    }
#pragma unroll
    for (int v = 0; v < W; ++v) state[v] = apply(Segment<A>{map[v], cut}, state[v]);
  }

  // --- finish ----------------------------------------------------------------------------------
  // Whole lines go straight from registers to memory; all else through the slots.
  const auto is_direct = [&](const Steps& s) { return s.vector && across >= 8; };
  const auto write_row = [&](const Steps& s, int slot, int r, const A(&value)[W]) {
    if (s.data == nullptr || channels == 0) return;
    if (s.wide) {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (v < channels) {
          store_element<T>(s.data,
                           t.row * s.batch + (t.position + r) * s.time + (channel + v) * s.channel,
                           true, value[v]);
        }
      }
      return;
    }
    const Vector<T> packed = narrow<T>(value);
    if (is_direct(s)) {
      store_streaming(s.data + (t.row * s.batch + (t.position + r) * s.time + channel) *
                                   static_cast<Index>(sizeof(T)),
                      packed);
    } else {
      *reinterpret_cast<Vector<T>*>(slots + slot * P::slot_bytes(g.leaf) +
                                    leaf.chunk(r) * kVectorBytes) = packed;
    }
  };

  A sum[P::inputs][W];
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
#pragma unroll
    for (int v = 0; v < W; ++v) sum[k][v] = zero;
  }
  // The leaf's step that is the last of the pass, if it is here.
  int last = -1;
  if (valid != 0 && t.is_last()) {
    const int i = 31 - __clz(static_cast<int>(valid));
    if (!t.in_sequence(leaf.row(i) + down)) last = i;
  }
  bool reset = entry_cut;
  A leave[W], gain[W];
  if constexpr (kBackward) {
#pragma unroll
    for (int v = 0; v < W; ++v) gain[v] = entry_gain[v];
  }
  if constexpr (!kBackward && !Cell::state_is_output) {
    const Index step0 = t.step_of(leaf.from, rows, g.reverse);
    if (g.checkpoints != nullptr && (valid & 1u) != 0 && step0 % kLeafSteps == 0) {
      const Index at = checkpoint_row(g, t, step0) * g.channels + channel;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (v < channels) reinterpret_cast<A*>(g.checkpoints)[at + v] = state[v];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kLeaf; ++i) {
    if ((valid >> i & 1u) == 0) continue;
    const int r = leaf.row(i);
    const bool is_last = i == last;
    A in[P::inputs][W];
    if constexpr (kBackward) {
      A dy[W], after[W], before[W];
      leaf.read_inputs(Cell::backward_inputs, r, false, in);
      leaf.read(P::dy_slot, r, dy);
      state_after(i, after);
      const bool reset_here = (resets >> i & 1u) != 0;
      // The state before this step is the one after the next step of the pass.
      if (is_last) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          before[v] = v < channels ? load_state<T>(g.initial, t.sequence, channel + v) : zero;
        }
      } else if constexpr (P::recomputes) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          before[v] = i + 1 < g.leaf ? c[i + 1 < kLeaf ? kLeaf - 2 - i : 0][v] : c_start[v];
        }
      } else {
        if (i + 1 < g.leaf) {
          leaf.read(P::states_slot, leaf.row(i + 1), before);
        } else {
#pragma unroll
          for (int v = 0; v < W; ++v) before[v] = next_state[v];
        }
      }
      A din[P::inputs][W];
#pragma unroll
      for (int v = 0; v < W; ++v) {
        A in_v[P::inputs], din_v[P::inputs];
        take_channel(in, v, in_v);
        const A x = cell.output_adjoint(in_v, after[v], dy[v]);
        state[v] = reset ? x : fma(gain[v], state[v], x);
        gain[v] = cell.gain(in_v);
        cell.pullback(in_v, reset_here ? zero : before[v], after[v], dy[v], state[v], din_v);
        if (is_last) leave[v] = reset_here ? zero : product(gain[v], state[v]);
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) din[k][v] = din_v[k];
      }
      reset = reset_here;
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
#pragma unroll
          for (int v = 0; v < W; ++v) sum[k][v] = sum[k][v] + din[k][v];
        } else if (!P::has(P::vectors, k)) {
          write_row(g.din[k], P::din_slot(k), r, din[k]);
        }
      }
    } else {
      const bool reset_here = (resets >> i & 1u) != 0;
      leaf.read_inputs(P::all, r, false, in);
      A out[W];
#pragma unroll
      for (int v = 0; v < W; ++v) {
        A in_v[P::inputs];
        take_channel(in, v, in_v);
        const Affine<A> step = cell.step(in_v);
        state[v] = reset_here ? step.x : fma(step.a, state[v], step.x);
        out[v] = cell.output(in_v, state[v]);
        if (is_last) leave[v] = state[v];
      }
      write_row(g.out, 0, r, out);
    }
  }
  // A sequence without steps ends as it began.
  if (t.length == 0 && t.number == 0 && leaf.place == 0) {
    last = 0;
#pragma unroll
    for (int v = 0; v < W; ++v) leave[v] = state[v];
  }
  if (last >= 0) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      if (v < channels) store_state<T>(g.leave, t.sequence, channel + v, leave[v]);
    }
  }

  // --- what went through the slots, padding, sums ----------------------------------------------
  const auto write_out = [&](const Steps& s, int slot) {
    if (s.data != nullptr && !s.wide && !is_direct(s)) {
      write_rows<T>(s, g, t, channel0, rows, slots + slot * P::slot_bytes(g.leaf));
    }
  };
  const auto pad = [&](const Steps& s) {
    pad_rows<T>(s, g, t, channel0,
                static_cast<int>(min(static_cast<Index>(width), g.channels - channel0)));
  };
  __syncthreads();
  if constexpr (kBackward) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(P::vectors, k) || g.sum_slot[k] >= 0) continue;
      write_out(g.din[k], P::din_slot(k));
      if (g.lengths != nullptr) pad(g.din[k]);
    }
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(P::summed, k) || g.sum_slot[k] < 0) continue;
      // The leaves of a band in a fixed tree, then bands in order.
      for (int by = across; by < kWarp && !is_wide; by *= 2) {
#pragma unroll
        for (int v = 0; v < W; ++v) sum[k][v] = sum[k][v] + shuffle_xor(sum[k][v], by);
      }
      __syncthreads();
      if (is_wide || lane < across) {
        const int part = is_wide ? leaf.place : warp;
#pragma unroll
        for (int v = 0; v < W; ++v) maps_a[part * width + column * W + v] = sum[k][v];
      }
      __syncthreads();
      A* to = reinterpret_cast<A*>(g.sums) +
              ((g.sum_slot[k] * g.tile_items + t.item) * g.groups + t.group) * width;
      for (int ch = threadIdx.x; ch < width; ch += kThreads) {
        A total = zero;
        if (is_wide) {
          const auto at = [&](int place) { return maps_a[place * width + ch]; };
          for (int p = 0; p < leaves; p += kBandLeaves) {
            total = total + ((at(p) + at(p + 1)) + (at(p + 2) + at(p + 3)));
          }
        } else {
          for (int b = 0; b < kWarps; ++b) total = total + maps_a[b * width + ch];
        }
        to[ch] = total;
      }
    }
  } else {
    write_out(g.out, 0);
    if (g.lengths != nullptr) pad(g.out);
  }
}

}  // namespace scanrnn::cuda
