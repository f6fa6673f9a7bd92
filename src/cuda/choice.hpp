// SPDX-License-Identifier: Apache-2.0
// Which short sequences one thread a channel is best for, with what was measured: one H200,
// float32, the serial kernel's time / that of rows or columns, the lowest of both passes and both
// layouts (tests/bench/RESULTS.md; B, D = 1,64 and 4,32 stand for few threads, 256,256 and 4096,16
// for many).
//
//   B, D       threads   T = 16   T = 33   T = 64   T = 128
//   1, 64           64     0.63     0.61     1.32      2.07
//   4, 32          128     0.65     0.69     1.53      2.65
//   1, 1024      1,024     0.66     0.95     1.31      2.38
//   64, 100      6,400     0.75     1.05     1.29      1.98
//   16, 512      8,192     0.71     1.02     1.25      1.98
//   256, 256    65,536     0.81     0.69     0.81      0.83
//   4096, 16    65,536     0.37     0.54     0.75      0.92
//
// Where steps lie side by side and threads are many, columns are best on their own: neighbouring
// threads read what lies far apart. The serial kernel's time / that of columns at 4096,16, forward
// and backward: 1.5, 1.8 (T = 33), 3.3, 6.0 (T = 64).
//
// run_ordered itself, serial's time / its own, [B,T,D], 65,536 threads, T = 33 and 64: 0.98 to 1.05
// forward, 1.3 to 1.6 backward. Forward was 0.7 to 0.75 as long as it read nothing ahead of the
// leaf that it ran and kept leaves' maps in places that depend on their number, which is local
// memory.
#pragma once

#include <cstdint>

namespace scanrnn::cuda {

/// Leaves of a sequence that run_ordered can take.
inline constexpr int kOrderedLeaves = 8;

/// The longest sequences, by the number of threads, that is sequences times channels: where
/// channels lie side by side and where steps do.
struct OrderedSteps {
  std::int64_t threads_below, rows, columns;
};
inline constexpr OrderedSteps kOrderedSteps[] = {
    {1024, 40, 40},
    {16384, 24, 24},
    {INT64_MAX, 64, 0},
};

constexpr bool is_ordered_best(std::int64_t threads, std::int64_t steps, bool in_columns) {
  for (const OrderedSteps& row : kOrderedSteps) {
    if (threads < row.threads_below) return steps <= (in_columns ? row.columns : row.rows);
  }
  return false;
}

}  // namespace scanrnn::cuda
