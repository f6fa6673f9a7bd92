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
// has not published never waits for one that has not started: by induction all of them end.
//
// Exchange. A node is one or more words of 16 bytes, each {8 bytes of the map, tag, flags}. A word
// is written and read by relaxed .b128 accesses of gpu scope, which PTX makes single-copy atomic:
// a reader that sees the tag sees the whole word, so words need no fences and can't be torn. The
// tag is nonzero and the workspace is zeroed on the same stream before the kernel starts.
#pragma once

#include "cuda/device.cuh"

namespace scanrnn::cuda {

struct Word {
  unsigned long long payload;
  unsigned tag;
  unsigned flags;
};
inline constexpr unsigned kPublished = 0x5ca11ed;

__device__ __forceinline__ void store_word(uint4* at, const Word& w) {
  const unsigned long long high =
      static_cast<unsigned long long>(w.flags) << 32 | static_cast<unsigned long long>(w.tag);
#if __CUDA_ARCH__ >= 700
  asm volatile(
      "{\n\t.reg .b128 word;\n\tmov.b128 word, {%1, %2};\n\t"
      "st.relaxed.gpu.global.b128 [%0], word;\n\t}" ::"l"(at),
      "l"(w.payload), "l"(high)
      : "memory");
#endif
}
__device__ __forceinline__ Word load_word(const uint4* at) {
  unsigned long long low = 0, high = 0;
#if __CUDA_ARCH__ >= 700
  asm volatile(
      "{\n\t.reg .b128 word;\n\tld.relaxed.gpu.global.b128 word, [%2];\n\t"
      "mov.b128 {%0, %1}, word;\n\t}"
      : "=l"(low), "=l"(high)
      : "l"(at)
      : "memory");
#endif
  return {low, static_cast<unsigned>(high), static_cast<unsigned>(high >> 32)};
}

/// Words of a node, and what is in them.
template <class R>
struct Node {
  static constexpr int words = sizeof(Affine<R>) / 8;
  Word word[words];

  __device__ __forceinline__ void load(const uint4* at) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = load_word(at + i);
  }
  __device__ __forceinline__ bool is_published() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < words; ++i) all = all && word[i].tag == kPublished;
    return all;
  }
  __device__ __forceinline__ Segment<R> segment() const {
    unsigned long long payload[words];
#pragma unroll
    for (int i = 0; i < words; ++i) payload[i] = word[i].payload;
    Segment<R> s;
    memcpy(&s.map, payload, sizeof(s.map));
    s.cut = word[0].flags != 0;
    return s;
  }
  static __device__ __forceinline__ void publish(uint4* at, const Segment<R>& s) {
    unsigned long long payload[words];
    memcpy(payload, &s.map, sizeof(s.map));
#pragma unroll
    for (int i = 0; i < words; ++i) {
      store_word(at + i, {payload[i], kPublished, s.cut ? 1u : 0u});
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
/// and nodes of neighbouring tiles are `stride` words apart.
template <class R>
__device__ __forceinline__ Segment<R> await_group(const uint4* nodes, Index stride, Index tile,
                                                  int level, int first) {
  constexpr int kAtOnce = Node<R>::words == 1 ? kAhead : 1;
  const int count = digit_of(tile, level) - first;
  nodes += node_tile(tile, level, first) * stride;
  stride <<= kRadixLog2 * level;
  Segment<R> product{identity<Affine<R>>(), false};
#pragma unroll
  for (int i = 0; i < kAhead; i += kAtOnce) {
    if (i >= count) break;
    Node<R> node[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j < count) node[j].load(nodes + (i + j) * stride);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j >= count) break;
      while (!node[j].is_published()) node[j].load(nodes + (i + j) * stride);
      product = i + j == 0 ? node[j].segment() : merge(product, node[j].segment());
    }
  }
  return product;
}

/// The product of all nodes that precede `tile` at `level`.
template <class R>
__device__ __forceinline__ Segment<R> await_level(const uint4* nodes, Index stride, Index tile,
                                                  int level) {
  Segment<R> product = await_group<R>(nodes, stride, tile, level, 0);
#pragma unroll 1
  for (int first = kAhead; first < digit_of(tile, level); first += kAhead) {
    product = merge(product, await_group<R>(nodes, stride, tile, level, first));
  }
  return product;
}

}  // namespace scanrnn::cuda
