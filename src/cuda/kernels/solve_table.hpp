// SPDX-License-Identifier: Apache-2.0
// The solver's kernels, as its executor sees them.
#pragma once

#include "scanrnn/core/cells/nonlinear_list.hpp"

namespace scanrnn::cuda {

/// Those of a cell for one dtype, and the blocks of a multiprocessor that they have registers for.
struct SolveKernels {
  const void* forward = nullptr;
  const void* serial = nullptr;
  const void* backward = nullptr;
  int blocks = 0;
};

#define SCANRNN_DECLARE(name, Cell) \
  SolveKernels name##_f16();        \
  SolveKernels name##_bf16();       \
  SolveKernels name##_f32();        \
  SolveKernels name##_f64();
SCANRNN_NONLINEAR_CELLS(SCANRNN_DECLARE)
#undef SCANRNN_DECLARE

}  // namespace scanrnn::cuda
