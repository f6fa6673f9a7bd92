// SPDX-License-Identifier: Apache-2.0
// Runs a nonlinear cell over sequences on the CPU: knows layouts, threads and segments, and no
// cell.
#pragma once

#include "common/solve_problem.hpp"
#include "cpu/kernels.hpp"

namespace scanrnn::cpu {

std::size_t workspace_bytes(const SolveProblem& problem, const SolveKernels& cell);
void execute(const SolveProblem& problem, const SolveKernels& cell, const InstructionSet& set,
             Workspace workspace);

}  // namespace scanrnn::cpu
