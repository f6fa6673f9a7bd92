// SPDX-License-Identifier: Apache-2.0
// The simple recurrent unit's leaf kernels, for the instruction set this file is compiled for.
#include "cpu/kernels/family.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

SCANRNN_DEFINE_CELL(sru, SruCell)

}  // namespace scanrnn::cpu::SCANRNN_ISA
