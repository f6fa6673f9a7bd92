// SPDX-License-Identifier: Apache-2.0
// The table of the instruction set this file is compiled for.
#include "cpu/kernels/family.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

#define SCANRNN_NAME_OF(set) #set
#define SCANRNN_NAME(set) SCANRNN_NAME_OF(set)

extern const InstructionSet& instruction_set();

const InstructionSet& instruction_set() {
  static const InstructionSet set = [] {
    InstructionSet s{};
    s.name = SCANRNN_NAME(SCANRNN_ISA);
    add_scan(s);
#define SCANRNN_ADD(name, Cell) add_##name(s);
    SCANRNN_CELLS(SCANRNN_ADD)
#undef SCANRNN_ADD
    add_solve(s);
    add_transfers(s);
    return s;
  }();
  return set;
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
