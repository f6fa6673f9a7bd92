// SPDX-License-Identifier: Apache-2.0
#include "cuda/clear.hpp"

#include "cuda/device.cuh"

namespace scanrnn::cuda {
namespace {

constexpr int kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads) clear(uint4* data, std::size_t count) {
  start_dependents();
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x; i < count;
       i += gridDim.x * static_cast<std::size_t>(kThreads)) {
    data[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace

cudaError_t launch_clear(void* data, std::size_t bytes, cudaStream_t stream) {
  const std::size_t count = bytes / sizeof(uint4);
  const std::size_t blocks = (count + kThreads - 1) / kThreads;
  clear<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
          stream>>>(static_cast<uint4*>(data), count);
  return cudaGetLastError();
}

}  // namespace scanrnn::cuda
