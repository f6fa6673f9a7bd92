// SPDX-License-Identifier: Apache-2.0
// Kernels for a cell of your own, on CUDA: in one .cu file of the program,
//
//   #include <scanrnn/custom_cell.cuh>
//   #include "leaky_cell.hpp"                            // the cell, without custom_cell.hpp
//   SCANRNN_ON_CUDA(LeakyCell)
//
// and calls of the cell (cells.hpp) take a Target on a CUDA device. It takes the static library: a
// shared one has a CUDA runtime of its own, which launches none of a program's kernels.
#pragma once

#if defined(SCANRNN_SHARED)
#error "a cell's CUDA kernels take the static library: build scanrnn without SCANRNN_SHARED"
#endif

#include "cuda/kernels/family.cuh"
#include "scanrnn/core/cell_type.hpp"
#include "scanrnn/core/half.hpp"

namespace scanrnn::cuda {

template <class Cell>
struct OnCuda {
  OnCuda() {
    static CustomCell cell;
    cell.entry[0].kernels = cell_kernels<Cell, Half>();
    cell.entry[1].kernels = cell_kernels<Cell, BFloat16>();
    cell.entry[2].kernels = cell_kernels<Cell, float>();
    cell.entry[3].kernels = cell_kernels<Cell, double>();
    custom_cuda_kernels<Cell> = &cell;
  }
};

}  // namespace scanrnn::cuda

// Named by its line, since a cell's name may be qualified.
#define SCANRNN_ON_CUDA(...) SCANRNN_ON_CUDA_AT(__LINE__, __VA_ARGS__)
#define SCANRNN_ON_CUDA_AT(line, ...) SCANRNN_ON_CUDA_NAMED(line, __VA_ARGS__)
#define SCANRNN_ON_CUDA_NAMED(line, ...) \
  static const scanrnn::cuda::OnCuda<__VA_ARGS__> scanrnn_on_cuda_##line;
