// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "cuda/ordered.cuh"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {
CellKernels scan_c64() {
  return with_ordered<ScanCell, Complex<float>>(cell_kernels<ScanCell, Complex<float>>());
}
CellKernels scan_c128() {
  return with_ordered<ScanCell, Complex<double>>(cell_kernels<ScanCell, Complex<double>>());
}
}  // namespace scanrnn::cuda
