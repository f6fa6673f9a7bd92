// SPDX-License-Identifier: Apache-2.0
// The algorithm's constants. A build may set each with -D.
#pragma once

#include <cstddef>

#include "scanrnn/core/config.hpp"

/// Threads of a block: 256 or 512.
#ifndef SCANRNN_CUDA_BLOCK
#define SCANRNN_CUDA_BLOCK 256
#endif

namespace scanrnn::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = SCANRNN_CUDA_BLOCK;
inline constexpr int kWarps = kThreads / kWarp;

/// Children of a node of the tree between tiles.
inline constexpr int kRadixLog2 = 3;
inline constexpr int kRadix = 1 << kRadixLog2;

/// Bytes that a thread moves at once.
inline constexpr int kVectorBytes = 16;

/// Leaves where channels lie side by side: steps that a thread runs, for a vector of channels. The
/// more arrays a step reads, the fewer steps fit into shared memory.
/// Eight channels whose states are recomputed into registers leave room for two steps of them.
constexpr int row_leaf(int staged_arrays, bool recomputes, std::size_t element_bytes) {
  if (recomputes && element_bytes == 2) return 2;
  return staged_arrays <= 3 ? 8 : 4;
}

/// Leaves where steps lie side by side: steps that a thread runs, for one channel.
constexpr int column_leaf(std::size_t element_bytes) {
  return element_bytes <= 4 ? 32 : static_cast<int>(128 / element_bytes);
}
/// Warps of a block there: each works for itself.
constexpr int column_warps(int staged_arrays) { return staged_arrays <= 3 ? 8 : 4; }

static_assert(kThreads == 256 || kThreads == 512, "a block has 256 or 512 threads");
static_assert(kLeafSteps <= 32 && kLeafSteps % 8 == 0);

}  // namespace scanrnn::cuda
