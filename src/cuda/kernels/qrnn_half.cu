// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/qrnn.hpp"

namespace scanrnn::cuda {
CellKernels qrnn_f16() { return cell_kernels<QrnnCell, Half>(); }
CellKernels qrnn_bf16() { return cell_kernels<QrnnCell, BFloat16>(); }
}  // namespace scanrnn::cuda
