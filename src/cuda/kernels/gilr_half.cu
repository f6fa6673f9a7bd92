// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/gilr.hpp"

namespace scanrnn::cuda {
CellKernels gilr_f16() { return cell_kernels<GilrCell, Half>(); }
CellKernels gilr_bf16() { return cell_kernels<GilrCell, BFloat16>(); }
}  // namespace scanrnn::cuda
