// SPDX-License-Identifier: Apache-2.0
// Clears the part of a workspace that tiles exchange through.
#pragma once

#include <driver_types.h>

#include <cstddef>

namespace scanrnn::cuda {

/// Sets the ticket to zero and all bits of the nodes, a multiple of 16 bytes of them. A kernel that
/// is launched behind this one with programmatic stream serialization may start while it runs, and
/// waits for it by await_clearing(). The error is that of the launch, not one that somebody before
/// has left for cudaGetLastError.
cudaError_t launch_clear(unsigned* ticket, void* nodes, std::size_t node_bytes,
                         cudaStream_t stream);

}  // namespace scanrnn::cuda
