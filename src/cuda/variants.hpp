// SPDX-License-Identifier: Apache-2.0
// Which kernel runs when: the kernels of a pass, each with the calls that it is for.
#pragma once

#include "cuda/kernels/table.hpp"

namespace scanrnn::cuda {

/// How a kernel shares out a call: tiles of channels that lie side by side, tiles of steps that do,
/// or a thread for each sequence and channel.
enum class Way { rows, columns, threads };

/// What is known of a call and of the tiles that it is cut into.
enum Trait : unsigned {
  kForced = 1u << 0,          ///< SCANRNN_CUDA_KERNEL names a way
  kForcedSerial = 1u << 1,    ///< and that is one serial thread
  kNoRoom = 1u << 2,          ///< rows: not even the least tile fits into shared memory
  kSerialBest = 1u << 3,      ///< so few steps that one serial thread is best (choice.hpp)
  kFewLeaves = 1u << 4,       ///< it is one tile, and run_ordered can take its leaves
  kOrderedBest = 1u << 5,     ///< one thread is the better for them (choice.hpp), or forced
  kPacked = 1u << 6,          ///< sequences are packed
  kSequences = 1u << 7,       ///< sequences are packed, padded or reset
  kWholeTiles = 1u << 8,      ///< nothing of them lies outside of the call
  kFewRaggedTiles = 1u << 9,  ///< columns: the last of a sequence's few tiles isn't whole
  kFullWidth = 1u << 10,      ///< rows: a tile is one band of whole leaves. columns: one channel
  kClustersBest = 1u << 11,   ///< rows: see are_clusters_best
  kAllArrays = 1u << 12,      ///< none that the scan can read is absent
  kAligned = 1u << 13,        ///< columns: every channel of every array starts at a vector
  kLines = 1u << 14,          ///< rows: every array's channels lie side by side
  kVectors = 1u << 15,        ///< rows: so, and they can be read and written in vectors
  kLaneVectors = 1u << 16,    ///< what has one value a channel (biases, checkpoints) is so, too
  kWide = 1u << 17,           ///< some gradient is left in the accumulation type, to be reduced
  kSums = 1u << 18,           ///< some gradient is summed over time
  kStepSums = 1u << 19,       ///< and that of an input which isn't a vector
  kColumns = 1u << 20,        ///< columns: every channel is read and written in vectors
  kHalfWidth = 1u << 21,      ///< rows: a tile is one band of whole leaves, half a line wide
  kNoOutput = 1u << 22,       ///< forward: only final states are wanted
  kSlowMemory = 1u << 23,     ///< what the device loads lacks cells' kernels for whole tiles
};

struct Variant {
  Way way;
  Kernel PassKernels::* kernel;  ///< passed over where a cell has none
  unsigned needs, excludes;      ///< traits
};

// Tiles without a test in them; arrays that start anywhere, in calls that ask for nothing else.
inline constexpr unsigned kWhole = kWholeTiles | kVectors | kLaneVectors;
inline constexpr unsigned kNotWhole = kSequences | kWide | kStepSums;
inline constexpr unsigned kPlain = kAllArrays | kFullWidth;
inline constexpr unsigned kNotPlain = kSequences | kWide | kSums;

using K = PassKernels;
/// The first one that can run a call does. Clusters take the place of the next one on devices that
/// hold them.
inline constexpr Variant kVariants[] = {
    {Way::threads, &K::serial, kForcedSerial, 0},
    {Way::threads, &K::serial, kNoRoom, 0},
    {Way::threads, &K::serial, kSerialBest, kPacked | kForced},
    {Way::threads, &K::ordered, kFewLeaves | kOrderedBest, kPacked},
    {Way::rows, &K::clusters, kWhole | kFullWidth | kClustersBest, kNotWhole | kForced},
    {Way::rows, &K::whole, kWhole | kFullWidth, kNotWhole},
    {Way::rows, &K::narrow_clusters, kWhole | kHalfWidth | kClustersBest, kNotWhole | kForced},
    {Way::rows, &K::narrow_whole, kWhole | kHalfWidth, kNotWhole},
    {Way::rows, &K::lines, kPlain | kLines, kNotPlain | kVectors},
    {Way::rows, &K::rows, 0, 0},
    {Way::columns, &K::whole_columns, kWholeTiles | kColumns | kAllArrays, kNotWhole},
    {Way::columns, &K::ragged_columns, kPlain | kFewRaggedTiles, kNotPlain},
    {Way::columns, &K::ragged_columns, kPlain, kNotPlain | kAligned},
    {Way::columns, &K::columns, 0, 0},
};
static_assert(sizeof(kVariants) / sizeof(Variant) <= kMostVariants);

constexpr bool is_of_clusters(const Variant& variant) {
  return variant.kernel == &K::clusters || variant.kernel == &K::narrow_clusters;
}

/// The number of the cell's case that a call is, or -1.
inline int case_of(const PassKernels& kernels, const void* cell) {
  int i = kMostCases - 1;
  while (i >= 0 && (kernels.cases[i].suits == nullptr || !kernels.cases[i].suits(cell))) --i;
  return i;
}
/// A variant's kernel for a call of that case.
inline const Kernel& kernel_of(const PassKernels& kernels, const Variant& v, int the_case) {
  if (the_case >= 0 && v.kernel == &K::whole) return kernels.cases[the_case];
  if (the_case >= 0 && v.kernel == &K::clusters) return kernels.cluster_cases[the_case];
  return kernels.*v.kernel;
}

/// The first of them, from `from` on, that runs a call of these traits.
inline const Variant* choose(const Variant* from, const PassKernels& kernels, int the_case, Way way,
                             unsigned traits) {
  const auto runs = [&](const Variant& v) {
    const Kernel& kernel = kernel_of(kernels, v, the_case);
    return (v.way == way || v.way == Way::threads) && (traits & v.needs) == v.needs &&
           (traits & v.excludes) == 0 && kernel.function != nullptr &&
           !(kernel.needs_output && (traits & kNoOutput) != 0) &&
           !(kernel.needs_fast_memory && (traits & kSlowMemory) != 0);
  };
  while (!runs(*from)) ++from;
  return from;
}

}  // namespace scanrnn::cuda
