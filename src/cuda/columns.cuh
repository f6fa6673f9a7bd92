// SPDX-License-Identifier: Apache-2.0
// The kernel for arrays whose steps lie side by side, one launch for a whole pass.
//
// A warp works for itself: it takes one channel's tile of 32 leaves, or, of
// sequences that need fewer, several channels at once. It stages the tile in shared memory, runs
// the leaves, merges their maps by shuffles, publishes the tile's node and looks back, its lanes
// holding the nodes of four levels of the tree (tree.cuh), and finishes. Outputs take the place of
// inputs in shared memory and leave it in whole lines. Of long sequences a block's warps take
// neighbouring tiles, the children of one node, and look back together; of sequences of two or four
// tiles a block takes several, and needs no tree. Regular calls have a leaner kernel
// (whole_columns.cuh).
#pragma once

#include <type_traits>

#include "cuda/pass.cuh"
#include "cuda/tree.cuh"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {

template <class Cell, bool kBackward, class T>
struct ColumnPass : Pass<Cell, kBackward> {
  using Base = Pass<Cell, kBackward>;
  /// Arrays in shared memory, recomputed states among them.
  static constexpr int kept_arrays = Base::slots + (Base::recomputes ? 1 : 0);
  static constexpr int leaf = column_leaf(sizeof(T), kBackward ? kept_arrays : 0);
  static constexpr int rows = kWarp * leaf;  // of a warp: steps times channels
  static constexpr int slot_bytes = rows * static_cast<int>(sizeof(T));
  static constexpr int states_bytes =  // recomputed, (leaf + 1) a lane
      Base::recomputes ? kWarp * (leaf + 1) * static_cast<int>(sizeof(Acc<T>)) : 0;
  static constexpr int warp_bytes = Base::slots * slot_bytes + states_bytes;
  /// Warps of a block; a device with less shared memory runs fewer.
  static constexpr int warps = column_warps(kept_arrays);
  static constexpr int wanted_blocks = 216 * 1024 / (warps * warp_bytes + 2 * 1024);
  // Fewer than fit, where threads need the registers more.
  static constexpr int most_threads = sizeof(T) == 16                    ? 512
                                      : !kBackward || sizeof(T) == 8     ? 1024
                                      : sizeof(T) == 2                   ? 768
                                      : leaf < column_leaf(sizeof(T), 0) ? 640
                                                                         : 1024;
  static constexpr int most_blocks = most_threads / (warps * kWarp);
  static constexpr int blocks =
      wanted_blocks < 1 ? 1 : (wanted_blocks < most_blocks ? wanted_blocks : most_blocks);
};

/// Whether 16 bytes at a time can be read or written from this row on.
__device__ __forceinline__ bool is_aligned(const char* p) {
  return (reinterpret_cast<unsigned long long>(p) & (kVectorBytes - 1)) == 0;
}

/// Calls `element(memory, shared)` for rows [low, high) of kRows that lie side by side, a lane a
/// row: where each lies in memory, row 0 at `base`, and where in a slot. Lanes and multiples of
/// kWarp have no bit in common and swizzling is linear in bits, so that a row's place is that of
/// its lane and a constant.
template <class T, int kRows, class Element>
__device__ __forceinline__ void each_row(char* base, int low, int high, char* slot, int lane,
                                         Element&& element) {
  constexpr int kBytes = static_cast<int>(sizeof(T)), kLine = 128;
  constexpr int kAtOnce = sizeof(T) == 2 ? 16 : 8;  // then the swizzle begins anew
  const int first = element_offset<T>(lane);
  const unsigned count = static_cast<unsigned>(high - low);
  int row = lane - low;
  asm("" : "+r"(row));  // else each row's is worked out from the start
  base = opaque(base + lane * kBytes);
  char* place[kAtOnce];
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    place[j] = opaque(slot + (first ^ (element_offset<T>(j * kWarp) & (kLine - 1))));
  }
#pragma unroll
  for (int i = 0; i < kRows / kWarp; ++i) {
    const int row0 = i * kWarp;
    if (static_cast<unsigned>(row0 + row) < count) {
      element(base + row0 * kBytes, place[i % kAtOnce] + row0 * kBytes / kLine * kLine);
    }
  }
}

/// Copies one channel's rows [low, high) into a slot, of kRows where they start anywhere.
template <class T, int kRows = 0>
__device__ __forceinline__ void stage_column(const Steps& s, const char* base, int low, int high,
                                             char* slot, int lane) {
  constexpr int W = kWidth<T>, kBytes = static_cast<int>(sizeof(T));
  if constexpr (kRows > 0) {
    if (s.vector && !is_aligned(base)) {
      each_row<T, kRows>(const_cast<char*>(base), low, high, slot, lane,
                         [&](const char* from, char* to) { copy_async<kBytes>(to, from); });
      return;
    }
  }
  int done = low;  // rows [low, done) are copied
  if (s.vector && is_aligned(base)) {
    const int begin = (low + W - 1) / W, end = high / W;
#pragma unroll 4
    for (int c = begin + lane; c < end; c += kWarp) {
      copy_async<kVectorBytes>(slot + swizzled(c) * kVectorBytes, base + c * kVectorBytes);
    }
    if (end >= begin) {  // what no whole vector holds, at either end
      if (low + lane < begin * W) {
        copy_async<kBytes>(slot + element_offset<T>(low + lane),
                           base + (low + lane) * s.time * kBytes);
      }
      done = end * W;
    }
  }
#pragma unroll 4
  for (int r = done + lane; r < high; r += kWarp) {
    copy_async<kBytes>(slot + element_offset<T>(r), base + r * s.time * kBytes);
  }
}

