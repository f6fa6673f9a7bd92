// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "cuda/ordered.cuh"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {
CellKernels scan_f16() { return with_ordered<ScanCell, Half>(cell_kernels<ScanCell, Half>()); }
CellKernels scan_bf16() {
  return with_ordered<ScanCell, BFloat16>(cell_kernels<ScanCell, BFloat16>());
}
}  // namespace scanrnn::cuda
