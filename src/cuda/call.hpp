// SPDX-License-Identifier: Apache-2.0
// What calls of both kinds need of the host: errors, the current device, arguments as kernels want
// them, the parts of a workspace.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>

#include "common/backend.hpp"
#include "cuda/args.hpp"
#include "cuda/current_device.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn::cuda {

inline constexpr std::size_t kAlignment = 256;  // of the parts of a workspace

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr int log2_at_least(Index value) {
  int log2 = 0;
  while ((Index{1} << log2) < value) ++log2;
  return log2;
}

// --- errors ------------------------------------------------------------------------------------

inline std::string device_text(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return "cuda:" + std::to_string(device);
  }
  return "cuda:" + std::to_string(device) + " (" + properties.name + ", sm_" +
         std::to_string(properties.major) + std::to_string(properties.minor) + ")";
}

[[noreturn]] inline void fail(const char* call, const char* what, int device, cudaError_t error) {
  cudaGetLastError();  // errors that don't stick must not surface in somebody else's call
  std::string text = std::string(call) + ": " + what + " failed on " + device_text(device) + ": " +
                     cudaGetErrorString(error);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    text += std::string("; this build of scanrnn has code for ") + architectures();
  }
  throw DeviceError(text);
}

// --- devices -----------------------------------------------------------------------------------

inline constexpr int kMostDevices = 64;  // of those about which something is remembered

/// What a plan needs to know of a device. It can't change, so each device is asked once.
struct Properties {
  int major = 0;            ///< of the compute capability
  int multiprocessors = 1;  ///< at least
  int most_shared = 0;      ///< bytes of shared memory that a block may have

  static Properties of(int device) {
    static std::atomic<std::uint64_t> known[kMostDevices];  // all of them, 0: not yet
    const bool has_place = device >= 0 && device < kMostDevices;
    std::uint64_t all = has_place ? known[device].load(std::memory_order_relaxed) : 0;
    if (all == 0) {
      all = ask(cudaDevAttrComputeCapabilityMajor, device) << 48 |
            ask(cudaDevAttrMultiProcessorCount, device) << 32 |
            ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      if (has_place) known[device].store(all, std::memory_order_relaxed);
    }
    const int multiprocessors = static_cast<int>(all >> 32 & 0xffff);
    return {static_cast<int>(all >> 48), multiprocessors > 0 ? multiprocessors : 1,
            static_cast<int>(all & 0xffffffffu)};
  }

 private:
  static std::uint64_t ask(cudaDeviceAttr attribute, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) cudaGetLastError();
    return static_cast<std::uint64_t>(value);
  }
};

// --- arguments ---------------------------------------------------------------------------------

// Absent inputs are scalars of zero on the host, which no kernel may read.
template <class AnyProblem>
Steps steps_of(const AnyProblem& p, const ConstArray<3>& array, bool is_absent = false) {
  Steps s;
  if (is_absent || !array) return s;
  s.data = static_cast<char*>(const_cast<void*>(array.data));
  s.batch = array.stride[0];
  s.time = array.stride[1];
  s.channel = array.stride[2];
  s.wide = array.dtype != p.dtype;
  return s;
}

/// Extents and sequences, for kernels of either kind.
template <class AnyArgs>  // Args or SolveArgs
void set_extents(const ProblemExtents& p, AnyArgs& g) {
  g.batch = p.batch;
  g.time = p.time;
  g.channels = p.channels;
  g.sequences = p.sequences;
  const ConstArray<1>& index = p.layout.cu_seqlens ? p.layout.cu_seqlens : p.layout.lengths;
  (p.layout.cu_seqlens ? g.cu_seqlens : g.lengths) = index.data;
  g.index_is_64 = index.dtype == DType::i64;
  g.index_stride = index.stride[0];
  g.left_padded = p.layout.left_padded;
  g.reverse = p.layout.reverse;
  g.reset = static_cast<const unsigned char*>(p.layout.reset.data);
  g.reset_batch = p.layout.reset.stride[0];
  g.reset_time = p.layout.reset.stride[1];
}

template <class AnyProblem>
States states_of(const AnyProblem& p, const ConstArray<2>& array) {
  return {static_cast<char*>(const_cast<void*>(array.data)), array.stride[0], array.stride[1],
          array.dtype != p.dtype};
}

/// Where a plan of so many bytes, kAlignment of them to spare, starts in the caller's workspace.
inline char* start_of(const char* call, Workspace workspace, std::size_t bytes) {
  if (bytes > workspace.bytes || (bytes > 0 && workspace.data == nullptr)) {
    throw InvalidArgument(std::string(call) + ": workspace has " + std::to_string(workspace.bytes) +
                          " bytes, expected " + std::to_string(bytes));
  }
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(workspace.data);
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  return static_cast<char*>(workspace.data) + (aligned - address);
}

/// Whether a kernel can be started while the one before it still clears the workspace. A graph that
/// is being captured may be taken apart by its owner, and gets plain edges.
inline bool may_start_early(int device, cudaStream_t stream) {
  if (Properties::of(device).major < 9) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusNone;
}

}  // namespace scanrnn::cuda
