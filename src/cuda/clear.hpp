// SPDX-License-Identifier: Apache-2.0
// Zeroes the part of a workspace that tiles exchange through.
#pragma once

#include <driver_types.h>

#include <cstddef>

namespace scanrnn::cuda {

/// `bytes` is a multiple of 16. A kernel that is launched behind this one with programmatic stream
/// serialization may start while it runs, and waits for it by await_clearing().
cudaError_t launch_clear(void* data, std::size_t bytes, cudaStream_t stream);

}  // namespace scanrnn::cuda
