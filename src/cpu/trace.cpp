// SPDX-License-Identifier: Apache-2.0
// The merge trace: a scan on one thread, its tree observed.
#include "scanrnn/trace.hpp"

#if !defined(SCANRNN_DEBUG_MERGE)

namespace scanrnn {

bool merge_trace_built() { return false; }

void trace_scan_merges(const ScanForward&, const std::function<void(const MergeEvent&)>&) {
  throw DeviceError(
      "merge_trace: this build has no merge trace; configure with -DDEBUG_MERGE=ON to get one");
}

}  // namespace scanrnn

#else

#include <algorithm>
#include <complex>
#include <vector>

#include "common/scan_problem.hpp"
#include "cpu/executor.hpp"
#include "scanrnn/core/half.hpp"

namespace scanrnn {
namespace {

using Index = std::int64_t;
using Value = std::complex<double>;

Value value_at(const void* data, DType dtype, Index at) {
  switch (dtype) {
    case DType::f16:
      return to_float(static_cast<const Half*>(data)[at]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(data)[at]);
    case DType::f32:
      return static_cast<const float*>(data)[at];
    case DType::f64:
      return static_cast<const double*>(data)[at];
    case DType::c64:
      return Value(static_cast<const std::complex<float>*>(data)[at]);
    default:
      return static_cast<const std::complex<double>*>(data)[at];
  }
}

class Tracer : public cpu::UnitObserver {
 public:
  Tracer(const Problem& problem, const std::function<void(const MergeEvent&)>& report)
      : p_(problem), report_(report) {}

  void enter(const cpu::Unit& unit) override {
    unit_ = unit;
    length_ = unit.end - unit.begin;
    serial_.resize(static_cast<std::size_t>(length_ * unit.channels));
    initial_.resize(static_cast<std::size_t>(unit.channels));
    for (Index d = 0; d < unit.channels; ++d) {
      const Index channel = unit.first_channel + d;
      Value state = 0;
      if (p_.initial) {
        const Index at = unit.sequence * p_.initial.stride[0] + channel * p_.initial.stride[1];
        state = value_at(p_.initial.data, p_.initial.dtype, at);
      }
      initial_[static_cast<std::size_t>(d)] = state;
      for (Index step = 0; step < length_; ++step) {
        const Index t = p_.layout.reverse ? unit.end - 1 - step : unit.begin + step;
        const auto read = [&](const ConstArray<3>& array) {
          const Index at =
              unit.row * array.stride[0] + t * array.stride[1] + channel * array.stride[2];
          return value_at(array.data, array.dtype, at);
        };
        const ConstArray<2>& reset = p_.layout.reset;
        if (reset && static_cast<const std::uint8_t*>(
                         reset.data)[unit.row * reset.stride[0] + t * reset.stride[1]] != 0) {
          state = 0;
        }
        state = read(p_.in[ScanCell::kA]) * state + read(p_.in[ScanCell::kX]);
        serial_[static_cast<std::size_t>(step * unit.channels + d)] = state;
      }
    }
  }

  void leaf(Index index, const void* a, const void* x) override {
    report(-1, index, 1, nullptr, a, x);
  }

  void merged(int level, Index index, const void* x_before, const void* a, const void* x) override {
    report(level, index, Index{2} << level, x_before, a, x);
  }

 private:
  // Maps are in double precision, whatever the scan's type.
  Value lane(const void* vector, Index d) const {
    const bool imaginary = p_.accumulation == DType::c64 || p_.accumulation == DType::c128;
    const double* scalars = static_cast<const double*>(vector);
    return Value(scalars[d], imaginary ? scalars[unit_.plane + d] : 0);
  }

  // The segment of `leaves` leaves that ends with leaf `index`.
  void report(int level, Index index, Index leaves, const void* x_before, const void* a,
              const void* x) {
    const Index end = std::min((index + 1) * kLeafSteps, length_);
    const bool from_start = index + 1 == leaves;
    for (Index d = 0; d < unit_.channels; ++d) {
      Value after = lane(x, d);
      if (from_start && p_.initial) after += lane(a, d) * initial_[static_cast<std::size_t>(d)];
      const Value serial = serial_[static_cast<std::size_t>((end - 1) * unit_.channels + d)];
      MergeEvent event;
      event.level = level;
      event.sequence = unit_.sequence;
      event.end = end;
      event.channel = unit_.first_channel + d;
      event.change = x_before == nullptr ? 0 : std::abs(after - lane(x_before, d));
      event.serial_error = std::abs(after - serial);
      report_(event);
    }
  }

  const Problem& p_;
  const std::function<void(const MergeEvent&)>& report_;
  cpu::Unit unit_{};
  Index length_ = 0;
  std::vector<Value> serial_;   // (steps, channels)
  std::vector<Value> initial_;  // (channels)
};

}  // namespace

bool merge_trace_built() { return true; }

void trace_scan_merges(const ScanForward& call,
                       const std::function<void(const MergeEvent&)>& report) {
  const ScanCell cell;
  const Problem problem = make_problem(call, cell, Device::cpu);
  const cpu::InstructionSet& set = cpu::instruction_set();
  Tracer tracer(problem, report);
  cpu::execute_observed(problem, cpu::kernels_of(problem, set), set, tracer);
}

}  // namespace scanrnn

#endif
