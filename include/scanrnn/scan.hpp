// SPDX-License-Identifier: Apache-2.0
// The diagonal linear recurrence h_t = a_t h_{t-1} + x_t, and its gradients.
//
// Dtypes: f16, bf16, f32, f64, c64, c128; a, x, h share one. h0, dfinal and dh0 may have it or the
// accumulation dtype, which final_state always has. Every array may have any strides. Calls write
// into the caller's arrays and workspace and allocate nothing; arrays that are written must not
// overlap any other.
//
// Bits: the same inputs give the same bits, whatever the threads, the other rows of the batch and
// the run. There are two orders of merging, one for arrays whose steps lie side by side (and for
// very few channels), one for all others; between the two, as between instruction sets, the last
// bits differ.
//
// Accuracy: on the CPU at most twice a serial float32 loop's error against a loop in double
// precision. Measured on every instruction set of x86-64, with T = 20,000, inputs of one sign and
// of both, forward and backward, over gates from 0.9 to 1, constant ones (whose roundings are the
// same in every segment) and varying: with lanes as channels at most 1.3 times the loop's error,
// with steps as lanes at most 1.9; from 0.9999 on a quarter of it and less. Gains of segments are
// carried in double precision, those of complex64 too. On CUDA those of tiles, 256 steps and more,
// are right to half a unit in the last place, and rounded beyond. Measured there with constant
// gates, T up to 1,048,576 and a loop that rounds once a step: at most 1.5 times the loop's error
// from 0.99 to 0.999995 and at -0.9999, complex64 too. At 0.999999, where it counts how a tile's
// own gain is rounded, 2.1 with T = 262,144 and 2.9 with 1,048,576; complex64 has 2.0 on the unit
// circle. Arrays whose steps lie side by side have at most 1.4 everywhere. (Fused cells, whose
// gates vary, round gains more often.)
#pragma once

#include "scanrnn/error.hpp"
#include "scanrnn/types.hpp"

namespace scanrnn {

struct ScanForward {
  ConstArray<3> a;       ///< (B|1, T|1, D|1); axes of size 1 are broadcast
  ConstArray<3> x;       ///< (B,T,D)
  ConstArray<2> h0;      ///< (N,D), optional: 0
  Array<3> h;            ///< (B,T,D), written
  Array<2> final_state;  ///< (N,D), optional, written: the state after each sequence's last step
  Sequences sequences;
};

struct ScanBackward {
  ConstArray<3> a;       ///< as in forward
  ConstArray<3> h;       ///< (B,T,D), what forward wrote
  ConstArray<2> h0;      ///< (N,D), optional
  ConstArray<3> dh;      ///< (B,T,D), optional: 0
  ConstArray<2> dfinal;  ///< (N,D), optional: 0
  Array<3> da;           ///< a's shape, optional, written: summed over the axes of size 1
  Array<3> dx;           ///< (B,T,D), optional, written
  Array<2> dh0;          ///< (N,D), optional, written
  Sequences sequences;
  /// Complex gradients: true for the conjugated convention, g = dL/dRe + i dL/dIm, false for the
  /// transposed, its conjugate.
  bool conjugate = true;
};

/// Bytes of workspace that the call needs. Throws what the call would throw for its arguments.
std::size_t scan_forward_workspace_bytes(const ScanForward& call, const Target& target = {});
std::size_t scan_backward_workspace_bytes(const ScanBackward& call, const Target& target = {});

/// Throws InvalidArgument, InvalidType or DeviceError before anything is written.
void scan_forward(const ScanForward& call, Workspace workspace, const Target& target = {});
void scan_backward(const ScanBackward& call, Workspace workspace, const Target& target = {});

}  // namespace scanrnn
