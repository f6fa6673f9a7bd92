// SPDX-License-Identifier: Apache-2.0
#include "cuda/clear.hpp"

#include "cuda/device.cuh"

namespace scanrnn::cuda {
namespace {

constexpr int kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    clear(unsigned* ticket, uint4* nodes, std::size_t count) {
  start_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *ticket = 0;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x; i < count;
       i += gridDim.x * static_cast<std::size_t>(kThreads)) {
    nodes[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
}

}  // namespace

cudaError_t launch_clear(unsigned* ticket, void* nodes, std::size_t node_bytes,
                         cudaStream_t stream) {
  const std::size_t count = node_bytes / sizeof(uint4);
  const std::size_t blocks = (count + kThreads - 1) / kThreads;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  launch.blockDim = dim3(kThreads);
  launch.stream = stream;
  return cudaLaunchKernelEx(&launch, clear, ticket, static_cast<uint4*>(nodes), count);
}

}  // namespace scanrnn::cuda
