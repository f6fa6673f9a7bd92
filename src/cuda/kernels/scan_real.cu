// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "cuda/lines.cuh"
#include "cuda/ordered.cuh"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {
CellKernels scan_f32() {
  return with_ragged<ScanCell, float>(
      with_ordered<ScanCell, float>(cell_kernels<ScanCell, float>()));
}
CellKernels scan_f64() { return with_ordered<ScanCell, double>(cell_kernels<ScanCell, double>()); }
}  // namespace scanrnn::cuda
