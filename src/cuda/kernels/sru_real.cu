// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/sru.hpp"

namespace scanrnn::cuda {
CellKernels sru_f32() { return cell_kernels<SruCell, float>(); }
CellKernels sru_f64() { return cell_kernels<SruCell, double>(); }
}  // namespace scanrnn::cuda
