// SPDX-License-Identifier: Apache-2.0
// The merge tree between tiles.
//
// The tiles of a sequence are numbered in the order of the pass. Tile k, written in base 8 with
// digits d_l, is preceded by d_l complete nodes of 8^l tiles at every level l, and their ordered
// product is the map of all that comes before it. Every tile publishes one node, the largest that
// ends with it: its own map, merged with the seven siblings before it at each level where its digit
// is 7. The bracketing depends on nothing but k.
//
// Progress. Tiles take tickets, and every earlier tile of a sequence has an earlier ticket. A
// ticket is taken by a block that runs, and a block that runs is not taken off its multiprocessor
// for one that waits. A tile waits only for nodes of earlier tiles, and those publish before they
// wait for anything but still earlier nodes that they need for their own. So the earliest tile that
// has not published never waits for one that has not started: by induction all of them end. (Of
// blocks that stay, clusters.cuh and whole_columns.cuh show the same.)
//
// Exchange. A node is one or more words of 8 bytes, written and read by relaxed accesses of gpu
// scope, which PTX makes single-copy atomic (memory consistency model, "scalar data types"). The
// workspace is filled with ones on the same stream before the kernel starts. A word of ones is one
// that nobody has written yet, and no word that is written consists of ones; so a reader that has
// seen all words of a node in another state has seen the node, in whatever order they arrive:
// there is nothing else that a fence would have to order, and nothing that could be torn.
#pragma once

#include "cuda/device.cuh"

namespace scanrnn::cuda {

using Word = unsigned long long;
inline constexpr Word kUnpublished = ~0ull;

__device__ __forceinline__ void store_word(Word* at, Word w) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(w) : "memory");
}
__device__ __forceinline__ Word load_word(const Word* at) {
  Word w;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w) : "l"(at) : "memory");
  return w;
}

/// The words of a node. The gain of a map that a reset cuts means nothing: its first word then says
/// so, by a NaN that no arithmetic makes.
template <class R>
struct Node {
  static constexpr int words = sizeof(Affine<R>) / sizeof(Word);
  static constexpr Word kCut = 0xffffffff7fedcba9ull, kCutMask = words == 1 ? 0xffffffffull : ~0ull;
  Word word[words];

  __device__ __forceinline__ void load(const Word* at) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = load_word(at + i);
  }
  __device__ __forceinline__ bool is_published() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < words; ++i) all = all && word[i] != kUnpublished;
    return all;
  }
  __device__ __forceinline__ Segment<R> segment() const {
    Segment<R> s;
    memcpy(&s.map, word, sizeof(s.map));
    s.cut = ((word[0] ^ kCut) & kCutMask) == 0;
    return s;
  }
  static __device__ __forceinline__ void publish(Word* at, const Segment<R>& s) {
    Word payload[words];
    memcpy(payload, &s.map, sizeof(s.map));
    if (s.cut) payload[0] = (payload[0] & ~kCutMask) | (kCut & kCutMask);
#pragma unroll
    for (int i = 0; i < words; ++i) {
      // Two NaNs of ones become others.
      store_word(at + i, payload[i] == kUnpublished ? kUnpublished ^ 1 : payload[i]);
    }
  }
};

/// Digit `level` of a tile's number.
__device__ __forceinline__ int digit_of(Index tile, int level) {
  return static_cast<int>(tile >> (kRadixLog2 * level)) & (kRadix - 1);
}
/// The tile that published node `child` among the digit_of(tile, level) that precede the tile.
__device__ __forceinline__ Index node_tile(Index tile, int level, int child) {
  const Index parent = tile >> (kRadixLog2 * (level + 1)) << kRadixLog2;
  return ((parent + child + 1) << (kRadixLog2 * level)) - 1;
}

/// Nodes that a thread has on their way at once. More would only cost registers.
inline constexpr int kAhead = 4;
/// Groups of kAhead that the children of a node make.
inline constexpr int kGroups = (kRadix - 1 + kAhead - 1) / kAhead;

/// The product of the nodes that precede `tile` at `level`, those from number `first` on and kAhead
/// at most, for one channel of one thread. `nodes` is the sequence's first node of that channel,
/// and nodes of neighbouring tiles are `stride` words apart. Without kMayCut no map has a reset.
template <class R, bool kMayCut = true>
__device__ __forceinline__ Segment<R> await_group(const Word* nodes, Index stride, Index tile,
                                                  int level, int first) {
  const int count = digit_of(tile, level) - first;
  nodes += node_tile(tile, level, first) * stride;
  stride <<= kRadixLog2 * level;
  constexpr int kAtOnce = Node<R>::words == 1 ? kAhead : 1;
  Segment<R> product{identity<Affine<R>>(), false};
#pragma unroll
  for (int i = 0; i < kAhead; i += kAtOnce) {
    if (i >= count) break;
    // All that are missing are asked for at once: one after the other, each would go its way
    // through the cache anew.
    Node<R> node[kAtOnce];
    bool is_missing[kAtOnce], any = true;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) is_missing[j] = i + j < count;
    while (any) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (is_missing[j]) node[j].load(nodes + (i + j) * stride);
      }
      any = false;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        is_missing[j] = is_missing[j] && !node[j].is_published();
        any = any || is_missing[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j >= count) break;
      Segment<R> next = node[j].segment();
      if (!kMayCut) next.cut = false;
      product = i + j == 0 ? next : merge(product, next);
    }
  }
  return product;
}

/// The product of all nodes that precede `tile` at `level`.
template <class R, bool kMayCut = true>
__device__ __forceinline__ Segment<R> await_level(const Word* nodes, Index stride, Index tile,
                                                  int level) {
  Segment<R> product = await_group<R, kMayCut>(nodes, stride, tile, level, 0);
#pragma unroll 1
  for (int first = kAhead; first < digit_of(tile, level); first += kAhead) {
    product = merge(product, await_group<R, kMayCut>(nodes, stride, tile, level, first));
  }
  return product;
}

}  // namespace scanrnn::cuda
