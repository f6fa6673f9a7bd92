// SPDX-License-Identifier: Apache-2.0
// Where the tests' calls run: on the CPU. tests/gpu has the header of the same name that runs them
// on a GPU; a program's include path chooses.
#pragma once

#include <memory>
#include <vector>

#include "scanrnn/scanrnn.hpp"

namespace test {

inline constexpr bool kOnGpu = false;
inline const scanrnn::Target kTarget{};

/// Of arrays that calls read and write.
template <class T>
using Allocator = std::allocator<T>;

/// A call's workspace: exactly the bytes asked for, and not zero.
class Lent {
 public:
  explicit Lent(std::size_t bytes) : memory_(bytes, 0xff) {}
  scanrnn::Workspace workspace() { return {memory_.data(), memory_.size()}; }

  /// Runs a call to its end.
  template <class Function, class Call>
  void run(Function* function, const Call& call) {
    function(call, workspace(), kTarget);
  }

 private:
  std::vector<unsigned char> memory_;
};

/// Whether the call leads to steps lying side by side, in which case it gives other bits.
template <class View>
bool time_is_contiguous(const View& view) {
  return view.shape[2] > 1 && view.stride[2] != 1 && (view.stride[1] == 1 || view.stride[1] == -1);
}

}  // namespace test
