// SPDX-License-Identifier: Apache-2.0
// Where the tests' calls run: on a GPU. Arrays lie in host memory that the device reads and writes
// in place, so that the tests of the CPU serve unchanged; the workspace lies on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "scanrnn/scanrnn.hpp"

namespace test {

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

inline constexpr bool kOnGpu = true;
inline const scanrnn::Target kTarget{scanrnn::Device::cuda, 0, nullptr};

/// Blocks of pinned memory, kept for the next one who wants as much: pinning takes long.
class Pinned {
 public:
  static void* take(std::size_t bytes) {
    std::size_t size = 256;
    while (size < bytes) size *= 2;
    auto& blocks = free_blocks()[size];
    if (blocks.empty()) {
      const std::size_t count = size < (1u << 20) ? (1u << 20) / size : 1;
      void* memory = nullptr;
      require(cudaHostAlloc(&memory, size * count, cudaHostAllocMapped), "pinned memory");
      for (std::size_t i = 0; i < count; ++i) {
        blocks.push_back(static_cast<char*>(memory) + i * size);
      }
    }
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  static void give_back(void* block, std::size_t bytes) {
    std::size_t size = 256;
    while (size < bytes) size *= 2;
    free_blocks()[size].push_back(block);
  }

 private:
  static std::map<std::size_t, std::vector<void*>>& free_blocks() {
    static auto* blocks = new std::map<std::size_t, std::vector<void*>>;
    return *blocks;
  }
};

template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(Pinned::take(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) { Pinned::give_back(p, n * sizeof(T)); }
  template <class U>
  bool operator==(const Allocator<U>&) const {
    return true;
  }
  template <class U>
  bool operator!=(const Allocator<U>&) const {
    return false;
  }
};

/// A call's workspace: exactly the bytes asked for, and not zero.
class Lent {
 public:
  explicit Lent(std::size_t bytes) : bytes_(bytes) {
    static void* memory = nullptr;
    static std::size_t most = 0;
    if (bytes > most) {
      if (memory != nullptr) require(cudaFree(memory), "cudaFree");
      most = bytes + (16u << 20);
      require(cudaMalloc(&memory, most), "workspace");
    }
    memory_ = static_cast<char*>(memory);
    require(cudaMemset(memory_, 0xff, bytes), "workspace");
  }
  scanrnn::Workspace workspace() { return {bytes_ > 0 ? memory_ : nullptr, bytes_}; }

  /// Runs a call to its end.
  template <class Function, class Call>
  void run(Function* function, const Call& call) {
    function(call, workspace(), kTarget);
    require(cudaDeviceSynchronize(), "the call");
  }

 private:
  char* memory_ = nullptr;
  std::size_t bytes_;
};

/// Whether the call leads to steps lying side by side, in which case it gives other bits.
template <class View>
bool time_is_contiguous(const View& view) {
  if (view.shape[2] == 1) return true;
  if (view.stride[2] == 1 || view.shape[1] <= 1) return false;
  return std::abs(view.stride[1]) < std::abs(view.stride[2]);
}

}  // namespace test
