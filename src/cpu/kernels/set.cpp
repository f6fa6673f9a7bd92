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
    add_sru(s);
    add_transfers(s);
    return s;
  }();
  return set;
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
