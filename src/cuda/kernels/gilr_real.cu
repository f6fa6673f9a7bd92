// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/gilr.hpp"

namespace scanrnn::cuda {
CellKernels gilr_f32() { return cell_kernels<GilrCell, float>(); }
CellKernels gilr_f64() { return cell_kernels<GilrCell, double>(); }
}  // namespace scanrnn::cuda
