// SPDX-License-Identifier: Apache-2.0
// What a kernel is told about a call: plain data, the same on host and device.
#pragma once

#include <cstdint>

#include "scanrnn/core/cell.hpp"

namespace scanrnn::cuda {

using Index = std::int64_t;

/// A (B,T,D) array. Strides count elements; without data every element reads as zero.
struct Steps {
  char* data = nullptr;
  Index batch = 0, time = 0, channel = 0;
  bool wide = false;    ///< of the accumulation type, whatever the call's dtype
  bool vector = false;  ///< a vector at a time along the kernel's contiguous axis
};

/// An (N,D) array of states.
struct States {
  char* data = nullptr;
  Index sequence = 0, channel = 0;
  bool wide = false;
};

/// Division of numbers below 2^31 by one that is known beforehand: the high word of a product.
struct Divisor {
  unsigned value = 1, factor = 0, shift = 0;

  static Divisor of(Index number) {
    Divisor d;
    if (number < 1) return d;                        // nothing will be divided
    if (number >= Index{1} << 31) return {0, 0, 0};  // the quotient is always 0
    d.value = static_cast<unsigned>(number);
    while ((Index{1} << d.shift) < number) ++d.shift;
    // Rounded up: 2^(32 + shift) / number less 2^32 (Granlund and Montgomery 1994, figure 4.1).
    d.factor =
        static_cast<unsigned>(((((std::uint64_t{1} << d.shift) - d.value) << 32) / d.value) + 1);
    return d;
  }
};

struct Args {
  Steps in[kMaxInputs];
  Steps din[kMaxInputs];        ///< backward
  Steps out;                    ///< forward
  Steps states;                 ///< backward: forward's output, where that is the state
  Steps dy;                     ///< backward
  States initial;               ///< the state before the first step
  States enter;                 ///< what the pass starts from: the initial state, or dfinal
  States leave;                 ///< where the pass ends: the final state, or dinitial
  char* checkpoints = nullptr;  ///< (rows, D), accumulation type

  Index batch = 0, time = 0, channels = 0, sequences = 0;
  const void* cu_seqlens = nullptr;
  const void* lengths = nullptr;
  Index index_stride = 0;
  bool index_is_64 = false;
  bool left_padded = false;
  bool reverse = false;
  const unsigned char* reset = nullptr;
  Index reset_batch = 0, reset_time = 0;

  /// Work is tiles times groups of channels; every sequence has `tiles` of them, or, where packed,
  /// the room that tile_of gives it (tile.cuh).
  Index tiles = 1;
  Index groups = 1;
  Index tile_items = 1;         ///< of all sequences together
  Divisor by_groups, by_round;  ///< by groups, and by groups times sequences
  int across_log2 = 0;          ///< rows: vectors of a row. columns: channels of a warp
  int leaf = 0;                 ///< rows: steps of a leaf
  int teams_log2 = 0;           ///< rows: tiles that share a block, where no sequence has two
  int band_leaves = 0;          ///< ordered: leaves that are merged first
  int fan_log2 = 0;  ///< columns: tiles of a sequence that share a block; 8: and its node
  int levels = 0;    ///< of the tree between nodes; 0: no sequence has two

  unsigned* ticket = nullptr;
  unsigned long long* nodes = nullptr;  ///< (tile_items, groups, lanes) nodes
  char* sums = nullptr;                 ///< (slots, tile_items, groups, lanes), accumulation type
  bool is_direct = false;   ///< rows: all outputs are written a vector at a time, whole lines
  bool is_regular = false;  ///< rows: a block reads whole lines of a tile, a vector a thread
  bool has_wide = false;    ///< some gradient is written in the accumulation type
  signed char sum_slot[kMaxInputs];  ///< of inputs whose gradient is summed over time, else -1
};

}  // namespace scanrnn::cuda
