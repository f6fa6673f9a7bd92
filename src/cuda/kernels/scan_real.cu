// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/scan.hpp"

namespace scanrnn::cuda {
CellKernels scan_f32() { return cell_kernels<ScanCell, float>(); }
CellKernels scan_f64() { return cell_kernels<ScanCell, double>(); }
}  // namespace scanrnn::cuda