template <class T, int kRows = 0>
__device__ __forceinline__ void write_column(const Steps& s, char* base, int low, int high,
                                             const char* slot, int lane) {
  constexpr int W = kWidth<T>, kBytes = static_cast<int>(sizeof(T));
  if constexpr (kRows > 0) {
    if (s.vector && !is_aligned(base)) {
      each_row<T, kRows>(base, low, high, const_cast<char*>(slot), lane,
                         [&](char* to, const char* from) {
                           *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
                         });
      return;
    }
  }
  int done = low;
  const auto write = [&](int r) {
    *reinterpret_cast<T*>(base + r * s.time * kBytes) =
        *reinterpret_cast<const T*>(slot + element_offset<T>(r));
  };
  if (s.vector && is_aligned(base)) {
    const int begin = (low + W - 1) / W, end = high / W;
#pragma unroll 4
    for (int c = begin + lane; c < end; c += kWarp) {
      store_streaming(base + c * kVectorBytes, load_vector<T>(slot + swizzled(c) * kVectorBytes));
    }
    if (end >= begin) {
      if (low + lane < begin * W) write(low + lane);
      done = end * W;
    }
  }
#pragma unroll 4
  for (int r = done + lane; r < high; r += kWarp) write(r);
}

/// Calls `chunk(from, to)` or `element(from, to)` for all of rows [low, high) of the first channels
/// of a tile: bytes from row 0 of the first one on, and bytes into a slot. The lanes of a warp
/// share what the channels have together.
template <class T, class Chunk, class Element>
__device__ __forceinline__ void each_of_columns(const Steps& s, const char* base, int low, int high,
                                                int rows, int channels, int lane, Chunk&& chunk,
                                                Element&& element) {
  constexpr int W = kWidth<T>, kBytes = static_cast<int>(sizeof(T));
  const int count = high - low;
  if (count <= 0) return;
  const bool in_chunks = s.vector && is_aligned(base + low * kBytes) && count % W == 0 &&
                         low % W == 0 && s.channel * kBytes % kVectorBytes == 0;
  const int pieces = in_chunks ? count / W : count;
  const int pieces_log2 = pieces > 1 ? 32 - __clz(pieces - 1) : 0;
#pragma unroll 2
  for (int e = lane; e < channels << pieces_log2; e += kWarp) {
    const int c = e >> pieces_log2, i = e & ((1 << pieces_log2) - 1);
    if (i >= pieces) continue;
    if (in_chunks) {
      chunk(c * s.channel * kBytes + low * kBytes + i * kVectorBytes,
            swizzled((c * rows + low) / W + i) * kVectorBytes);
    } else {
      element((c * s.channel + (low + i) * s.time) * kBytes, element_offset<T>(c * rows + low + i));
    }
  }
}

/// Fills the leaf that a sequence ends in. A step of 1 and -0 changes no state, whatever it is, and
/// is the identity's own where it comes first, as in backward: so that leaf may run as full ones
/// do. (Complex products with 1 would change infinities.)
template <class P, class T>
__device__ __forceinline__ void fill_leaf(const Args& g, int low, int high, char* slots, int lane) {
  const int missing = (g.reverse ? low : -high) & (P::leaf - 1);
  if (lane >= missing) return;
  const int row = g.reverse ? low - 1 - lane : high + lane;
#pragma unroll
  for (int s = 0; s < P::slots; ++s) {
    *reinterpret_cast<T*>(slots + s * P::slot_bytes + element_offset<T>(row)) =
        Element<T>::narrow(s == P::slot(0) ? Acc<T>(1) : Acc<T>(-0.0));
  }
}

/// How a leaf is run. A plain one is nothing but full: all its steps are there, without a reset. It
/// goes up or down in memory.
enum class ColumnMode { general, plain_up, plain_down };
template <ColumnMode kMode>
inline constexpr bool kIsPlainColumn = kMode != ColumnMode::general;
template <ColumnMode kMode>
using InColumnMode = std::integral_constant<ColumnMode, kMode>;

/// Calls run(InColumnMode<mode>()).
template <bool kAlwaysPlain, class Run>
__device__ __forceinline__ void in_mode(ColumnMode mode, Run&& run) {
  if (mode == ColumnMode::plain_up) {
    run(InColumnMode<ColumnMode::plain_up>());
  } else if (kAlwaysPlain || mode == ColumnMode::plain_down) {
    run(InColumnMode<ColumnMode::plain_down>());
  } else {
    run(InColumnMode<ColumnMode::general>());
  }
}

