// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/min_lstm.hpp"

namespace scanrnn::cuda {
CellKernels min_lstm_f16() { return cell_kernels<MinLstmCell, Half>(); }
CellKernels min_lstm_bf16() { return cell_kernels<MinLstmCell, BFloat16>(); }
}  // namespace scanrnn::cuda
