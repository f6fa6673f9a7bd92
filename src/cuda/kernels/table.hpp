// SPDX-License-Identifier: Apache-2.0
// The kernels of a cell, as the executor sees them.
#pragma once

#include <atomic>
#include <cstdint>

#include "cuda/args.hpp"

namespace scanrnn::cuda {

inline constexpr int kMostVariants = 16;  ///< of a pass (variants.hpp)
inline constexpr int kMostCases = 3;      ///< of a cell

struct Kernel {
  const void* function = nullptr;
  const char* name = "";
  int leaf = 0;          ///< steps of a thread; rows: at most
  int warps = 0;         ///< of a block; columns: at most
  int vector_bytes = 0;  ///< that a thread moves at once
  /// Bytes of shared memory that the launch has to ask for.
  int (*shared_bytes)(int across_log2, int leaf, int warps, int levels) = nullptr;
  int blocks = 0;                  ///< that stay: how many a multiprocessor holds
  int carveout = 100;              ///< percent of the L1 cache for shared memory, at most
  bool needs_fast_memory = false;  ///< see has_fast_memory in tuning.hpp
  bool needs_output = false;       ///< forward: final states alone aren't enough
  bool (*suits)(const void* cell) = nullptr;  ///< of a case: whether a call is one
};

/// One pass of a cell for one dtype.
struct PassKernels {
  Kernel rows;
  Kernel whole;                          ///< rows of calls whose tiles are all whole
  Kernel cases[kMostCases];              ///< the same of what the cell names as its cases
  Kernel clusters;                       ///< the same by clusters of blocks; not every one has it
  Kernel cluster_cases[kMostCases];      ///< nor these, of the same cases
  Kernel narrow_whole, narrow_clusters;  ///< both where a row is half a line; nor these
  Kernel columns;
  Kernel whole_columns;  ///< columns of calls whose tiles are all whole
  // For arrays that start anywhere. Not every cell has them.
  Kernel lines;  ///< rows
  Kernel ragged_columns;
  Kernel serial;
  Kernel ordered;  ///< not every cell has it
};

struct CellKernels {
  PassKernels forward, backward;
};

/// The devices, a bit each, that were told how much shared memory a kernel may ask for.
struct Prepared {
  std::atomic<std::uint64_t> variant[kMostVariants]{};  ///< by their order in variants.hpp
  std::atomic<std::uint64_t> cases[kMostCases]{}, cluster_cases[kMostCases]{};
  std::atomic<std::uint64_t> no_clusters{0};  ///< devices that were asked and can't hold any
  /// Devices whose code is for an architecture with fast memory, and those where it isn't.
  std::atomic<std::uint64_t> fast_memory{0}, slow_memory{0};
};

/// A cell's kernels for one dtype, and on which devices they are prepared.
struct Entry {
  CellKernels kernels;
  Prepared forward, backward;
};

/// The kernels of a cell that isn't the library's, by DType; complex ones only where it is complex.
struct CustomCell {
  Entry entry[6];
};

}  // namespace scanrnn::cuda
