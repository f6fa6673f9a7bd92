// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over the axes that an input is broadcast over.
#pragma once

#include <driver_types.h>

#include "cuda/args.hpp"
#include "scanrnn/core/nonlinear_cell.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn::cuda {

/// out[b,t,d] = the sum of from[b,t,d] over the axes along which `out` has one element. `from` is
/// (rows, steps, channels) of the accumulation type, `pitch` elements from a step to the next, and
/// may have no elements.
struct Reduction {
  const char* from = nullptr;
  Index rows = 0, steps = 0, channels = 0, pitch = 0;
  Steps out;
  Index out_rows = 0, out_steps = 0, out_channels = 0;
};

inline constexpr int kMostReductions =
    kMaxInputs > kMaxNonlinearInputs ? kMaxInputs : kMaxNonlinearInputs;

/// Up to kMostReductions of them, in a fixed order and in double precision. Those that follow one
/// another and are alike share a launch. The error is as launch_clear's.
cudaError_t launch_reductions(const Reduction* reductions, int count, DType dtype,
                              cudaStream_t stream);

}  // namespace scanrnn::cuda
