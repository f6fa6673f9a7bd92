// SPDX-License-Identifier: Apache-2.0
// DEBUG_MERGE: what every merge of a scan did to the state. Present in every build so that programs
// link either way; in a build without DEBUG_MERGE the trace calls throw, and scans pay nothing.
//
// A merge joins two neighbouring segments. The state at the end of the later one is known before
// the merge as if nothing came before that segment, and after it as if nothing came before the pair
// (h0 counts, for a pair that starts the sequence). Going up the levels that state approaches the
// true one: how far it still is from a serial loop in double precision is the trace's second
// figure.
//
// On the CPU a merge at level l joins 2^l leaves of 32 steps with as many before them. On CUDA the
// levels are those of the kernel that the scan gets, from its leaves (a thread's steps: 8 where
// channels lie side by side, else 32, in 4-byte types) up:
//   lanes     within a warp: 1, 2, 4, ... leaves with as many before them or all there are. A level
//             has an event for each leaf, not for every second one: the lanes scan;
//   warps     within a block, in pairs; only where channels lie side by side and only of sequences
//             longer than a tile;
//   tiles     between blocks, by eights: a tile that is the last of 8, 64, ... with those before;
//   finish    the highest level, no merge: the state at each leaf's end after all that came before
//             it, which is what the scan returns.
// Where one thread runs the whole sequence the only levels are -1 and the finish, 0.
#pragma once

#include <cstdint>
#include <functional>

#include "scanrnn/scan.hpp"

namespace scanrnn {

struct MergeEvent {
  int level;              ///< 0 joins leaves; level -1 reports each leaf's own end
  std::int64_t sequence;  ///< n in [0, N)
  std::int64_t end;       ///< steps of the sequence up to and including the segment's last
  std::int64_t channel;   ///< d
  double change;          ///< |state after - state before|; 0 at level -1
  double serial_error;    ///< |state after - serial fp64 state at the same step|
};

bool merge_trace_built();

/// Runs `call` and reports every merge, in time order for each sequence and channel, from the
/// calling thread. It allocates, and on CUDA it waits for the stream. DeviceError in a build
/// without DEBUG_MERGE.
void trace_scan_merges(const ScanForward& call,
                       const std::function<void(const MergeEvent&)>& report,
                       const Target& target = {});

}  // namespace scanrnn
