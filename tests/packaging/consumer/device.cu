// SPDX-License-Identifier: Apache-2.0
// Scans device memory on a stream of its own, between kernels of its own, and checks the numbers by
// hand. Where there is no device, asking for one must say why.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <scanrnn/scanrnn.hpp>

namespace {

constexpr int kSteps = 1000, kChannels = 3;

bool failed(cudaError_t status, const char* what) {
  if (status != cudaSuccess) std::printf("%s: %s\n", what, cudaGetErrorString(status));
  return status != cudaSuccess;
}
#define RETURN_IF_FAILED(call) \
  if (failed(call, #call)) return 1

// h counts the steps, from 10 (d + 1) on.
__global__ void fill(float* a, float* x, float* h0) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kSteps * kChannels) a[i] = x[i] = 1;
  if (i < kChannels) h0[i] = 10.0f * (i + 1);
}

__global__ void count_wrong(const float* h, const float* last, int* wrong) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= kSteps * kChannels) return;
  const int t = i / kChannels, d = i % kChannels;
  const float expected = 10.0f * (d + 1) + (t + 1);
  if (h[i] != expected) atomicAdd(wrong, 1);
  if (t == kSteps - 1 && last[d] != expected) atomicAdd(wrong, 1);
}

int on_the_device() {
  using scanrnn::DType;
  cudaStream_t stream;
  RETURN_IF_FAILED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  constexpr size_t size = kSteps * kChannels * sizeof(float);
  float *a, *x, *h, *h0, *last;
  int* wrong;
  RETURN_IF_FAILED(cudaMallocAsync(&a, size, stream));
  RETURN_IF_FAILED(cudaMallocAsync(&x, size, stream));
  RETURN_IF_FAILED(cudaMallocAsync(&h, size, stream));
  RETURN_IF_FAILED(cudaMallocAsync(&h0, kChannels * sizeof(float), stream));
  RETURN_IF_FAILED(cudaMallocAsync(&last, kChannels * sizeof(float), stream));
  RETURN_IF_FAILED(cudaMallocAsync(&wrong, sizeof(int), stream));
  RETURN_IF_FAILED(cudaMemsetAsync(wrong, 0, sizeof(int), stream));

  scanrnn::ScanForward call;
  const scanrnn::Array<3> steps{
      a, DType::f32, {1, kSteps, kChannels}, {kSteps * kChannels, kChannels, 1}};
  const scanrnn::Array<2> states{h0, DType::f32, {1, kChannels}, {kChannels, 1}};
  call.a = call.x = call.h = steps;
  call.x.data = x;
  call.h.data = h;
  call.h0 = call.final_state = states;
  call.final_state.data = last;

  scanrnn::Target target{scanrnn::Device::cuda, 0, stream};
  RETURN_IF_FAILED(cudaGetDevice(&target.index));
  scanrnn::Workspace workspace;
  workspace.bytes = scanrnn::scan_forward_workspace_bytes(call, target);
  RETURN_IF_FAILED(cudaMallocAsync(&workspace.data, std::max<size_t>(workspace.bytes, 1), stream));

  constexpr int blocks = (kSteps * kChannels + 255) / 256;
  fill<<<blocks, 256, 0, stream>>>(a, x, h0);
  // What somebody has left for cudaGetLastError is none of the call's: it would throw.
  fill<<<1, 4096, 0, stream>>>(a, x, h0);
  scanrnn::scan_forward(call, workspace, target);
  (void)cudaGetLastError();
  count_wrong<<<blocks, 256, 0, stream>>>(h, last, wrong);

  int result = -1;
  RETURN_IF_FAILED(cudaMemcpyAsync(&result, wrong, sizeof(int), cudaMemcpyDefault, stream));
  for (void* memory :
       {static_cast<void*>(a), static_cast<void*>(x), static_cast<void*>(h), static_cast<void*>(h0),
        static_cast<void*>(last), static_cast<void*>(wrong), workspace.data}) {
    RETURN_IF_FAILED(cudaFreeAsync(memory, stream));
  }
  RETURN_IF_FAILED(cudaStreamSynchronize(stream));
  RETURN_IF_FAILED(cudaStreamDestroy(stream));
  std::printf("on the device: %d of %d states are wrong\n", result, kSteps * kChannels);
  return result == 0 ? 0 : 1;
}

int without_a_device() {
  float number = 1;
  scanrnn::ScanForward call;
  const scanrnn::Array<3> step{&number, scanrnn::DType::f32, {1, 1, 1}, {1, 1, 1}};
  call.a = call.x = call.h = step;
  scanrnn::Target target;
  target.device = scanrnn::Device::cuda;
  try {
    scanrnn::scan_forward_workspace_bytes(call, target);
    scanrnn::scan_forward(call, {}, target);
  } catch (const scanrnn::DeviceError& error) {
    std::printf("as it should without a device: %s\n", error.what());
    return 0;
  }
  std::printf("no device, and no error\n");
  return 1;
}

}  // namespace

int main() {
  std::printf("scanrnn %s, built for '%s'\n", SCANRNN_VERSION_STRING,
              scanrnn::cuda_architectures());
  return scanrnn::cuda_available() ? on_the_device() : without_a_device();
}
