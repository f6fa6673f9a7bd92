// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/sru.hpp"

namespace scanrnn::cuda {
CellKernels sru_f16() { return cell_kernels<SruCell, Half>(); }
CellKernels sru_bf16() { return cell_kernels<SruCell, BFloat16>(); }
}  // namespace scanrnn::cuda
