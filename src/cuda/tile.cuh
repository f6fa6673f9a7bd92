// SPDX-License-Identifier: Apache-2.0
// From a ticket to the steps that a tile covers.
//
// Within a tile, rows are numbered as they lie in memory. The pass goes through them upwards or
// downwards: forward through a sequence that runs forward and backward through a reversed one go
// up. "Before" and "after" are meant in the order of the pass.
#pragma once

#include "cuda/device.cuh"

namespace scanrnn::cuda {

/// Steps [begin, end) of row `row` are the sequence.
struct Span {
  Index row, begin, end;
};

template <class AnyArgs>
__device__ __forceinline__ Index read_index(const AnyArgs& g, const void* data, Index i) {
  const Index at = i * g.index_stride;
  const Index value =
      g.index_is_64 ? static_cast<const long long*>(data)[at] : static_cast<const int*>(data)[at];
  // Values are the caller's and unchecked here: no access may leave the arrays for their sake.
  return value < 0 ? 0 : (value > g.time ? g.time : value);
}

/// Of Args or SolveArgs.
template <class AnyArgs>
__device__ __forceinline__ Span span_of(const AnyArgs& g, Index n) {
  if (g.cu_seqlens != nullptr) {
    const Index begin = read_index(g, g.cu_seqlens, n);
    const Index end = read_index(g, g.cu_seqlens, n + 1);
    return {0, begin, end > begin ? end : begin};
  }
  if (g.lengths == nullptr) return {n, 0, g.time};
  const Index length = read_index(g, g.lengths, n);
  return g.left_padded ? Span{n, g.time - length, g.time} : Span{n, 0, length};
}

struct Quotient {
  unsigned quotient, rest;
};
__device__ __forceinline__ Quotient divide(unsigned a, const Divisor& by) {
  if (by.value == 0) return {0, a};
  const unsigned high = __umulhi(a, by.factor);
  const unsigned quotient = (high + a) >> by.shift;  // a is below 2^31: no carry is lost
  return {quotient, a - quotient * by.value};
}

struct Tile {
  Index sequence, row;
  Index begin, length;  // of the sequence, in memory
  Index group;
  Index number;      // in the order of the pass
  Index tiles;       // of the sequence; other numbers have no steps
  Index first_item;  // the item of the sequence's tile 0
  Index item;        // the tile's own
  Index step;        // the sequence's step that the tile's steps start from
  Index position;    // the place in memory, along time, of the tile's row 0
  int low, high;     // rows [low, high) belong to the sequence

