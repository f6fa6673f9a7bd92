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
/// 512, the LSTM's forward alone: 16 sequences 0.111 and 0.121 ms, serially 0.110 and 0.173; 64
/// sequences at 1024 0.400 ms, serially 0.231. How many there are must not matter.)
inline constexpr Index kLeastSegments = 6;
/// Sequences are run serially where that many channels of them are: they fill the device.
inline constexpr Index kManyChannels = 16384;
inline constexpr Index kMostSegmentSteps = 1 << 30;
inline constexpr Index kMostUnits = 1 << 30;

/// Threads of a block of the serial kernel, whose warps want a multiprocessor each.
inline constexpr int kSerialThreads = 32;

/// The pass from which on a channel may be given up (gets_nowhere). Where all of it has no more than
/// so many segments for each pass, what is left is run serially in the time of some passes: then
/// sooner.
inline constexpr int kSegmentsOfPass = 4;
SCANRNN_HD constexpr int patience(Index segments, int max_passes) {
  return segments <= kSegmentsOfPass * max_passes ? kPatience - 1 : kPatience;
}

/// Each so many steps a segment's tangent is looked at, and its adjoint's gain from the other side:
/// whether they are so small that the rest needs none. A tangent next to the tolerance; an adjoint
/// next to rounding, with room for adjoints that are much smaller behind: where that isn't enough,
/// segments run again.
inline constexpr int kTangentSteps = 16;
inline constexpr int kMostPieces = 255;  // a byte
template <class A>
struct Vanished {
  static constexpr A kTangent = A(sizeof(A) == 8 ? 0x1p-60 : 0x1p-30);
  static constexpr A kAdjoint = A(sizeof(A) == 8 ? 0x1p-88 : 0x1p-44);
  static constexpr A kRounding = A(sizeof(A) == 8 ? 0x1p-53 : 0x1p-24);
};

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
