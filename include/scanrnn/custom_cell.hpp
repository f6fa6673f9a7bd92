// SPDX-License-Identifier: Apache-2.0
// Kernels for a cell of your own, on the CPU: include this where you define it, and call it as the
// library's cells are called (cells.hpp). Link scanrnn::custom_cell, which has the headers.
//
//   struct LeakyCell : scanrnn::CellBase { ... };        // core/cell.hpp says what a cell is
//   scanrnn::CellForward<LeakyCell> call;
//
// Its members are written in the functions of core/math.hpp, each brought in by a using-declaration
// and called without the namespace: a backend's registers have functions of the same names.
//
// The kernels are made for the instruction set that the including file is compiled for, so compile
// it with -march=native or what your machines have. custom_cell.cuh adds kernels for CUDA.
#pragma once

#if defined(__CUDACC__)
#error "the CPU's kernels are for the C++ compiler: include custom_cell.cuh in CUDA sources"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SCANRNN_ISA avx512
#define SCANRNN_ISA_NAME "avx512"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SCANRNN_ISA avx2
#define SCANRNN_ISA_NAME "avx2"
#elif defined(__x86_64__)
#define SCANRNN_ISA sse2
#define SCANRNN_ISA_NAME "sse2"
#elif defined(__aarch64__)
#define SCANRNN_ISA neon
#define SCANRNN_ISA_NAME "neon"
#else
#define SCANRNN_ISA generic
#define SCANRNN_ISA_NAME "generic"
#endif

#include "cpu/leaf.hpp"
#include "scanrnn/cells.hpp"

namespace scanrnn {

template <class Cell>
const CellType& cell_type() {
  static const cpu::CustomCell kernels = {
      SCANRNN_ISA_NAME,
      {cpu::SCANRNN_ISA::Leaf<Prepared<Cell>, cpu::SCANRNN_ISA::Vec<float>>::kernels(),
       cpu::SCANRNN_ISA::Leaf<Prepared<Cell>, cpu::SCANRNN_ISA::Vec<double>>::kernels()}};
  static const CellType type =
      detail::describe<Cell>(CellKind::custom, &kernels, &custom_cuda_kernels<Cell>);
  return type;
}

}  // namespace scanrnn
