// SPDX-License-Identifier: Apache-2.0
// The simple recurrent unit's leaf kernels, for the instruction set this file is compiled for.
#include "cpu/kernels/family.hpp"

#include "scanrnn/core/cells/sru.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

void add_sru(InstructionSet& set) {
  set.sru[0] = Leaf<SruCell, Vec<float>>::kernels();
  set.sru[1] = Leaf<SruCell, Vec<double>>::kernels();
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