/// A lane's leaf: P::leaf steps of one channel, numbered in the order of the pass. kWhole: it is
/// known to be plain (whole_columns.cuh).
template <class P, class T, bool kWhole = false>
struct ColumnLeaf {
  using Cell = typename P::Cell;
  using A = Acc<T>;
  static constexpr int W = kWidth<T>, kLeaf = P::leaf;
  using R = Lanes<T, W>;    // steps
  using One = Lanes<T, 1>;  // a step
  using Loss = typename P::template Loss<T>;
  static constexpr bool kKeeps = P::template keeps_steps<T>;
  static constexpr bool kOpens = P::template opens<T>;
  /// Every array that is staged is there, and a gradient that nobody wants goes to its slot as
  /// well.
  static constexpr bool kHasAll = kWhole && std::is_same_v<Cell, ScanCell>;
  using Opened = typename P::template Opened<T>;
  template <ColumnMode kMode>
  static constexpr unsigned kEarly =
      kIsPlainColumn<kMode> && sizeof(T) == sizeof(A) ? P::template early<T> : 0;
  /// Cells unrolled would not fit into the instruction cache.
  template <ColumnMode kMode>
  static constexpr int kUnrolled =
      kIsPlainColumn<kMode> && P::slots <= 3 && Cell::step_is_input ? kLeaf / W : 1;

  const Args& g;
  const Tile& t;
  const Cell& cell;
  const Opened& opened;  // the same one
  char* slots;
  A* own_states;  // recomputed: [j] is the state before step j in the order of time
  bool ascending;
  bool has_channel;
  int rows;    // of the channel's tile
  int place;   // of the leaf in the tile, in the order of the pass
  int first;   // element of a slot that row 0 of the channel is
  int from;    // row of step 0
  int chunk0;  // swizzled chunk of the leaf's first row
  Index channel;
  unsigned valid = 0;      // bit i: step i is one of the sequence's
  unsigned resets = 0;     // bit i: and the state is dropped before it
  int last = -1;           // the last step of the pass, if it is here
  bool is_filled = false;  // fill_leaf
  One vector_in[P::inputs];

  // Backward.
  A entry_gain;            // what the adjoint of the row before is multiplied by
  bool entry_cut = false;  // whether it is dropped
  A next_state;            // of the row after the leaf
  A sum[P::inputs];        // of gradients