  __device__ __forceinline__ bool is_last() const { return number == tiles - 1; }
  /// The step of the sequence in a row.
  __device__ __forceinline__ Index step_of(int row_, int rows, bool reverse) const {
    return step + (reverse ? rows - 1 - row_ : row_);
  }
  /// Whether row r, of this tile or beyond its ends, is a step of the sequence.
  __device__ __forceinline__ bool in_sequence(int r) const {
    return position + r >= begin && position + r < begin + length;
  }
};

/// `ticket` in [0, tile_items * groups), `rows` a power of two: earlier tiles of a sequence have
/// earlier tickets. Where tiles share one, `shared` is the number among them.
template <bool kBackward>
__device__ __forceinline__ Tile tile_of(const Args& g, unsigned ticket, int rows, int shared = 0) {
  const int rows_log2 = 31 - __clz(rows);
  Tile t;
  if (g.cu_seqlens != nullptr) {
    // Sequence n starts at item begin / rows + n, which leaves room for all before it.
    const Quotient item = divide(ticket, g.by_groups);
    t.item = item.quotient;
    t.group = item.rest;
    Index low = 0, high = g.sequences;  // the last sequence that starts at the item or before
    while (high - low > 1) {
      const Index middle = (low + high) / 2;
      if ((read_index(g, g.cu_seqlens, middle) >> rows_log2) + middle <= t.item) {
        low = middle;
      } else {
        high = middle;
      }
    }
    t.sequence = low;
    t.first_item = (read_index(g, g.cu_seqlens, low) >> rows_log2) + low;
    t.number = t.item - t.first_item;
  } else {
    // The first tiles of all sequences, then the second ones.
    const Quotient round = divide(ticket, g.by_round);
    const Quotient place = divide(round.rest, g.by_groups);
    t.number = round.quotient;
    if (g.fan_log2 > 0) t.number = (t.number << g.fan_log2) + shared;
    t.sequence = place.quotient;
    t.group = place.rest;
    t.first_item = t.sequence * g.tiles;
    t.item = t.first_item + t.number;
  }
  const Span span = span_of(g, t.sequence);
  t.row = span.row;
  t.begin = span.begin;
  t.length = span.end - span.begin;
  t.tiles = t.length > rows ? (t.length + rows - 1) >> rows_log2 : 1;
  // Tiles start at multiples of their size in both passes, so the first one of backward may be
  // short.
  t.step = (kBackward ? t.tiles - 1 - t.number : t.number) * rows;
  if (t.number < 0 || t.number >= t.tiles) {
    if (t.number < 0) t.number = t.tiles;  // only from offsets that decrease
    t.position = span.begin;
    t.low = t.high = 0;
    return t;
  }
  if (g.reverse) {
    t.position = span.end - t.step - rows;
    t.low = static_cast<int>(t.step + rows > t.length ? t.step + rows - t.length : 0);
    t.high = rows;
  } else {
    t.position = span.begin + t.step;
    t.low = 0;
    t.high = static_cast<int>(t.length - t.step < rows ? t.length - t.step : rows);
  }
  return t;
}

/// The same where all tiles are whole: rows divide the steps of every sequence, and there is one in
/// each row of the batch.
template <bool kBackward>
__device__ __forceinline__ Tile whole_tile_of(const Args& g, unsigned ticket, int rows,
                                              int shared) {
  const Quotient round = divide(ticket, g.by_round);
  const Quotient place = divide(round.rest, g.by_groups);
  Tile t;
  t.number = (static_cast<Index>(round.quotient) << g.fan_log2) + shared;
  t.sequence = t.row = place.quotient;
  t.group = place.rest;
  t.begin = 0;
  t.length = g.time;
  t.tiles = g.tiles;
  t.first_item = t.sequence * g.tiles;
  t.item = t.first_item + t.number;
  t.step = (kBackward ? g.tiles - 1 - t.number : t.number) * rows;
  t.position = g.reverse ? g.time - t.step - rows : t.step;
  t.low = 0;
  t.high = rows;
  return t;
}

/// Whether the state is dropped before the step in row r.
__device__ __forceinline__ bool is_reset(const Args& g, const Tile& t, int r) {
  return g.reset != nullptr &&
         g.reset[t.row * g.reset_batch + (t.position + r) * g.reset_time] != 0;
}

/// A mask of the steps of a leaf, at most 32 of them, that are in [begin, end).
__device__ __forceinline__ unsigned steps_between(int begin, int end, int leaf) {
  if (begin < 0) begin = 0;
  if (end > leaf) end = leaf;
  unsigned mask = begin < end ? kAllLanes >> (32 - (end - begin)) << begin : 0;
  asm("" : "+r"(mask));  // else the compiler keeps its bits in a register each
  return mask;
}

/// A tile's share of a row's padding: steps [begin, end) in memory that are to be zero.
struct Padding {
  Index begin, end;
};
__device__ __forceinline__ Padding padding_of(const Args& g, const Tile& t) {
  if (g.lengths == nullptr) return {0, 0};
  const Index first = t.begin > 0 ? 0 : t.length;
  const Index count = g.time - t.length;
  const Index share = (count + g.tiles - 1) / g.tiles;
  const Index begin = t.number * share;
  const Index end = begin + share;
  return {first + (begin < count ? begin : count), first + (end < count ? end : count)};
}

}  // namespace scanrnn::cuda
