// SPDX-License-Identifier: Apache-2.0
// DEBUG_MERGE: what a pass tells of its merges, and on which level (trace.hpp). Kernels tell a
// Tracer; that of any cell but a Traced one is empty, and leaves no instruction in them.
#pragma once

#include "cuda/tile.cuh"

namespace scanrnn::cuda {

/// One event, of steps [first, end) of a sequence: its map h -> gain h + state.
struct TraceRecord {
  Index sequence, row, begin, length;  ///< steps [begin, begin + length) of row `row` in memory
  Index channel, first, end;
  int level;
  bool has_before;
  double before[2], gain[2], state[2];  ///< real and imaginary parts
};

/// Where records go. All are counted, those beyond the capacity are not kept.
struct TraceBuffer {
  TraceRecord* records = nullptr;
  unsigned long long capacity = 0;
  unsigned long long* count = nullptr;
};

template <class Cell>
struct Traced : Cell {
  TraceBuffer trace;
};

template <class Cell>
inline constexpr bool kIsTraced = false;
template <class Cell>
inline constexpr bool kIsTraced<Traced<Cell>> = true;

/// How a tile is divided: into leaves, and these into the bands that a warp merges by shuffles.
/// `bands` of these are then merged in pairs.
struct Division {
  Index leaf_steps;
  int tile_leaves, band_leaves, bands;
};

/// Of one thread, whose leaf is number `place` of its tile and has W channels from `channel` on.
template <class Cell, class A, int W, bool kTraced = kIsTraced<Cell>>
struct Tracer {
  // Numbers by value: what a reference is bound to would be compiled in another way.
  __device__ __forceinline__ Tracer(const Cell&, const Args&, const Tile&, Division, int, Index) {}
  __device__ __forceinline__ void leaf(const Affine<A> (&)[W], bool) const {}
  __device__ __forceinline__ void lanes(int, const Affine<A> (&)[W], const Affine<A> (&)[W],
                                        bool) const {}
  template <class OfLeaf>
  __device__ __forceinline__ void band(const OfLeaf&) const {}
  __device__ __forceinline__ void warps(int, int, Index, const A&, const Segment<A>&) const {}
  __device__ __forceinline__ void tiles(int, Index, const A&, const Segment<A>&) const {}
  __device__ __forceinline__ void finish(const A (&)[W]) const {}
};

template <class Cell, class A, int W>
struct Tracer<Cell, A, W, true> {
  __device__ Tracer(const Cell& cell, const Args& args, const Tile& tile, Division divided,
                    int place_, Index channel_)
      : to(cell.trace), g(args), t(tile), by(divided), place(place_), channel(channel_) {
    lane_levels = log2_of(by.band_leaves);
    warp_levels = log2_of(by.bands);
    // Tiles that share a block have a level of their own below those of the nodes.
    tile_levels = g.levels + (g.fan_log2 > 0 ? 1 : 0);
  }

  /// The map of the thread's leaf.
  __device__ void leaf(const Affine<A> (&map)[W], bool cut) {
    for (int v = 0; v < W; ++v) {
      own[v] = map[v].x;
      add(-1, place, place, place + 1, channel + v, nullptr, {map[v], cut});
    }
  }
  /// The thread's map was merged with that of `count` leaves before it, or of all there are.
  __device__ void lanes(int count, const Affine<A> (&before)[W], const Affine<A> (&after)[W],
                        bool cut) const {
    const int in_band = place % by.band_leaves;
    if (in_band < count || t.step + place * by.leaf_steps >= t.length) return;
    for (int v = 0; v < W; ++v) {
      add(log2_of(count), place - min(in_band, 2 * count - 1), place + 1 - count, place + 1,
          channel + v, &before[v].x, {after[v], cut});
    }
  }
  /// The same merges where maps lie in shared memory: of_leaf(place, v).
  template <class OfLeaf>
  __device__ void band(const OfLeaf& of_leaf) const {
    const int in_band = place % by.band_leaves;  // of four
    if (in_band == 0) return;
    Affine<A> single[W], pair[W], all[W];
    bool pair_cut = false, all_cut = false;
    for (int v = 0; v < W; ++v) {
      const Segment<A> one = of_leaf(place, v), two = merge(of_leaf(place - 1, v), one);
      Segment<A> earlier = of_leaf(place - min(in_band, 2), v);
      if (in_band == 3) earlier = merge(of_leaf(place - 3, v), earlier);
      const Segment<A> four = merge(earlier, two);
      single[v] = one.map, pair[v] = two.map, all[v] = four.map;
      pair_cut = two.cut, all_cut = four.cut;
    }
    lanes(1, single, pair, pair_cut);
    lanes(2, pair, all, all_cut);
  }
  /// The maps of `count` bands, from number `first` on, were merged with those of as many after.
  __device__ void warps(int count, int first, Index channel_, const A& before,
                        const Segment<A>& after) const {
    const int leaves = by.band_leaves;
    add(lane_levels + log2_of(count), first * leaves, (first + count) * leaves,
        (first + 2 * count) * leaves, channel_, &before, after);
  }
  /// The node of 8^level tiles that ends with this one was merged with the seven before it.
  __device__ void tiles(int level, Index channel_, const A& before, const Segment<A>& after) const {
    const Index count = Index{1} << (kRadixLog2 * level);
    add(lane_levels + warp_levels + level, (1 - kRadix * count) * by.tile_leaves,
        (1 - count) * by.tile_leaves, by.tile_leaves, channel_, &before, after);
  }
  /// The state at the leaf's end.
  __device__ void finish(const A (&state)[W]) const {
    for (int v = 0; v < W; ++v) {
      const Segment<A> all{{Constant<A>::of(0), state[v]}, true};
      add(lane_levels + warp_levels + tile_levels, place, place, place + 1, channel + v, &own[v],
          all);
    }
  }

 private:
  static __device__ int log2_of(int power) { return 31 - __clz(power); }
  template <class R>
  static __device__ void split(const R& v, double (&to)[2]) {
    to[0] = v;
    to[1] = 0;
  }
  template <class R>
  static __device__ void split(const Complex<R>& v, double (&to)[2]) {
    to[0] = v.re;
    to[1] = v.im;
  }
  /// Leaves [first, end) of the tile; those from `middle` on were the later segment.
  __device__ void add(int level, Index first, Index middle, Index end, Index channel_,
                      const A* before, const Segment<A>& after) const {
    const auto step_of = [&](Index leaf) { return t.step + leaf * by.leaf_steps; };
    if (channel_ >= g.channels || step_of(middle) >= t.length) return;
    const unsigned long long at = atomicAdd(to.count, 1ull);
    if (at >= to.capacity) return;
    TraceRecord& r = to.records[at];
    r.sequence = t.sequence;
    r.row = t.row;
    r.begin = t.begin;
    r.length = t.length;
    r.channel = channel_;
    r.first = step_of(first);
    r.end = min(step_of(end), t.length);
    r.level = level;
    r.has_before = before != nullptr;
    if (before != nullptr) split(*before, r.before);
    split(after.cut ? Constant<A>::of(0) : after.map.a, r.gain);
    split(after.map.x, r.state);
  }

  const TraceBuffer& to;
  const Args& g;
  const Tile& t;
  Division by;
  int place;
  Index channel;
  int lane_levels, warp_levels, tile_levels;
  A own[W];
};

}  // namespace scanrnn::cuda
