// SPDX-License-Identifier: Apache-2.0
// All kernels of the backend: a cell adds a row here, a line in executor.cpp's table and a file.
#pragma once

#include "cuda/kernels/table.hpp"

namespace scanrnn::cuda {

CellKernels scan_f16();
CellKernels scan_bf16();
CellKernels scan_f32();
CellKernels scan_f64();
CellKernels scan_c64();
CellKernels scan_c128();

CellKernels sru_f16();
CellKernels sru_bf16();
CellKernels sru_f32();
CellKernels sru_f64();

}  // namespace scanrnn::cuda
