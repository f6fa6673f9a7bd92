// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/rg_lru.hpp"

namespace scanrnn::cuda {
CellKernels rg_lru_f32() { return cell_kernels<RgLruCell, float>(); }
CellKernels rg_lru_f64() { return cell_kernels<RgLruCell, double>(); }
}  // namespace scanrnn::cuda
