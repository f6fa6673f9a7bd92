// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "scanrnn/error.hpp"

namespace scanrnn::cuda {

/// Makes a device the current one for as long as it lives.
class CurrentDevice {
 public:
  CurrentDevice(const char* call, int device) {
    cudaError_t error = cudaGetDevice(&former_);
    if (error == cudaSuccess && former_ != device) {
      error = cudaSetDevice(device);
      changed_ = error == cudaSuccess;
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      throw DeviceError(std::string(call) + ": no such device as cuda:" + std::to_string(device) +
                        ": " + cudaGetErrorString(error));
    }
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(former_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace scanrnn::cuda
