// SPDX-License-Identifier: Apache-2.0
// Scans host memory with the installed library, and checks the numbers by hand.
#include <scanrnn/scanrnn.hpp>

#include <cstdio>
#include <vector>

int main() {
  using scanrnn::DType;
  const float a[] = {0.5f, 0.0f, 2.0f, -1.0f};
  const float x[] = {1.0f, 2.0f, 3.0f, 4.0f};
  const float h0[] = {10.0f};
  const float expected[] = {6.0f, 2.0f, 7.0f, -3.0f};
  float h[4] = {};
  float last[1] = {};

  scanrnn::ScanForward call;
  call.a = {a, DType::f32, {1, 4, 1}, {4, 1, 1}};
  call.x = {x, DType::f32, {1, 4, 1}, {4, 1, 1}};
  call.h0 = {h0, DType::f32, {1, 1}, {1, 1}};
  call.h = {h, DType::f32, {1, 4, 1}, {4, 1, 1}};
  call.final_state = {last, DType::f32, {1, 1}, {1, 1}};
  std::vector<std::byte> workspace(scanrnn::scan_forward_workspace_bytes(call));
  scanrnn::scan_forward(call, {workspace.data(), workspace.size()});

  bool right = last[0] == expected[3];
  for (int t = 0; t < 4; ++t) right = right && h[t] == expected[t];

  // An error of the library arrives as the type that its header promises.
  bool threw = false;
  call.h0.shape[1] = 2;
  try {
    scanrnn::scan_forward(call, {workspace.data(), workspace.size()});
  } catch (const scanrnn::InvalidArgument& error) {
    threw = true;
    std::printf("as it should: %s\n", error.what());
  }

  std::printf("scanrnn %s on %s: h = %g %g %g %g\n", SCANRNN_VERSION_STRING, scanrnn::cpu_isa(),
              h[0], h[1], h[2], h[3]);
  return right && threw ? 0 : 1;
}
