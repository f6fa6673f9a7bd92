// SPDX-License-Identifier: Apache-2.0
// A nonlinear cell's kernels, as the executor's table wants them.
#pragma once

#include "cuda/kernels/solve_table.hpp"
#include "cuda/solve.cuh"

namespace scanrnn::cuda {

template <class Cell, class T>
SolveKernels solve_kernels() {
  using P = SolvePass<Cell>;
  return {reinterpret_cast<const void*>(&solve_forward<Cell, T>),
          reinterpret_cast<const void*>(&solve_serial<Cell, T>),
          reinterpret_cast<const void*>(&solve_backward<Cell, T>), P::blocks(sizeof(Acc<T>))};
}

}  // namespace scanrnn::cuda

/// Defines name_f16() and so on.
#define SCANRNN_SOLVE_KERNELS(name, Cell)                                \
  namespace scanrnn::cuda {                                              \
  SolveKernels name##_f16() { return solve_kernels<Cell, Half>(); }      \
  SolveKernels name##_bf16() { return solve_kernels<Cell, BFloat16>(); } \
  SolveKernels name##_f32() { return solve_kernels<Cell, float>(); }     \
  SolveKernels name##_f64() { return solve_kernels<Cell, double>(); }    \
  }
