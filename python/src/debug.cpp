// SPDX-License-Identifier: Apache-2.0
// The merge trace, summed up by level.
#include <algorithm>
#include <cmath>
#include <map>

#include "descriptor.hpp"

namespace scanrnn::python {
namespace {

struct Level {
  std::int64_t merges = 0;
  double change = 0;
  double serial_error = 0;
};

// NaN counts as the largest, so that it can't hide.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

nb::list merge_trace(nb::handle a, nb::handle x, nb::handle h0, nb::handle h, bool reverse,
                     std::uintptr_t stream) {
  Arguments args;
  ScanForward call;
  call.x = args.input<3>(x, "x");
  call.a = args.input<3>(a, "a");
  call.h0 = args.input<2>(h0, "h0");
  call.h = args.output<3>(h, "h");
  call.sequences.reverse = reverse;
  std::map<int, Level> levels;
  const auto add = [&](const MergeEvent& event) {
    Level& level = levels[event.level];
    ++level.merges;
    level.change = larger(event.change, level.change);
    level.serial_error = larger(event.serial_error, level.serial_error);
  };
  without_gil([&] { trace_scan_merges(call, add, args.target(stream)); });
  nb::list rows;
  for (const auto& [level, stats] : levels) {
    rows.append(nb::make_tuple(level, stats.merges, stats.change, stats.serial_error));
  }
  return rows;
}

}  // namespace

void bind_debug(nb::module_& m) {
  m.def("merge_trace", &merge_trace, nb::arg("a"), nb::arg("x"), nb::arg("h0").none(), nb::arg("h"),
        nb::arg("reverse") = false, nb::arg("stream") = 0);
}

}  // namespace scanrnn::python
