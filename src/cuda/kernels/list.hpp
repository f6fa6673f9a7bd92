// SPDX-License-Identifier: Apache-2.0
// All kernels of the backend. A cell of core/cells/list.hpp has two files here.
#pragma once

#include "cuda/kernels/table.hpp"
#include "scanrnn/core/cells/list.hpp"

namespace scanrnn::cuda {

CellKernels scan_f16();
CellKernels scan_bf16();
CellKernels scan_f32();
CellKernels scan_f64();
CellKernels scan_c64();
CellKernels scan_c128();

#define SCANRNN_DECLARE(name, Cell) \
  CellKernels name##_f16();         \
  CellKernels name##_bf16();        \
  CellKernels name##_f32();         \
  CellKernels name##_f64();
SCANRNN_CELLS(SCANRNN_DECLARE)
#undef SCANRNN_DECLARE

}  // namespace scanrnn::cuda
