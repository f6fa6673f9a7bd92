// SPDX-License-Identifier: Apache-2.0
// Markers that let one definition serve the host and the device.
#pragma once

#if defined(__CUDACC__)
#define SCANRNN_HD __host__ __device__ __forceinline__
#else
// Forced: the CPU backend compiles these headers once per instruction set, and an out-of-line copy
// built for a newer set must never be the one that the linker keeps.
#define SCANRNN_HD inline __attribute__((always_inline))
#endif

namespace scanrnn {

/// Steps that one worker runs serially before maps are merged: the leaves of the tree. At most 32.
inline constexpr int kLeafSteps = 32;

}  // namespace scanrnn
