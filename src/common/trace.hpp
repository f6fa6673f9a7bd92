// SPDX-License-Identifier: Apache-2.0
// DEBUG_MERGE: what the backends' merge traces share.
#pragma once

#include <complex>
#include <functional>
#include <vector>

#include "common/problem.hpp"
#include "scanrnn/trace.hpp"

namespace scanrnn {

/// Some channels of a sequence, which is steps [begin, end) of row `row` in memory.
struct TracedPart {
  std::int64_t sequence, row, begin, end;
  std::int64_t first_channel, channels;
};

/// Makes events of segments, by the states of a serial loop in double precision.
class MergeReport {
 public:
  using Value = std::complex<double>;

  /// Both must outlive the report; the problem's arrays lie on the host.
  MergeReport(const Problem& problem, const std::function<void(const MergeEvent&)>& report)
      : p_(problem), report_(report) {}

  /// Runs a part serially. What is added next belongs to it.
  void enter(const TracedPart& part);
  const TracedPart& part() const { return part_; }

  /// The map of the sequence's steps [first, end), for a channel of the part: h -> gain h + state.
  /// `before` is the state at `end` before the merge, absent where none was made.
  void add(int level, std::int64_t first, std::int64_t end, std::int64_t channel,
           const Value* before, Value gain, Value state);

 private:
  const Problem& p_;
  const std::function<void(const MergeEvent&)>& report_;
  TracedPart part_{};
  std::vector<Value> serial_;   // (steps, channels)
  std::vector<Value> initial_;  // (channels)
};

namespace cpu {
void trace(const Problem& problem, const std::function<void(const MergeEvent&)>& report);
}
namespace cuda {
void trace(const Problem& problem, const Target& target,
           const std::function<void(const MergeEvent&)>& report);
}

}  // namespace scanrnn
