// SPDX-License-Identifier: Apache-2.0
// The CUDA backend of a build without CUDA: every call says so.
#include "common/backend.hpp"
#include "common/trace.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn::cuda {

bool available() { return false; }

const char* unavailable_reason() {
  return "this build of scanrnn has no CUDA backend (SCANRNN_CUDA was off); arrays on the CPU work";
}

const char* architectures() { return ""; }

std::size_t workspace_bytes(const Problem&, const Target&) {
  throw DeviceError(unavailable_reason());
}

void execute(const Problem&, Workspace, const Target&) { throw DeviceError(unavailable_reason()); }

std::size_t workspace_bytes(const SolveProblem&, const Target&) {
  throw DeviceError(unavailable_reason());
}

void execute(const SolveProblem&, Workspace, const Target&) {
  throw DeviceError(unavailable_reason());
}

void trace(const Problem&, const Target&, const std::function<void(const MergeEvent&)>&) {
  throw DeviceError(unavailable_reason());
}

}  // namespace scanrnn::cuda