  __device__ __forceinline__ ColumnLeaf(const Args& args, const Tile& tile, const Cell& the_cell,
                                        char* staged, int lane)
      : g(args),
        t(tile),
        cell(the_cell),
        opened(reinterpret_cast<const Opened&>(the_cell)),
        slots(staged) {
    ascending = P::backward == g.reverse;
    const int each = kWarp >> g.across_log2;
    const int mine = lane >> (5 - g.across_log2);  // channel of the warp
    rows = each * kLeaf;
    place = lane & (each - 1);
    first = mine * rows;
    from = ascending ? place * kLeaf : (each - place) * kLeaf - 1;
    chunk0 = swizzled((first + (ascending ? from : from - (kLeaf - 1))) / W);
    own_states = reinterpret_cast<A*>(slots + P::slots * P::slot_bytes) + lane * (kLeaf + 1);
    channel = (t.group << g.across_log2) + mine;
    has_channel = kWhole || channel < g.channels;
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      sum[k] = Constant<A>::of(0);
      vector_in[k] = Constant<One>::of(0);
      if (P::has(P::vectors, k) && g.in[k].data != nullptr && has_channel) {
        vector_in[k].lane[0] =
            load_element<T>(g.in[k].data, channel * g.in[k].channel, g.in[k].wide);
      }
    }
    if constexpr (Cell::is_prepared) Cell::prepare(vector_in);
    entry_gain = Constant<A>::of(1);
    next_state = Constant<A>::of(0);
    if constexpr (kWhole) {
      valid = kAllLanes >> (32 - kLeaf);
      if (t.is_last() && is_last_leaf()) last = kLeaf - 1;
      return;
    }
    if (!has_channel) return;
    const int low = t.low, high = t.high;
    valid = steps_between(ascending ? low - from : from - (high - 1),
                          ascending ? high - from : from - low + 1, kLeaf);
    if (g.reset != nullptr) {
      for (int i = 0; i < kLeaf; ++i) {
        if (has_step<ColumnMode::general>(i) && is_reset(g, t, row(i))) resets |= 1u << i;
      }
    }
    if (valid != 0 && t.is_last()) {
      const int i = 31 - __clz(static_cast<int>(valid));
      if (!t.in_sequence(row(i + 1))) last = i;
    }
  }

  __device__ __forceinline__ int row(int i) const { return ascending ? from + i : from - i; }
  __device__ __forceinline__ bool is_first_leaf() const { return place == 0; }
  __device__ __forceinline__ bool is_last_leaf() const { return (place + 1) * kLeaf == rows; }
  __device__ __forceinline__ ColumnMode mode() const {
    if constexpr (!P::template has_plain<T>) return ColumnMode::general;
    if (!kWhole && ((valid != kAllLanes >> (32 - kLeaf) && !(is_filled && valid != 0)) ||
                    resets != 0 || entry_cut || g.has_wide)) {
      return ColumnMode::general;
    }
    return ascending ? ColumnMode::plain_up : ColumnMode::plain_down;
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ bool goes_up() const {
    if constexpr (kMode == ColumnMode::general) return ascending;
    return kMode == ColumnMode::plain_up;
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ bool has_step(int i) const {
    return kIsPlainColumn<kMode> || (valid >> i & 1u) != 0;
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ bool resets_at(int i) const {
    return !kIsPlainColumn<kMode> && (resets >> i & 1u) != 0;
  }

  __device__ __forceinline__ A read_outside(int slot, int r) const {
    const Steps& s = staged_array<P>(g, slot);
    if (!kHasAll && s.data == nullptr) return Constant<A>::of(0);
    return load_element<T>(
        s.data, t.row * s.batch + (t.position + r) * s.time + channel * s.channel, false);
  }
  /// One row.
  __device__ __forceinline__ A read_row(int slot, int r) const {
    return Element<T>::widen(
        *reinterpret_cast<const T*>(slots + slot * P::slot_bytes + element_offset<T>(first + r)));
  }
  /// Steps [i, i + W). A leaf's chunks are a power of two and start at a multiple of it.
  template <ColumnMode kMode>
  __device__ __forceinline__ char* vector_of(int slot, int i) const {
    const int turn = goes_up<kMode>() ? 0 : kLeaf / W - 1;
    const int chunk = chunk0 ^ ((i / W) ^ turn);
    return slots + slot * P::slot_bytes + chunk * kVectorBytes;
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ void read(int slot, int i, R& to) const {
    R in_memory;
    widen<T>(load_vector<T>(vector_of<kMode>(slot, i)), in_memory.lane);
    to = in_order<kMode>(in_memory);
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ void write(int slot, int i, const R& value) const {
    store_vector(vector_of<kMode>(slot, i), narrow<T>(in_order<kMode>(value).lane));
  }
  /// From the order in memory to that of the pass, or back.
  template <ColumnMode kMode>
  __device__ __forceinline__ R in_order(const R& r) const {
    R turned;
#pragma unroll
    for (int v = 0; v < W; ++v) turned.lane[v] = goes_up<kMode>() ? r.lane[v] : r.lane[W - 1 - v];
    return turned;
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ void read_inputs(unsigned set, int i, R (&in)[P::inputs]) const {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(set, k)) continue;
      if (P::has(P::vectors, k)) {
#pragma unroll
        for (int v = 0; v < W; ++v) in[k].lane[v] = vector_in[k].lane[0];
      } else {
        read<kMode>(P::slot(k), i, in[k]);
      }
    }
  }

  /// Backward needs the row before the leaf, for its gain, and the state of the row after it. What
  /// lies beyond the tile comes straight from memory, what lies inside once the tile has arrived.
  __device__ __forceinline__ void take_neighbours(bool outside) {
    if (!has_channel) return;
    const int before = row(-1), after = row(kLeaf);
    const bool has_before = kWhole ? !is_first_leaf() || t.number > 0 : t.in_sequence(before);
    const bool has_after = kWhole ? !is_last_leaf() || !t.is_last() : t.in_sequence(after);
    if (is_first_leaf() == outside && has_before) {
      One in[P::inputs];
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (P::has(P::vectors, k)) {
          in[k] = vector_in[k];
        } else if (P::has(Cell::map_inputs & Cell::backward_inputs, k)) {
          in[k].lane[0] = outside ? read_outside(P::slot(k), before) : read_row(P::slot(k), before);
        }
      }
      entry_gain = cell.gain(in).lane[0];
      if constexpr (!kWhole) entry_cut = is_reset(g, t, before);
    }
    if constexpr (P::reads_states) {
      if (outside && !has_after) {
        next_state = load_state<T>(g.initial, t.sequence, channel);
      } else if (is_last_leaf() == outside) {
        next_state =
            outside ? read_outside(P::states_slot, after) : read_row(P::states_slot, after);
      }
    }
  }

  /// The maps of the steps, in the order of time, which a backward pass goes against. The first
  /// time inputs are opened, where that is done.
  template <ColumnMode kMode, bool kOpen, class F>
  __device__ __forceinline__ void each_step_in_time(F&& take) const {
#pragma unroll 1
    for (int i = kLeaf - W; i >= 0; i -= W) {
      R in[P::inputs];
      if constexpr (kOpens && kOpen) {
        read_inputs<kMode>(Cell::backward_inputs, i, in);
        cell.open(in);
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) {
          if (P::has(Cell::opened_inputs, k)) write<kMode>(P::slot(k), i, in[k]);
        }
      } else {
        read_inputs<kMode>(Cell::map_inputs, i, in);
      }
      const Affine<R> steps = opened.step(in);
#pragma unroll
      for (int v = W - 1; v >= 0; --v) {
        if (has_step<kMode>(i + v)) {
          take(i + v, Affine<A>{steps.a.lane[v], steps.x.lane[v]}, resets_at<kMode>(i + v));
        } else {
          take(i + v, identity<Affine<A>>(), false);
        }
      }
    }
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ void map_in_time(Affine<A>& map) const {
    each_step_in_time<kMode, true>([&](int, const Affine<A>& step, bool reset) {
      map.x = reset ? step.x : fma(step.a, map.x, step.x);
      map.a = product(map.a, step.a);
    });
  }
  template <ColumnMode kMode>
  __device__ __forceinline__ void recompute_states(A run) const {
    own_states[0] = run;
    each_step_in_time<kMode, kLeaf == kLeafSteps>([&](int i, const Affine<A>& step, bool reset) {
      run = reset ? step.x : fma(step.a, run, step.x);
      own_states[kLeaf - i] = run;
    });
  }
  /// All of them, from the checkpoint that the leaf starts at or behind.
  __device__ __forceinline__ void recompute(ColumnMode mode, int lane) {
    const Index step0 = t.step_of(row(kLeaf - 1), rows, g.reverse);
    const bool has_steps = valid != 0;
    const Index at = has_steps ? checkpoint_row(g, t, step0) * g.channels + channel : 0;
    A run = has_steps ? reinterpret_cast<const A*>(g.checkpoints)[at] : Constant<A>::of(0);
    if constexpr (kLeafSteps > kLeaf) {
      // Several leaves share a checkpoint: those that are earlier in time are later lanes.
      Affine<A> map = identity<Affine<A>>();
      in_mode<kWhole>(mode, [&](auto m) { map_in_time<decltype(m)::value>(map); });
      const int behind = static_cast<int>(step0 % kLeafSteps) / kLeaf;
      for (int b = kLeafSteps / kLeaf - 1; b > 0; --b) {
        const int from_lane = (lane + b) % kWarp;
        const Segment<A> earlier{
            shuffle(map, from_lane),
            __shfl_sync(kAllLanes, static_cast<int>(resets != 0), from_lane) != 0};
        if (b <= behind) run = apply(earlier, run);
      }
    }
    in_mode<kWhole>(mode, [&](auto m) { recompute_states<decltype(m)::value>(run); });
  }
  /// The states after steps [i, i + W).
  template <ColumnMode kMode>
  __device__ __forceinline__ void states_after(int i, R& to) const {
    if constexpr (P::recomputes) {
#pragma unroll
      for (int v = 0; v < W; ++v) to.lane[v] = own_states[kLeaf - i - v];
    } else if constexpr (P::reads_states) {
      read<kMode>(P::states_slot, i, to);
    }
  }

  /// The leaf's map in the order of the pass, and whether it forgets what comes before it.
  template <ColumnMode kMode>
  __device__ __forceinline__ void map_in_pass(Affine<A>& map, Loss& loss, bool& cut) {
    A gain = entry_gain;
    GainProduct<T> gains;
    bool reset = !kIsPlainColumn<kMode> && entry_cut;
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; i += W) {
      if (!kIsPlainColumn<kMode> && (valid >> i) == 0) break;
      R in[P::inputs];
      Affine<R> steps;  // of backward: each step's own gain, which is the next step's
      if constexpr (P::backward) {
        R dy, after;
        read_inputs<kMode>(Cell::backward_inputs, i, in);
        read<kMode>(P::dy_slot, i, dy);
        states_after<kMode>(i, after);
        steps = {opened.gain(in), opened.output_adjoint(in, after, dy)};
        if constexpr (kEarly<kMode> != 0) {
          R din[P::inputs];
          opened.pullback(in, after, after, dy, after, din);
          write<kMode>(P::dy_slot, i, steps.x);
          write_gradients<kMode, kEarly<kMode>>(i, din);
        }
      } else {
        read_inputs<kMode>(Cell::map_inputs, i, in);
        steps = cell.step(in);
        if constexpr (kKeeps) {
          write<kMode>(P::kept_a, i, steps.a);
          write<kMode>(P::kept_x, i, steps.x);
        }
      }
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (!has_step<kMode>(i + v)) continue;
        if (!P::backward) {
          gain = steps.a.lane[v];
          reset = resets_at<kMode>(i + v);
        }
        cut = cut || reset;
        map.x = reset ? steps.x.lane[v] : fma(gain, map.x, steps.x.lane[v]);
        gains.times(gain);
        if (P::backward) {
          gain = steps.a.lane[v];
          reset = resets_at<kMode>(i + v);
        }
      }
    }
    map.a = gains.value();
    if constexpr (P::template keeps_loss<T>) loss = gains.loss();
  }

  /// Gradients of the inputs in kSet at steps [i, i + W).
  template <ColumnMode kMode, unsigned kSet>
  __device__ __forceinline__ void write_gradients(int i, const R (&din)[P::inputs]) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(kSet, k)) continue;
      if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          if (has_step<kMode>(i + v)) sum[k] = sum[k] + din[k].lane[v];
        }
      } else if (!P::has(P::vectors, k) && (kHasAll || g.din[k].data != nullptr)) {
        if (kIsPlainColumn<kMode> || !g.din[k].wide) {
          write<kMode>(P::din_slot(k), i, din[k]);
        } else {
          const Steps& s = g.din[k];
#pragma unroll
          for (int v = 0; v < W; ++v) {
            if (has_step<kMode>(i + v)) {
              store_element<T>(
                  s.data,
                  t.row * s.batch + (t.position + row(i + v)) * s.time + channel * s.channel, true,
                  din[k].lane[v]);
            }
          }
        }
      }
    }
  }

  /// Runs the leaf from `state` on; what the pass writes goes to the slots. `leave` is where the
  /// pass ends.
  template <ColumnMode kMode>
  __device__ __forceinline__ void finish(A& state, A& leave) {
    if constexpr (P::backward) {
      finish_backward<kMode>(state, leave);
    } else {
      finish_forward<kMode>(state, leave);
    }
  }

 private:
  template <ColumnMode kMode>
  __device__ __forceinline__ void finish_forward(A& state, A& leave) {
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; i += W) {
      if (!kIsPlainColumn<kMode> && (valid >> i) == 0) break;
      R in[P::inputs], states = Constant<R>::of(0);
      Affine<R> steps;
      if constexpr (kKeeps) {
        read<kMode>(P::kept_a, i, steps.a);
        read<kMode>(P::kept_x, i, steps.x);
        read_inputs<kMode>(P::all & Cell::output_inputs, i, in);
      } else {
        read_inputs<kMode>(P::all, i, in);
        steps = cell.step(in);
      }
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (!has_step<kMode>(i + v)) continue;
        const A x = steps.x.lane[v];
        state = resets_at<kMode>(i + v) ? x : fma(steps.a.lane[v], state, x);
        states.lane[v] = state;
        if (!kIsPlainColumn<kMode> && i + v == last) leave = state;
      }
      write<kMode>(0, i, cell.output(in, states));
    }
    if (kIsPlainColumn<kMode>) leave = state;
  }

  template <ColumnMode kMode>
  __device__ __forceinline__ void finish_backward(A& state, A& leave) {
    const A zero = Constant<A>::of(0);
    A gain = entry_gain;
    bool reset = !kIsPlainColumn<kMode> && entry_cut;
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; i += W) {
      if (!kIsPlainColumn<kMode> && (valid >> i) == 0) break;
      constexpr bool kHasEarly = kEarly<kMode> != 0;
      R in[P::inputs], dy, after, before, adjoint = Constant<R>::of(0), din[P::inputs];
      read_inputs<kMode>(Cell::backward_inputs & (kHasEarly ? Cell::map_inputs : ~0u), i, in);
      read<kMode>(P::dy_slot, i, dy);
      states_after<kMode>(i, after);
      // The state before a step is the one after the next step of the pass.
      if constexpr (P::recomputes) {
#pragma unroll
        for (int v = 0; v < W; ++v) before.lane[v] = own_states[kLeaf - 1 - i - v];
      } else {
#pragma unroll
        for (int v = 0; v + 1 < W; ++v) before.lane[v] = after.lane[v + 1];
        before.lane[W - 1] = i + W < kLeaf ? read_row(P::states_slot, row(i + W)) : next_state;
      }
      // With early gradients, what dy adds to the adjoint is in its place.
      const Affine<R> steps{opened.gain(in), kHasEarly ? dy : opened.output_adjoint(in, after, dy)};
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (!has_step<kMode>(i + v)) continue;
        const A x = steps.x.lane[v];
        state = reset ? x : fma(gain, state, x);
        adjoint.lane[v] = state;
        gain = steps.a.lane[v];
        reset = resets_at<kMode>(i + v);
        if (!kIsPlainColumn<kMode> && i + v == last) {
          before.lane[v] = load_state<T>(g.initial, t.sequence, channel);
          leave = reset ? zero : product(gain, state);
        }
        if (reset) before.lane[v] = zero;
      }
      opened.pullback(in, before, after, dy, adjoint, din);
      write_gradients<kMode, P::all & ~kEarly<kMode>>(i, din);
    }
    if (kIsPlainColumn<kMode>) leave = product(gain, state);
  }
};

