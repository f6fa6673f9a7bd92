// SPDX-License-Identifier: Apache-2.0
// The merge trace on the CPU: a scan on one thread, its tree observed.
#if defined(SCANRNN_DEBUG_MERGE)

#include "common/trace.hpp"

#include <algorithm>

#include "cpu/executor.hpp"

namespace scanrnn::cpu {
namespace {

using Index = std::int64_t;
using Value = MergeReport::Value;

class Tracer : public UnitObserver {
 public:
  Tracer(const Problem& problem, const std::function<void(const MergeEvent&)>& report)
      : is_complex_(problem.accumulation == DType::c64 || problem.accumulation == DType::c128),
        report_(problem, report) {}

  void enter(const Unit& unit) override {
    unit_ = unit;
    report_.enter(
        {unit.sequence, unit.row, unit.begin, unit.end, unit.first_channel, unit.channels});
  }
  void leaf(Index index, const void* a, const void* x) override {
    add(-1, index, 1, nullptr, a, x);
  }
  void merged(int level, Index index, const void* x_before, const void* a, const void* x) override {
    add(level, index, Index{2} << level, x_before, a, x);
  }

 private:
  // Maps are in double precision, whatever the scan's type.
  Value lane(const void* vector, Index d) const {
    const double* scalars = static_cast<const double*>(vector);
    return Value(scalars[d], is_complex_ ? scalars[unit_.plane + d] : 0);
  }

  // The segment of `leaves` leaves that ends with leaf `index`.
  void add(int level, Index index, Index leaves, const void* x_before, const void* a,
           const void* x) {
    const Index first = (index + 1 - leaves) * kLeafSteps;
    const Index end = std::min((index + 1) * kLeafSteps, unit_.end - unit_.begin);
    for (Index d = 0; d < unit_.channels; ++d) {
      Value before;
      if (x_before != nullptr) before = lane(x_before, d);
      report_.add(level, first, end, unit_.first_channel + d,
                  x_before != nullptr ? &before : nullptr, lane(a, d), lane(x, d));
    }
  }

  bool is_complex_;
  MergeReport report_;
  Unit unit_{};
};

}  // namespace

void trace(const Problem& problem, const std::function<void(const MergeEvent&)>& report) {
  const InstructionSet& set = instruction_set();
  Tracer tracer(problem, report);
  execute_observed(problem, kernels_of(problem, set), set, tracer);
}

}  // namespace scanrnn::cpu

#endif
