// SPDX-License-Identifier: Apache-2.0
// Who runs short sequences of the scan, with what was measured: one H200, cold L2.
//
// One thread a channel in the order of the tree (run_ordered): its time / that of one serial
// thread, and / that of tiles. B, D = 1,64 stand for few threads, 16,512 for some, 256,256 and
// 4096,16, whose rows are half a line, for many. float32, forward and backward:
//
//   [B,T,D]         T = 16        33            64            128           256
//   1,64    serial  0.92, 0.58    0.81, 0.41    0.69, 0.30    0.63, 0.26    0.58, 0.23
//           tiles   0.73, 0.72    0.95, 1.03    1.23, 1.36    1.83, 1.95    4.13, 4.75
//   16,512  serial  0.95, 0.54    0.83, 0.43    0.80, 0.34    0.69, 0.29    0.66, 0.27
//           tiles   0.77, 0.71    1.00, 1.04    1.32, 1.29    1.65, 1.63    2.48, 2.37
//   256,256 serial  0.99, 0.71    0.93, 0.60    0.93, 0.57    0.90, 0.52    0.87, 0.51
//           tiles   0.74, 0.79    0.72, 0.78    0.88, 0.91    0.99, 0.98    1.12, 1.09
//   4096,16 serial  0.99, 0.68    0.96, 0.57    0.98, 0.52    0.89, 0.46    0.88, 0.44
//           tiles   0.34, 0.27    0.48, 0.41    0.68, 0.60    0.80, 0.78    0.85, 0.84
//
//   [B,D,T]         T = 8         16            24            32            48
//   1,64    serial  1.15, 1.08    1.03, 1.00    0.94, 0.86    0.94, 0.91    0.93, 0.80
//           tiles   0.80, 0.49    0.74, 0.55    0.67, 0.56    1.60, 2.08    1.02, 0.85
//   16,512  serial  1.06, 1.20    1.05, 1.20    1.03, 1.11    1.02, 1.07    1.05, 1.13
//           tiles   0.91, 0.76    1.26, 1.23    1.22, 1.24    3.26, 4.26    2.39, 2.58
//   256,256 serial  1.02, 1.04    1.07, 1.09    1.06, 0.95    1.10, 0.88    1.03, 0.96
//           tiles   1.07, 1.25    1.80, 2.11    2.19, 2.84    3.94, 5.87    2.83, 4.21
//
// (A million threads, 64 steps of 4096,256: 1.11, 1.04 of tiles.) Where steps lie side by side,
// neighbouring threads read what lies far apart: one leaf of 32 steps, of 65,536 channels, takes
// columns a quarter of a serial thread's time forward and a seventh backward. But channels that
// don't start at vectors are copied an element at a time: 33 steps of 1,64 take columns 1.9 and 2.3
// times as long as run_ordered.
//
// bfloat16 has run_ordered at 0.3 to 0.85 of a serial thread's time from 4 steps on. Tiles of whole
// lines are ahead of it from 12 steps on (at 40 it takes 2.5 times as long), but not those whose
// rows start anywhere (0.45). In float64 half as many steps are on their way: forward, 9 to 24
// steps of some thousand channels take it 1.05 to 1.1 of a serial thread's time. (As many as in
// float32 took 158 registers, one block a multiprocessor.)
//
// Thin rows are left: tiles take 65 to 256 steps of 16,384 sequences of four channels up to 2.6
// times as long as a serial thread forward, 1.6 backward. Bands of 32 leaves would take run_ordered
// four times the registers for maps.
//
// A warp alone on its scheduler takes about five cycles for every instruction. While run_ordered
// asked for every element whether its array was there, the step too, and whether it was reset, it
// took 90 instructions for a step, and 11.7 us for 64 steps of 1,64, backward 20.5; asked once,
// they are 31, 9.3 us and 11.6.
#pragma once

#include <cstdint>

#include "scanrnn/types.hpp"