/// The products of what lies in the lanes of each level's children, in the last of them. Without
/// kMayCut no map has a reset.
template <class A, bool kMayCut = true>
__device__ __forceinline__ Segment<A> product_of_children(const Segment<A>& node, bool wanted,
                                                          int lane) {
  Affine<A> map[1] = {wanted ? node.map : identity<Affine<A>>()};
  bool cut = kMayCut && wanted && node.cut;
  NoLoss loss[1];
  scan_lanes(map, loss, cut, lane % kRadix, 1, kRadix, kMayCut);
  return {map[0], cut};
}

template <bool kMayCut, class A>
__device__ __forceinline__ Segment<A> shuffle(const Segment<A>& s, int lane) {
  return {shuffle(s.map, lane),
          kMayCut && __shfl_sync(kAllLanes, static_cast<int>(s.cut), lane) != 0};
}

/// Publishes a node of the tree, which is `own` or, where siblings end with it, larger, and hands
/// `take` the product of those that precede it, from the lowest level on. Levels, of which
/// `told` hears, count from `base`.
template <class A, bool kMayCut, class Told, class Take>
__device__ __forceinline__ void look_back(const Args& g, Index first_item, Index number,
                                          Index group, Index stride, Index words, bool is_idle,
                                          Segment<A> own, int lane, int base, Told&& told,
                                          Take&& take) {
  const Word* const nodes = g.nodes + (first_item * g.groups + group) * words;
  Word* const own_node = g.nodes + ((first_item + number) * g.groups + group) * words;
  int closed = 0;  // levels at which this node is the last child
  while (!is_idle && digit_of(number, closed) == kRadix - 1) ++closed;
  if (closed == 0 && g.levels > 0 && lane == 0) Node<A>::publish(own_node, own);
  // Four levels at a time; the highest four have the earliest nodes, but what is published needs
  // the lowest ones first. Maps are applied to the state last.
  constexpr int kAtOnce = kWarp / kRadix;
  for (int level0 = 0; level0 < g.levels && !is_idle; level0 += kAtOnce) {
    if (number >> (kRadixLog2 * level0) == 0) break;
    // Lane groups in the order of time: the highest level first.
    const int level = level0 + kAtOnce - 1 - lane / kRadix;
    const int child = lane % kRadix;
    const bool wanted = child < digit_of(number, level);
    const Word* const at = nodes + (wanted ? node_tile(number, level, child) * stride : 0);
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
      return product_of_children<A, kMayCut>(node.segment(), wanted, lane);
    };
    const auto level_of = [&](const Segment<A>& products, int l) {
      return shuffle<kMayCut>(products, (kAtOnce - 1 - (l - level0)) * kRadix + kRadix - 1);
    };
    if (closed > level0) {
      const Segment<A> products = await(level < closed);
      for (int l = level0; l < closed && l < level0 + kAtOnce; ++l) {
        const Segment<A> was = own;
        own = merge(level_of(products, l), own);
        told(base + l, was, own);
      }
      if (closed <= level0 + kAtOnce && lane == 0) Node<A>::publish(own_node, own);
    }
    const Segment<A> products = await(true);
    for (int l = level0; l < level0 + kAtOnce && l < g.levels; ++l) take(l, level_of(products, l));
  }
}

