// SPDX-License-Identifier: Apache-2.0
// The merge trace: how many merges a level has, what they change, and how far they stay from a
// serial loop. Without DEBUG_MERGE: that it says so.
#include <algorithm>
#include <map>
#include <tuple>

#include "arrays.hpp"

using namespace test;
using namespace scanrnn;

namespace {

struct Job {
  Plane plane;
  Tensor a, x, h0, h;
  ScanForward call;

  Job(Random& random, DType dtype, Plane where, Index channels, double gate, bool with_h0)
      : plane(std::move(where)) {
    a = Tensor::input(dtype, plane.batch, plane.time, channels);
    x = Tensor::input(dtype, plane.batch, plane.time, channels);
    h = Tensor::output(dtype, plane.batch, plane.time, channels);
    a.fill([&] { return Value{gate * random.uniform(0.99, 1), 0}; });
    x.fill([&] {
      return Value{random.uniform(-1, 1), is_complex(dtype) ? random.uniform(-1, 1) : 0};
    });
    if (with_h0) {
      h0 = Tensor::input(dtype, 1, plane.sequences(), channels);
      h0.fill([&] { return Value{random.uniform(-1, 1), 0}; });
    }
    call.a = a.in<3>();
    call.x = x.in<3>();
    call.h0 = h0.in<2>();
    call.h = h.out<3>();
  }
  Job(const Job&) = delete;

  std::vector<MergeEvent> trace() {
    Random random(7);
    const PlaneArrays arrays(plane, random);
    call.sequences = arrays.view;
    std::vector<MergeEvent> events;
    trace_scan_merges(call, [&](const MergeEvent& event) { events.push_back(event); });
    call.sequences = {};
    return events;
  }
};

Plane plain(Index batch, Index time) {
  Plane plane;
  plane.batch = batch;
  plane.time = time;
  return plane;
}

}  // namespace

CASE(without_it_a_build_says_so) {
  if (merge_trace_built()) skip("this build has it");
  Random random;
  Job job(random, DType::f32, plain(1, 10), 1, 0.9, false);
  CHECK_THROWS(
      job.trace(), DeviceError,
      "merge_trace: this build has no merge trace; configure with -DDEBUG_MERGE=ON to get one");
  CHECK(job.h.untouched());
}

CASE(every_merge_is_reported_once) {
  if (!merge_trace_built()) skip("built without DEBUG_MERGE");
  const Settings settings;
  Random random;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const Index time : {1, 32, 33, 64, 1000, 5000}) {
      for (const Index channels : {1, 3, 40}) {
        Plane plane = plain(1, time);
        if (time == 1000) plane.offsets = {0, 0, 33, 100, 1000};
        if (time == 64) plane.lengths = {50};
        plane.reverse = time == 33;
        Job job(random, DType::f32, plane, channels, 0.9, true);
        const Note note("T=" + std::to_string(time) + " D=" + std::to_string(channels));
        std::map<std::tuple<Index, Index, int>, Index> counts;  // of (sequence, channel, level)
        std::map<std::tuple<Index, Index>, Index> ends;
        for (const MergeEvent& event : job.trace()) {
          ++counts[{event.sequence, event.channel, event.level}];
          Index& end = ends[{event.sequence, event.channel}];
          CHECK(event.end >= end);  // in the order of time
          end = event.end;
          CHECK(event.end % 32 == 0 || event.level < 0 || event.end > 32);
          if (event.level < 0) CHECK_EQUAL(event.change, 0.0);
        }
        for (Index n = 0; n < plane.sequences(); ++n) {
          const Index length = plane.span(n).end - plane.span(n).begin;
          const Index leaves = (length + 31) / 32;
          for (Index d = 0; d < channels; ++d) {
            CHECK_EQUAL((counts[{n, d, -1}]), leaves);
            for (int level = 0; level < 10; ++level) {
              CHECK_EQUAL((counts[{n, d, level}]), leaves >> (level + 1));
            }
            CHECK_EQUAL((ends[{n, d}]), length);
          }
        }
      }
    }
  }
}

// Going up, states change less and less where gates are below 1, and arrive at the serial ones.
CASE(states_converge_up_the_tree) {
  if (!merge_trace_built()) skip("built without DEBUG_MERGE");
  Random random;
  for (const DType dtype : {DType::f32, DType::f64, DType::c64, DType::bf16}) {
    for (const bool with_h0 : {false, true}) {
      Job job(random, dtype, plain(2, 4096), 5, 0.97, with_h0);
      const Note note(name_of(dtype));
      std::map<int, double> change, error;
      double error_from_start = 0;
      for (const MergeEvent& event : job.trace()) {
        change[event.level] = std::max(change[event.level], event.change);
        error[event.level] = std::max(error[event.level], event.serial_error);
        if (event.level >= 0 && event.end == Index{64}
                                                 << event.level) {  // the pair starts the sequence
          error_from_start = std::max(error_from_start, event.serial_error);
        }
      }
      const double rounding = epsilon_of(dtype) * 1000;
      CHECK(error_from_start <= rounding);
      CHECK(change[0] > 1e-3);
      CHECK(error[-1] > 1e-2);
      for (int level = 0; level + 1 < 7; ++level)
        CHECK(change[level + 1] <= change[level] + rounding);
      CHECK(error[6] <= rounding);  // the root
    }
  }
}

// With gates that never shrink, a merge changes a state by all that came before its segment.
CASE(changes_are_what_came_before) {
  if (!merge_trace_built()) skip("built without DEBUG_MERGE");
  Random random;
  Job job(random, DType::f64, plain(1, 128), 1, 1, false);
  job.a.fill([] { return Value{1, 0}; });
  job.x.fill([] { return Value{1, 0}; });
  const std::vector<MergeEvent> events = job.trace();
  CHECK_EQUAL(events.size(), std::size_t{7});
  for (const MergeEvent& event : events) {
    CHECK_EQUAL(event.change,
                event.level < 0 ? 0.0 : static_cast<double>(Index{32} << event.level));
    const Index known = event.level < 0 ? 32 : Index{64} << event.level;
    CHECK_EQUAL(event.serial_error, static_cast<double>(event.end - known));
  }
}

CASE(a_device_needs_its_backend) {
  if (!merge_trace_built()) skip("built without DEBUG_MERGE");
  if (cuda_architectures()[0] != 0) skip("built with the CUDA backend");
  Random random;
  Job job(random, DType::f32, plain(1, 10), 2, 0.9, false);
  CHECK_THROWS(trace_scan_merges(job.call, [](const MergeEvent&) {}, {Device::cuda, 0, nullptr}),
               DeviceError, cuda_unavailable_reason());
  CHECK(job.h.untouched());
}

CASE(what_is_wrong_with_arguments_is_said) {
  if (!merge_trace_built()) skip("built without DEBUG_MERGE");
  Random random;
  Job job(random, DType::f32, plain(1, 10), 2, 0.9, true);
  job.call.h0.shape[1] = 3;
  CHECK_THROWS(job.trace(), InvalidArgument, "scan: h0 has shape (1, 3), expected (1, 2)");
  CHECK(job.h.untouched());
}

TEST_MAIN()
