// SPDX-License-Identifier: Apache-2.0
// The solver's constants.
#pragma once

#include <algorithm>

#include "cuda/args.hpp"

namespace scanrnn::cuda {

/// Threads of a block.
inline constexpr int kSolveThreads = 128;
/// Threads that a sequence should have at least, where it is long enough: those of an H200.
inline constexpr Index kSequenceThreads = 1 << 17;
/// A sequence of no more segments than this is run serially.
inline constexpr Index kLeastSegments = 2;
inline constexpr Index kMostSegmentSteps = 1 << 30;
inline constexpr Index kMostUnits = 1 << 30;

struct SolveSegment {
  Index steps;
  Index burn_in;  ///< steps that the next segment's start is guessed from
};

/// As long as still gives a sequence enough threads, since long segments need fewer passes and
/// their guesses less reading. Packed sequences' lengths aren't known, and one segment's length
/// serves them all. Backward guesses nothing, and has more, shorter ones.
constexpr SolveSegment solve_segment(Index time, Index channels, bool is_packed, bool is_backward) {
  const Index least = is_packed ? 128 : (time < 2048 ? 64 : 128);
  const Index most = is_packed || is_backward ? 128 : 1024;
  Index steps = least;
  while (steps < most && time / steps * channels > kSequenceThreads) steps *= 2;
  return {steps, std::min<Index>(64, std::max<Index>(32, steps / 4))};
}

}  // namespace scanrnn::cuda
