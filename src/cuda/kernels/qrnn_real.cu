// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/qrnn.hpp"

namespace scanrnn::cuda {
CellKernels qrnn_f32() { return cell_kernels<QrnnCell, float>(); }
CellKernels qrnn_f64() { return cell_kernels<QrnnCell, double>(); }
}  // namespace scanrnn::cuda
