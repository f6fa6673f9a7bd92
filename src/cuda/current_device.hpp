// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace scanrnn::cuda {

/// Makes a device the current one for as long as it lives. What was current before is put back as
/// the driver had it: cudaSetDevice would make a context, and take memory, on a device that nobody
/// has used.
class CurrentDevice {
 public:
  /// DeviceError where there is no such device.
  CurrentDevice(const char* call, int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  void* former_context_ = nullptr;
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace scanrnn::cuda
