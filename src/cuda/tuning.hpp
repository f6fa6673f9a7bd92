// SPDX-License-Identifier: Apache-2.0
// The algorithm's constants. TUNING.md has the measurements that chose them, and what was tried.
#pragma once

#include <cstddef>

#include "scanrnn/core/config.hpp"

/// Threads of a block: 128, 256 or 512.
#ifndef SCANRNN_CUDA_BLOCK
#define SCANRNN_CUDA_BLOCK 256
#endif

/// Steps of a leaf where channels lie side by side and at most three arrays are staged.
#ifndef SCANRNN_ROW_LEAF
#define SCANRNN_ROW_LEAF 8
#endif

namespace scanrnn::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = SCANRNN_CUDA_BLOCK;
inline constexpr int kThreadsLog2 = kThreads == 128 ? 7 : (kThreads == 256 ? 8 : 9);
inline constexpr int kWarps = kThreads / kWarp;

/// Children of a node of the tree between tiles.
inline constexpr int kRadixLog2 = 3;
inline constexpr int kRadix = 1 << kRadixLog2;
/// Levels of the tree: enough for 8^9 tiles.
inline constexpr int kMaxLevels = 9;

/// Bytes that a thread moves at once.
inline constexpr int kVectorBytes = 16;

/// How channels that lie side by side are cut: threads of a block, bytes of a row that a thread
/// moves at once, steps that it runs of so many channels.
struct RowShape {
  int threads, vector_bytes, leaf;
};
/// The more arrays a step reads, the fewer steps fit into shared memory. `slots`: arrays that are
/// staged.
constexpr RowShape row_shape(std::size_t element_bytes, bool backward, bool step_is_input,
                             int slots, bool recomputes) {
  const int leaf = recomputes ? 4 : (slots <= 3 ? SCANRNN_ROW_LEAF : 4);
  if (element_bytes > 2 || step_is_input) return {kThreads, kVectorBytes, leaf};
  if (!backward) {
    return {128, kVectorBytes, 8};
  }
  if (recomputes) return {128, kVectorBytes, 4};
  return {128, slots <= 5 ? kVectorBytes : kVectorBytes / 2, 8};
}
/// Threads of whole tiles that a multiprocessor is to hold, at most, by the registers that they
/// take. `direct`: inputs that aren't staged.
constexpr int most_row_threads(std::size_t element_bytes, int direct) {
  return element_bytes > 4 || direct > 1 ? 768 : 1024;
}
/// Steps that these are read ahead.
inline constexpr int kRowsAhead = 2;
/// So many vectors make a line of memory, the least width of a row where there are channels enough.
constexpr SCANRNN_HD int row_band_log2(int vector_bytes) { return vector_bytes == 8 ? 4 : 3; }

/// Leaves where steps lie side by side: steps that a thread runs, for one channel. Where many
/// arrays are staged, shorter ones leave room for more warps.
constexpr int column_leaf(std::size_t element_bytes, int staged_arrays) {
  if (element_bytes > 4) return static_cast<int>(128 / element_bytes);
  return element_bytes == 4 && staged_arrays > 4 ? 16 : 32;
}
/// Words that nodes are apart there. Channels publish theirs at different times, and a sector that
/// several of them share is fought for: (1, 2^20, 64) forward 0.73 of streaming at 16 bytes, 0.67
/// at 8. No more than a hundredth of the arrays, all the same.
constexpr SCANRNN_HD int column_node_words(int words, std::size_t element_bytes) {
  const int apart = element_bytes == 2 ? 2 : 4;
  return words > apart ? words : apart;
}
/// Warps of a block there: each works for itself.
constexpr int column_warps(int staged_arrays) { return staged_arrays <= 3 ? 8 : 4; }
/// Whether a sequence's tiles are shared out to blocks of kRadix there: where no more than one in
/// eight warps would have nothing to do. (Of two or four tiles several sequences share a block.)
constexpr bool fills_blocks(long long tiles) {
  return (kRadix - tiles % kRadix) % kRadix * 8 <= tiles;
}

/// Levels of the tree between clusters. Tiles of 64 channels have room for no more.
inline constexpr int kMostClusterLevels = 5;
/// Where clusters of kRadix blocks (clusters.cuh) are best: by the major compute capability (others
/// than 9 were not measured), a sequence's whole tiles, the tiles of all channels and sequences,
/// and whether a sequence's rows lie one behind the other. With few tiles no cluster takes a second
/// one: (1,2048,32) backward 9.7 us instead of 8.9. Rows of other sequences in between are read
/// later, from pages that memory has closed: [T,B,D] of (16,8192,1024) 0.88, 0.83 with clusters,
/// 0.94, 0.92 without, of (8,2048,1024) 0.85, 0.84 and 0.91, 0.92.
constexpr bool are_clusters_best(int major, long long tiles, long long all_tiles,
                                 bool has_adjacent_rows) {
  return major == 9 && has_adjacent_rows && tiles % kRadix == 0 && all_tiles >= 256 &&
         tiles <= 1ll << kRadixLog2 * (kMostClusterLevels + 1);
}

/// Whether code for an architecture has cells' kernels for whole tiles (__CUDA_ARCH__ / 10). They
/// save instructions, which count where memory has many bytes a cycle and multiprocessor: A100 13,
/// H200 21, B200 28. GPUs with GDDR have 2 to 7, and a library for all architectures would be too
/// large. The scan has them everywhere.
constexpr SCANRNN_HD bool has_fast_memory(int architecture) {
  return architecture == 80 || architecture == 90 || (architecture >= 100 && architecture < 110);
}

static_assert(kThreads == 128 || kThreads == 256 || kThreads == 512);
static_assert(kLeafSteps <= 32 && kLeafSteps % 8 == 0);

}  // namespace scanrnn::cuda
