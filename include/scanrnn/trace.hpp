// SPDX-License-Identifier: Apache-2.0
// DEBUG_MERGE: what every merge of a scan did to the state. Present in every build so that programs
// link either way; in a build without DEBUG_MERGE the trace calls throw, and scans pay nothing.
//
// A merge at level l joins two neighbouring segments of 2^l leaves. The state at the end of the
// later one is known before the merge as if nothing came before that segment, and after it as if
// nothing came before the pair (h0 counts, for a pair that starts the sequence). Going up the
// levels that state approaches the true one: how far it still is from a serial loop in double
// precision is the trace's second figure.
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

/// Runs `call` on the CPU and reports every merge, in time order for each sequence and channel,
/// from the calling thread. DeviceError in a build without DEBUG_MERGE.
void trace_scan_merges(const ScanForward& call,
                       const std::function<void(const MergeEvent&)>& report);

}  // namespace scanrnn
