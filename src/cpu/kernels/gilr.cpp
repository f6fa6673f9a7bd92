// SPDX-License-Identifier: Apache-2.0
// The gated impulse linear recurrence's leaf kernels, for the instruction set this file is compiled
// for.
#include "cpu/kernels/family.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

SCANRNN_DEFINE_CELL(gilr, GilrCell)

}  // namespace scanrnn::cpu::SCANRNN_ISA
