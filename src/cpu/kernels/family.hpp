// SPDX-License-Identifier: Apache-2.0
// The parts of an instruction set's table, one function a file of this folder.
#pragma once

#include "cpu/leaf.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

void add_scan(InstructionSet& set);
void add_sru(InstructionSet& set);
void add_transfers(InstructionSet& set);

}  // namespace scanrnn::cpu::SCANRNN_ISA
