// SPDX-License-Identifier: Apache-2.0
// What a backend offers. The CUDA one has a stub with the same symbols in src/no_cuda, which the
// build takes where CUDA is absent.
#pragma once

#include <string>

#include "common/problem.hpp"
#include "common/solve_problem.hpp"

namespace scanrnn::cpu {

std::size_t workspace_bytes(const Problem& problem);
void execute(const Problem& problem, Workspace workspace);
std::size_t workspace_bytes(const SolveProblem& problem);
void execute(const SolveProblem& problem, Workspace workspace);

}  // namespace scanrnn::cpu

namespace scanrnn::cuda {

bool available();
const char* unavailable_reason();
const char* architectures();
std::size_t workspace_bytes(const Problem& problem, const Target& target);
void execute(const Problem& problem, Workspace workspace, const Target& target);
std::size_t workspace_bytes(const SolveProblem& problem, const Target& target);
void execute(const SolveProblem& problem, Workspace workspace, const Target& target);

}  // namespace scanrnn::cuda
