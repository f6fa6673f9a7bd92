// SPDX-License-Identifier: Apache-2.0
// The nonlinear cells' kernels, for the instruction set this file is compiled for.
#include "cpu/kernels/family.hpp"
#include "cpu/solve_leaf.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

void add_solve(InstructionSet& set) {
#define SCANRNN_ADD(name, Cell)                                                                \
  set.solve[static_cast<int>(NonlinearCellKind::name)][0] = SolveLeaf<Cell, float>::kernels(); \
  set.solve[static_cast<int>(NonlinearCellKind::name)][1] = SolveLeaf<Cell, double>::kernels();
  SCANRNN_NONLINEAR_CELLS(SCANRNN_ADD)
#undef SCANRNN_ADD
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
