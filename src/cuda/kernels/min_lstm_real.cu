// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/family.cuh"
#include "cuda/kernels/list.hpp"
#include "scanrnn/core/cells/min_lstm.hpp"

namespace scanrnn::cuda {
CellKernels min_lstm_f32() { return cell_kernels<MinLstmCell, float>(); }
CellKernels min_lstm_f64() { return cell_kernels<MinLstmCell, double>(); }
}  // namespace scanrnn::cuda