namespace scanrnn::cuda {

/// Leaves of a band that run_ordered can take.
inline constexpr int kOrderedLeaves = 8;

/// From so many threads on the device is busy.
inline constexpr std::int64_t kManyThreads = 16384;

/// One thread a channel, in the order of steps or in that of the tree, or blocks that take tiles.
/// Both orders are the same for one leaf.
enum class Best { serial, ordered, tiles };

/// How a sequence's channels lie: not side by side, or in rows that fill less than a line of
/// memory, whole lines, or lines and no vectors.
enum class Lie { columns, part, line, apart };

/// By the number of threads, that is sequences times channels.
struct ShortSteps {
  std::int64_t threads_below;
  int part, line, apart;  ///< rows: the most steps for run_ordered
  /// Columns: the most steps for run_serial, and then for run_ordered, where every channel starts
  /// at a vector and where not.
  struct {
    int serial, ordered;
  } vectors, elements;
};
/// Those of a type, and the fewest steps for run_ordered in rows, forward and backward.
struct ShortTable {
  int first[2];
  ShortSteps rows[6];
};
inline constexpr ShortTable kShortHalf = {{4, 4},
                                          {{128, 14, 12, 128, {3, 31}, {3, 63}},
                                           {1024, 14, 12, 128, {3, 31}, {3, 40}},
                                           {kManyThreads, 14, 12, 128, {3, 15}, {3, 35}},
                                           {131072, 48, 24, 128, {3, 8}, {3, 33}},
                                           {INT64_MAX, 48, 16, 128, {3, 8}, {3, 33}}}};
inline constexpr ShortTable kShortFloat = {{9, 6},
                                           {{128, 64, 40, 40, {16, 63}, {16, 63}},
                                            {1024, 64, 40, 40, {24, 35}, {24, 35}},
                                            {6144, 64, 40, 40, {23, 0}, {32, 35}},
                                            {kManyThreads, 64, 40, 40, {23, 0}, {32, 0}},
                                            {131072, 256, 96, 96, {11, 0}, {20, 0}},
                                            {INT64_MAX, 256, 48, 48, {11, 0}, {20, 0}}}};
inline constexpr ShortTable kShortDouble = {{9, 4},
                                            {{1024, 24, 24, 24, {12, 31}, {12, 31}},
                                             {kManyThreads, 24, 24, 24, {12, 0}, {15, 0}},
                                             {INT64_MAX, 48, 40, 40, {8, 0}, {12, 0}}}};
inline constexpr ShortTable kShortComplex = {{9, 9},
                                             {{128, 24, 24, 24, {12, 31}, {12, 31}},
                                              {1024, 24, 24, 24, {12, 15}, {12, 15}},
                                              {kManyThreads, 24, 24, 24, {7, 0}, {7, 0}},
                                              {INT64_MAX, 48, 48, 48, {5, 0}, {5, 0}}}};

constexpr const ShortTable& short_table(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return kShortHalf;
    case DType::f32:
      return kShortFloat;
    case DType::f64:
      return kShortDouble;
    default:
      return kShortComplex;
  }
}

/// `leaf`: steps of one. `in_vectors`, columns: every channel starts at one.
constexpr Best best_of(DType dtype, std::int64_t threads, std::int64_t steps, int leaf, Lie lie,
                       bool in_vectors, bool is_backward) {
  const ShortTable& table = short_table(dtype);
  int i = 0;
  while (threads >= table.rows[i].threads_below) ++i;
  const ShortSteps& most = table.rows[i];
  if (lie != Lie::columns) {
    if (steps <= leaf && steps < table.first[is_backward ? 1 : 0]) return Best::serial;
    const int ordered = lie == Lie::part ? most.part : (lie == Lie::line ? most.line : most.apart);
    return steps <= ordered ? Best::ordered : Best::tiles;
  }
  if (steps == leaf && in_vectors) return Best::tiles;
  const auto& columns = in_vectors ? most.vectors : most.elements;
  if (steps <= leaf && steps <= columns.serial) return Best::serial;
  return steps <= columns.ordered ? Best::ordered : Best::tiles;
}

/// Whether the threads that short sequences leave over are to take more channels, beyond a line of
/// memory, and not other sequences: 2^spare_log2 times as many, where a block has room for
/// 2^most_log2 sequences.
constexpr bool are_wide_rows_best(std::int64_t sequences, std::int64_t channels, int spare_log2,
                                  int most_log2) {
  return spare_log2 > 0 && sequences * channels >= kManyThreads &&
         (spare_log2 > most_log2 || sequences < std::int64_t{1} << spare_log2);
}

}  // namespace scanrnn::cuda
