// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/trace.hpp"

namespace scanrnn {

bool merge_trace_built() {
#if defined(SCANRNN_DEBUG_MERGE)
  return true;
#else
  return false;
#endif
}

#if !defined(SCANRNN_DEBUG_MERGE)
void trace_scan_merges(const ScanForward&, const std::function<void(const MergeEvent&)>&) {
  throw DeviceError(
      "merge_trace: this build has no merge trace; configure with -DDEBUG_MERGE=ON to get one");
}
#endif

}  // namespace scanrnn
