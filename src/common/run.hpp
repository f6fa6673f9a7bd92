// SPDX-License-Identifier: Apache-2.0
// Hands a validated problem to the backend that the target names.
#pragma once

#include "common/backend.hpp"

namespace scanrnn {

template <class AnyProblem>  // Problem or SolveProblem
std::size_t workspace_bytes(const AnyProblem& problem, const Target& target) {
  return target.device == Device::cuda ? cuda::workspace_bytes(problem, target)
                                       : cpu::workspace_bytes(problem);
}

template <class AnyProblem>
void run(const AnyProblem& problem, Workspace workspace, const Target& target) {
  if (target.device == Device::cuda) {
    cuda::execute(problem, workspace, target);
  } else {
    cpu::execute(problem, workspace);
  }
}

}  // namespace scanrnn
