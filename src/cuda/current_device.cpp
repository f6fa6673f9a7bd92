// SPDX-License-Identifier: Apache-2.0
#include "cuda/current_device.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "scanrnn/error.hpp"

namespace scanrnn::cuda {
namespace {

/// Of the driver that the runtime has loaded: cuCtxGetCurrent and cuCtxSetCurrent, or none.
struct Driver {
  int (*get_context)(void** context) = nullptr;
  int (*set_context)(void* context) = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    void* get = dlsym(library, "cuCtxGetCurrent");
    void* set = dlsym(library, "cuCtxSetCurrent");
    if (get == nullptr || set == nullptr) return;
    get_context = reinterpret_cast<int (*)(void**)>(get);
    set_context = reinterpret_cast<int (*)(void*)>(set);
  }
};

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

}  // namespace

CurrentDevice::CurrentDevice(const char* call, int device) {
  cudaError_t error = cudaGetDevice(&former_);  // which loads the driver
  const Driver& d = driver();
  // A thread without a context has no current device yet, whatever cudaGetDevice says: to the
  // runtime of somebody else in the process it may be another one.
  bool has_context = true;
  if (error == cudaSuccess && d.get_context != nullptr) {
    has_context = d.get_context(&former_context_) == 0 && former_context_ != nullptr;
  }
  if (error == cudaSuccess && (!has_context || former_ != device)) {
    error = cudaSetDevice(device);
    changed_ = error == cudaSuccess;
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError(std::string(call) + ": no such device as cuda:" + std::to_string(device) +
                      ": " + cudaGetErrorString(error));
  }
}

CurrentDevice::~CurrentDevice() {
  if (!changed_) return;
  if (driver().set_context != nullptr) {
    driver().set_context(former_context_);
  } else {
    cudaSetDevice(former_);
  }
}

}  // namespace scanrnn::cuda
