// SPDX-License-Identifier: Apache-2.0
// The parts of an instruction set's table, one function a file of this folder.
#pragma once

#include "cpu/leaf.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

void add_scan(InstructionSet& set);
void add_solve(InstructionSet& set);
void add_transfers(InstructionSet& set);

/// The kernels of a real cell, in a file of its own.
#define SCANRNN_DECLARE(name, Cell) void add_##name(InstructionSet& set);
SCANRNN_CELLS(SCANRNN_DECLARE)
#undef SCANRNN_DECLARE

#define SCANRNN_DEFINE_CELL(name, Cell)                                \
  void add_##name(InstructionSet& set) {                               \
    CellKernels* kernels = set.cell[static_cast<int>(CellKind::name)]; \
    kernels[0] = Leaf<Prepared<Cell>, Vec<float>>::kernels();          \
    kernels[1] = Leaf<Prepared<Cell>, Vec<double>>::kernels();         \
  }

}  // namespace scanrnn::cpu::SCANRNN_ISA
