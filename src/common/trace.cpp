// SPDX-License-Identifier: Apache-2.0
#include "scanrnn/trace.hpp"

#if !defined(SCANRNN_DEBUG_MERGE)

namespace scanrnn {

bool merge_trace_built() { return false; }

void trace_scan_merges(const ScanForward&, const std::function<void(const MergeEvent&)>&,
                       const Target&) {
  throw DeviceError(
      "merge_trace: this build has no merge trace; configure with -DDEBUG_MERGE=ON to get one");
}

}  // namespace scanrnn

#else

#include "common/scan_problem.hpp"
#include "common/trace.hpp"
#include "scanrnn/core/half.hpp"

namespace scanrnn {
namespace {

using Index = std::int64_t;
using Value = MergeReport::Value;

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

}  // namespace

void MergeReport::enter(const TracedPart& part) {
  part_ = part;
  const Index length = part.end - part.begin;
  serial_.resize(static_cast<std::size_t>(length * part.channels));
  initial_.resize(static_cast<std::size_t>(part.channels));
  for (Index d = 0; d < part.channels; ++d) {
    const Index channel = part.first_channel + d;
    Value state = 0;
    if (p_.initial) {
      const Index at = part.sequence * p_.initial.stride[0] + channel * p_.initial.stride[1];
      state = value_at(p_.initial.data, p_.initial.dtype, at);
    }
    initial_[static_cast<std::size_t>(d)] = state;
    for (Index step = 0; step < length; ++step) {
      const Index t = p_.layout.reverse ? part.end - 1 - step : part.begin + step;
      const auto read = [&](const ConstArray<3>& array) {
        const Index at =
            part.row * array.stride[0] + t * array.stride[1] + channel * array.stride[2];
        return value_at(array.data, array.dtype, at);
      };
      const ConstArray<2>& reset = p_.layout.reset;
      if (reset && static_cast<const std::uint8_t*>(
                       reset.data)[part.row * reset.stride[0] + t * reset.stride[1]] != 0) {
        state = 0;
      }
      state = read(p_.in[ScanCell::kA]) * state + read(p_.in[ScanCell::kX]);
      serial_[static_cast<std::size_t>(step * part.channels + d)] = state;
    }
  }
}

void MergeReport::add(int level, Index first, Index end, Index channel, const Value* before,
                      Value gain, Value state) {
  const Index d = channel - part_.first_channel;
  if (first == 0 && p_.initial && gain != 0.0) {
    state += gain * initial_[static_cast<std::size_t>(d)];
  }
  MergeEvent event;
  event.level = level;
  event.sequence = part_.sequence;
  event.end = end;
  event.channel = channel;
  event.change = before == nullptr ? 0 : std::abs(state - *before);
  event.serial_error =
      std::abs(state - serial_[static_cast<std::size_t>((end - 1) * part_.channels + d)]);
  report_(event);
}

bool merge_trace_built() { return true; }

void trace_scan_merges(const ScanForward& call,
                       const std::function<void(const MergeEvent&)>& report, const Target& target) {
  const ScanCell cell;
  const Problem problem = make_problem(call, cell, target.device);
  if (target.device == Device::cuda) {
    cuda::trace(problem, target, report);
  } else {
    cpu::trace(problem, report);
  }
}

}  // namespace scanrnn

#endif