/// What a block keeps whose tiles are the children of one node, or of several.
template <class A>
struct SharedNode {
  Segment<A> tile[kRadix];
  Segment<A> level[kMaxLevels];  // products of what precedes the node

  /// The product of those of the 2^fan_log2 tiles of a node that precede one.
  template <bool kMayCut = true>
  __device__ __forceinline__ Segment<A> product_before(int which, int fan_log2, int lane) const {
    const int first = which >> fan_log2 << fan_log2;
    const Segment<A> products =
        product_of_children<A, kMayCut>(tile[(first + lane) % kRadix], lane < which - first, lane);
    return shuffle<kMayCut>(products, kRadix - 1);
  }
};

/// kRagged: for sequences that start anywhere in memory, or of few tiles of which the last isn't
/// whole.
template <class Cell, class T, bool kBackward, bool kRagged = false>
__global__ void __launch_bounds__((ColumnPass<Cell, kBackward, T>::warps * kWarp),
                                  (ColumnPass<Cell, kBackward, T>::blocks))
    run_columns(const __grid_constant__ Args g, const __grid_constant__ Cell cell) {
  using P = ColumnPass<Cell, kBackward, T>;
  using A = Acc<T>;
  constexpr int kLeaf = P::leaf, kAnyRows = kRagged ? P::rows : 0;
  static_assert(!kRagged || (Cell::step_is_input && std::is_floating_point_v<A>));
  const A zero = Constant<A>::of(0);

  extern __shared__ __align__(128) char slots_of_block[];
  __shared__ Tile tiles[P::warps];

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  char* const slots = slots_of_block + warp * P::warp_bytes;
  // Lanes of a channel are neighbours; the leaves of `each` lanes are its tile.
  const int held = 1 << g.across_log2;  // channels of the warp
  const int each = kWarp >> g.across_log2;
  const int rows = each * kLeaf;

  // A block's warps take their tickets together: the counter is one word for the whole device.
  __shared__ unsigned first_ticket;
  const unsigned warps = blockDim.x / kWarp;
  if (g.levels > 0) {
    await_clearing();
    if (threadIdx.x == 0) first_ticket = atomicAdd(g.ticket, warps);
    __syncthreads();
  }
  if (lane == 0) {
    const unsigned ticket = (g.levels > 0 ? first_ticket : blockIdx.x * warps) + warp;
    if (ticket < g.tile_items * g.groups) {
      tiles[warp] =
          tile_of<kBackward>(g, ticket >> g.fan_log2, rows, warp & ((1 << g.fan_log2) - 1));
    } else {
      tiles[warp].group = -1;
    }
  }
  __syncwarp();
  const Tile& t = tiles[warp];
  if (t.group < 0) return;

  const Index channel0 = t.group * held;
  const int channels = static_cast<int>(min(static_cast<Index>(held), g.channels - channel0));
  const auto base_of = [&](const Steps& s) {
    return s.data + (t.row * s.batch + t.position * s.time + channel0 * s.channel) *
                        static_cast<Index>(sizeof(T));
  };

  // --- stage -----------------------------------------------------------------------------------
  const int low = t.low, high = t.high;
#pragma unroll(P::slots > 3 ? 1 : P::slots)
  for (int s = 0; s < P::slots; ++s) {
    const Steps& array = staged_array<P>(g, s);
    char* const slot = slots + s * P::slot_bytes;
    if (array.data == nullptr) {
      for (int i = lane; i < P::slot_bytes / kVectorBytes; i += kWarp) {
        reinterpret_cast<uint4*>(slot)[i] = make_uint4(0, 0, 0, 0);
      }
    } else if (held == 1) {
      stage_column<T, kAnyRows>(array, base_of(array), low, high, slot, lane);
    } else {
      const char* const base = base_of(array);
      each_of_columns<T>(
          array, base, low, high, rows, channels, lane,
          [&](Index from, int to) { copy_async<kVectorBytes>(slot + to, base + from); },
          [&](Index from, int to) {
            copy_async<static_cast<int>(sizeof(T))>(slot + to, base + from);
          });
    }
  }

  ColumnLeaf<P, T> leaf(g, t, cell, slots, lane);
  const int place = leaf.place;
  A state = leaf.has_channel ? load_state<T>(g.enter, t.sequence, leaf.channel) : zero;
  if constexpr (kRagged) {
    leaf.is_filled = held == 1 && (!kBackward || g.sum_slot[0] < 0);
    if (leaf.is_filled) fill_leaf<P, T>(g, low, high, slots, lane);
  }
  if constexpr (kBackward) leaf.take_neighbours(true);
  await_copies();
  __syncwarp();
  if constexpr (kBackward) leaf.take_neighbours(false);
  if constexpr (P::template opens<T>) __syncwarp();
  const ColumnMode mode = leaf.mode();

  if constexpr (P::recomputes) leaf.recompute(mode, lane);

  // --- leaves ----------------------------------------------------------------------------------
  Affine<A> map[1] = {identity<Affine<A>>()};
  typename P::template Loss<T> loss[1];
  bool cut = false;
  in_mode<false>(
      mode, [&](auto m) { leaf.template map_in_pass<decltype(m)::value>(map[0], loss[0], cut); });

  // --- merge -----------------------------------------------------------------------------------
  Tracer<Cell, A, 1> tracer(cell, g, t, Division{kLeaf, each, each, 1}, place, leaf.channel);
  tracer.leaf(map, cut);
  scan_lanes(map, loss, cut, place, 1, each, g.reset != nullptr, tracer);
  Segment<A> own{shuffle(map[0], kWarp - 1),
                 __shfl_sync(kAllLanes, static_cast<int>(cut), kWarp - 1) != 0};
  own.map.a = shuffle(loss[0], kWarp - 1).corrected(own.map.a);
  Segment<A> before{shuffle_up(map[0], 1),
                    __shfl_up_sync(kAllLanes, static_cast<int>(cut), 1) != 0};
  if (place == 0) before = {identity<Affine<A>>(), false};

  const bool is_idle = low >= high;
  const auto hear = [&](int level, const Segment<A>& was, const Segment<A>& merged) {
    if (lane == 0) tracer.tiles(level, leaf.channel, was.map.x, merged);
  };
  constexpr Index kWords = column_node_words(Node<A>::words, sizeof(T));
  const Index stride = g.groups * kWords;
  if (g.fan_log2 > 0) {
    // The block's tiles are the children of a node: its warps exchange them in shared memory, and
    // one looks back for all.
    __shared__ SharedNode<A> node;
    if (lane == 0) node.tile[warp] = own;
    __syncthreads();
    const Segment<A> siblings = node.product_before(warp, g.fan_log2, lane);
    if (g.fan_log2 == kRadixLog2 && warp == kRadix - 1) {
      const Segment<A> was = own;
      own = merge(siblings, own);
      if (!is_idle) hear(0, was, own);
      look_back<A, true>(g, t.first_item >> kRadixLog2, t.number >> kRadixLog2, t.group, stride,
                         kWords, tiles[0].low >= tiles[0].high, own, lane, 1, hear,
                         [&](int level, const Segment<A>& product) {
                           if (lane == 0) node.level[level] = product;
                         });
    }
    if (g.levels > 0) __syncthreads();
    if (t.number > 0 && !is_idle) {
      Segment<A> prefix = siblings;
      const Index number = t.number >> kRadixLog2;
      for (int l = 0; number >> (kRadixLog2 * l) != 0; ++l) prefix = merge(node.level[l], prefix);
      state = apply(prefix, state);
    }
  } else if (g.levels > 0) {  // then a warp holds one channel
    Segment<A> prefix{identity<Affine<A>>(), false};
    look_back<A, true>(g, t.first_item, t.number, t.group, stride, kWords, is_idle, own, lane, 0,
                       hear,
                       [&](int, const Segment<A>& product) { prefix = merge(product, prefix); });
    if (t.number > 0) state = apply(prefix, state);
  }
  state = apply(before, state);

  // --- finish ----------------------------------------------------------------------------------
  __syncwarp();  // from here on, outputs take the place of what neighbouring lanes have read
  if constexpr (!kBackward && !Cell::state_is_output) {
    const Index step0 = t.step_of(leaf.from, rows, g.reverse);
    if (g.checkpoints != nullptr && (leaf.valid & 1u) != 0 && step0 % kLeafSteps == 0) {
      reinterpret_cast<A*>(g.checkpoints)[checkpoint_row(g, t, step0) * g.channels + leaf.channel] =
          state;
    }
  }
  A leave = state;  // a sequence without steps ends as it began
  in_mode<false>(mode, [&](auto m) { leaf.template finish<decltype(m)::value>(state, leave); });
  const A ends[1] = {state};
  tracer.finish(ends);
  const bool is_empty = t.length == 0 && t.number == 0 && place == 0 && leaf.has_channel;
  if (is_empty || leaf.last >= 0) store_state<T>(g.leave, t.sequence, leaf.channel, leave);
  __syncwarp();

  const auto write_out = [&](const Steps& s, int slot_number) {
    if (s.data == nullptr) return;
    const char* const slot = slots + slot_number * P::slot_bytes;
    if (!s.wide && held == 1) {
      write_column<T, kAnyRows>(s, base_of(s), low, high, slot, lane);
    } else if (!s.wide) {
      char* const base = base_of(s);
      each_of_columns<T>(
          s, base, low, high, rows, channels, lane,
          [&](Index to, int from) { store_streaming(base + to, load_vector<T>(slot + from)); },
          [&](Index to, int from) {
            *reinterpret_cast<T*>(base + to) = *reinterpret_cast<const T*>(slot + from);
          });
    }
    if (g.lengths == nullptr) return;
    const Padding p = padding_of(g, t);
    for (int c = 0; c < channels; ++c) {
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
        for (int by = 1; by < each; by *= 2)
          leaf.sum[k] = leaf.sum[k] + shuffle_xor(leaf.sum[k], by);
        if (place == 0) {
          const Index item = (g.sum_slot[k] * g.tile_items + t.item) * g.groups + t.group;
          reinterpret_cast<A*>(g.sums)[item * held + (lane >> (5 - g.across_log2))] = leaf.sum[k];
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
