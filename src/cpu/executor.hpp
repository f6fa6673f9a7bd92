// SPDX-License-Identifier: Apache-2.0
// Runs a cell over sequences on the CPU: knows layouts, threads and the merge tree, and no cell.
#pragma once

#include "common/problem.hpp"
#include "cpu/kernels.hpp"

namespace scanrnn::cpu {

std::size_t workspace_bytes(const Problem& problem, const CellKernels& cell);
void execute(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
             Workspace workspace);

/// The set in use: the one named by set_cpu_isa, or the best of this machine.
const InstructionSet& instruction_set();

}  // namespace scanrnn::cpu
