// SPDX-License-Identifier: Apache-2.0
// The kernels of a cell, as the executor sees them.
#pragma once

#include "cuda/args.hpp"

namespace scanrnn::cuda {

struct Kernel {
  const void* function = nullptr;
  const char* name = "";
  int leaf = 0;   ///< steps of a thread; rows: at most
  int warps = 0;  ///< of a block; columns: at most
  /// Bytes of shared memory that the launch has to ask for.
  int (*shared_bytes)(int across_log2, int leaf, int warps) = nullptr;
};

/// One pass of a cell for one dtype.
struct PassKernels {
  Kernel rows;
  Kernel columns;
  Kernel serial;
};

struct CellKernels {
  PassKernels forward, backward;
};

}  // namespace scanrnn::cuda
