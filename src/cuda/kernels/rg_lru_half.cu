// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/rg_lru.hpp"

namespace scanrnn::cuda {
CellKernels rg_lru_f16() { return cell_kernels<RgLruCell, Half>(); }
CellKernels rg_lru_bf16() { return cell_kernels<RgLruCell, BFloat16>(); }
}  // namespace scanrnn::cuda
