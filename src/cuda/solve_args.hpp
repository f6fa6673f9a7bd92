// SPDX-License-Identifier: Apache-2.0
// What the solver's kernels are told about a call: plain data, the same on host and device.
#pragma once

#include "cuda/args.hpp"
#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn::cuda {

/// A (B,T,D) array. Strides count bytes; without data every element reads as 0.
struct StepArray {
  char* data = nullptr;
  Index batch = 0, time = 0, channel = 0;
  Index next = 0;     ///< from a step to the next that the kernel runs
  bool wide = false;  ///< of the accumulation type, whatever the call's dtype: only vectors
};

/// Work is cut into units: `per` segments of a sequence times `across` channels, a thread each.
/// Segments are numbered in forward's order. A "group" is the units of a sequence that share their
/// channels.
struct SolveArgs {
  StepArray in[kMaxNonlinearInputs];
  StepArray out, kept;           ///< forward
  StepArray states[kMaxStates];  ///< backward: what forward wrote
  StepArray dy;
  StepArray din[kMaxNonlinearInputs];
  States initial[kMaxStates];
  States enter[kMaxStates];  ///< backward: dfinal
  States leave[kMaxStates];  ///< the final state, or dinitial
  double* report = nullptr;  ///< (N, SolveReport::kColumns)

  Index batch = 0, time = 0, channels = 0, sequences = 0;
  const void* cu_seqlens = nullptr;
  const void* lengths = nullptr;
  Index index_stride = 0;
  bool index_is_64 = false;
  bool left_padded = false;
  bool reverse = false;
  const unsigned char* reset = nullptr;
  Index reset_batch = 0, reset_time = 0, reset_next = 0;

  Index segment = 1;    ///< steps of a segment
  int burn_in = 0;      ///< steps that a start is guessed from
  int across_log2 = 0;  ///< channels of a unit
  int groups = 1;       ///< of channels
  Index chunks = 1;     ///< units of a group; where packed: at most
  Index units = 0;      ///< of all groups, at most
  Index items = 0;      ///< segments of all sequences, at most
  Index pitch = 0;      ///< channels, rounded up to whole groups
  double tolerance = 0;
  double bound[kMaxStates] = {};
  int max_passes = 0;

  // The workspace. Cleared: the ticket to 0, the others to all ones, which is -1 to those who
  // count.
  unsigned* ticket = nullptr;
  unsigned* queue_tail = nullptr;
  unsigned* finished = nullptr;     ///< runs of units that have ended
  unsigned* arrived = nullptr;      ///< (N, groups) units of the group that are through
  unsigned* groups_done = nullptr;  ///< (N)
  unsigned* dirty = nullptr;        ///< (units) the pass that a unit has to run again in
  unsigned* queue = nullptr;        ///< (units) those that are to run again, a ring
  // Not cleared.
  unsigned* expected = nullptr;    ///< (N, groups) units that the group waits for
  unsigned* pass = nullptr;        ///< (N, groups)
  char* start = nullptr;           ///< (items, states, pitch); backward: what enters a segment
  char* end = nullptr;             ///< (items, states, pitch)
  char* gain = nullptr;            ///< (items, states^2, pitch): a segment's tangent or adjoint
  unsigned char* moved = nullptr;  ///< (items, pitch)
  /// (N, 2, pitch) a channel's segments that moved in the last pass, and its largest increment
  char* progress = nullptr;
  int* fell_back = nullptr;   ///< (N, pitch) the segment from which a channel is run serially
  double* partial = nullptr;  ///< (N, groups, SolveReport::kColumns)
  char* sums = nullptr;       ///< (slots, items, pitch) gradients of vector inputs
  signed char sum_slot[kMaxNonlinearInputs];  ///< or -1
};

}  // namespace scanrnn::cuda
