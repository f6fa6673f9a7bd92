// SPDX-License-Identifier: Apache-2.0
// A checked scan as a problem; scan.cpp runs it, and so does the merge trace.
#pragma once

#include "common/problem.hpp"
#include "scanrnn/core/cells/scan.hpp"
#include "scanrnn/scan.hpp"

namespace scanrnn {

/// `cell` must outlive the problem.
Problem make_problem(const ScanForward& call, const ScanCell& cell, Device device);

}  // namespace scanrnn
