// SPDX-License-Identifier: Apache-2.0
// The real-gated linear recurrent unit's leaf kernels, for the instruction set this file is
// compiled for.
#include "cpu/kernels/family.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {

SCANRNN_DEFINE_CELL(rg_lru, RgLruCell)

}  // namespace scanrnn::cpu::SCANRNN_ISA
