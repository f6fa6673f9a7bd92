// SPDX-License-Identifier: Apache-2.0
// The solver's constants.
#pragma once

#include <algorithm>

#include "common/solve_problem.hpp"
#include "cuda/args.hpp"

namespace scanrnn::cuda {

/// Threads of a block.
inline constexpr int kSolveThreads = 128;
/// Multiprocessors that a sequence should fill, where it is long enough: those of an H200. (On
/// other devices the same, so that results are.)
inline constexpr Index kMultiprocessors = 132;
/// A sequence of no more segments than this is run serially. (On an H200 at T = 640 and 1024, D =
/// 512, the LSTM's forward alone: 16 sequences 0.111 and 0.121 ms, serially 0.110 and 0.173.)
/// Sequences that have 32,768 channels together fill the device by themselves, and run serially in
/// 0.6 to 0.8 of the time (64, 1024, 512, one or two passes against serial: GRU 0.231 and 0.187 ms,
/// LSTM 0.396 and 0.229, SRU 0.328 and 0.223, IndRNN 0.136 and 0.088; with half the channels, 32,
/// 4096, 512: 0.372 and 0.579, 0.660 and 0.675, 0.572 and 0.590, 0.236 and 0.266). But a row has
/// the same bits in any batch, so how many there are must not matter.
inline constexpr Index kLeastSegments = 6;
inline constexpr Index kMostSegmentSteps = 1 << 30;
inline constexpr Index kMostUnits = 1 << 30;

/// Threads of a block of the serial kernel, whose warps want a multiprocessor each.
inline constexpr int kSerialThreads = 32;

/// The pass from which on a channel may be given up (gets_nowhere). Where all of it has no more
/// than so many segments for each pass, what is left is run serially in the time of some passes:
/// then sooner. (LSTM, uniform weights, biases 3 and 5, 600 channels each on the CPU: T = 4096 in
/// 32 segments, all of 15 and 191 channels that take more than 8 passes are found after 2, with 80
/// of 585 and 71 of 409 others; after 3, half of them. With default weights, and GRU and SRU: no
/// others. T = 65536, 196 segments: after 3 passes 22 of 34, after 4 32, no others; after 2 all,
/// but with others, and one is 10 ms. Passes of 32 channels together, one by one and with the
/// others of a warp in which one has more than half of its segments before it: at bias 5 5.7
/// and 2.0, T = 65536 7.3 and 3.0. On an H200 at 16, 4096, 512 the LSTM with these biases took 2.25
/// and 2.39 ms, after 2 passes 1.97 and 2.18, with a warp's others 1.34 and 1.34; serially 0.67.
/// After one pass nothing tells them apart: with weights and inputs uniform in [-1, 1], 400
/// channels each in 32 segments, 25 to 69% of the starts of those that take more than 8 move h by
/// more than 0.3 (bias 5: 34 to 75%), but more than 19% (25%) also in a quarter of the others, and
/// more than 31% in half of the channels of default weights and bias 5, all of which converge. Nor
/// do tangents: medians of 0.00 to 0.02 (bias 5: 0.2 to 1.2) against 0.2 to 0.6 with default
/// weights.)
inline constexpr int kSegmentsOfPass = 4;
SCANRNN_HD constexpr int patience(Index segments, int max_passes) {
  return segments <= kSegmentsOfPass * max_passes ? kPatience - 1 : kPatience;
}

// Backward, a segment's map may stop where its gain has vanished (below 2^-48), if what that leaves
// out is checked once states are known and made good. Tried, right, and mixed: float32 backward of
// 1, 65536, 512 with default weights 0.529 ms to 0.451 (GRU), 0.839 to 0.627 (LSTM), 0.629 to 0.546
// (SRU), 0.276 to 0.235 (IndRNN), with biases of 3 and 5 4 to 11% more: networks that remember pay
// for the check.

struct SolveSegment {
  Index steps;
  Index burn_in;  ///< steps that the next segment's start is guessed from
};

/// Segments as long as still fill the device with one sequence, since long ones need fewer passes
/// and their guesses less reading; `per` of them times all `groups` of channels make a unit each.
/// Packed sequences' lengths aren't known, and don't matter to one another.
constexpr SolveSegment solve_segment(Index time, Index groups, Index per, Index blocks,
                                     bool is_packed) {
  const Index least = 128, most = is_packed ? least : 1024;
  const Index units = std::max<Index>(1, kMultiprocessors * blocks / std::max<Index>(1, groups));
  const Index steps = (time + units * per - 1) / (units * per);
  const Index chosen = std::min(most, std::max(least, (steps + 7) / 8 * 8));
  return {chosen, std::min<Index>(64, std::max<Index>(32, chosen / 4))};
}

}  // namespace scanrnn::cuda
