// SPDX-License-Identifier: Apache-2.0
// The CUDA executor: plans a call, clears its workspace and launches its kernels on the caller's
// stream. Nothing here waits, allocates or remembers a call.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "common/backend.hpp"
#include "cuda/call.hpp"
#include "cuda/choice.hpp"
#include "cuda/clear.hpp"
#include "cuda/kernels/list.hpp"
#include "cuda/reduce.hpp"
#include "cuda/tuning.hpp"
#include "cuda/variants.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn::cuda {
namespace {

// --- kernels -----------------------------------------------------------------------------------

struct Table {
  Entry entry[kCells][6];  // by CellKind and DType
  Table() {
    set(CellKind::scan, {scan_f16, scan_bf16, scan_f32, scan_f64, scan_c64, scan_c128});
#define SCANRNN_SET(name, Cell) \
  set(CellKind::name, {name##_f16, name##_bf16, name##_f32, name##_f64});
    SCANRNN_CELLS(SCANRNN_SET)
#undef SCANRNN_SET
  }
  void set(CellKind kind, std::initializer_list<CellKernels (*)()> makers) {
    Entry* row = entry[static_cast<int>(kind)];
    for (CellKernels (*make)() : makers) (row++)->kernels = make();
  }
};

Entry& entry_of(const Problem& p) {
  static Table table;
  const int dtype = static_cast<int>(p.dtype);
  if (p.type->kind != CellKind::custom) return table.entry[static_cast<int>(p.type->kind)][dtype];
  if (*p.type->on_cuda != nullptr) return (*p.type->on_cuda)->entry[dtype];
  throw DeviceError(std::string(p.call) + ": the cell was compiled without CUDA kernels");
}

const PassKernels& kernels_of(const Problem& p) {
  const CellKernels& kernels = entry_of(p).kernels;
  return p.backward ? kernels.backward : kernels.forward;
}

Prepared& prepared_of(const Problem& p) {
  Entry& entry = entry_of(p);
  return p.backward ? entry.backward : entry.forward;
}

struct Choice {
  const Kernel* kernel;
  std::atomic<std::uint64_t>* prepared;
};

/// A variant's kernel for a call of case `i` of its cell.
Choice kernel_of(const Problem& p, const Variant& variant, int i) {
  const PassKernels& kernels = kernels_of(p);
  Prepared& prepared = prepared_of(p);
  Choice choice{&kernel_of(kernels, variant, i), &prepared.variant[&variant - kVariants]};
  if (i >= 0 && choice.kernel == &kernels.cases[i]) choice.prepared = &prepared.cases[i];
  if (i >= 0 && choice.kernel == &kernels.cluster_cases[i]) {
    choice.prepared = &prepared.cluster_cases[i];
  }
  return choice;
}

// --- the plan ----------------------------------------------------------------------------------

struct Plan {
  Way way = Way::rows;
  const Variant* variant = nullptr;
  const Variant* clusters = nullptr;  // to be preferred, where the device can hold clusters
  int the_case = -1;                  // of the cell, that the call is
  const Kernel* kernel = nullptr;
  std::atomic<std::uint64_t>* prepared = nullptr;
  int cluster_blocks = 1;
  Args args{};
  Index blocks = 0;
  int threads = 0;
  int shared_bytes = 0;
  std::size_t cleared_bytes = 0;  // of the workspace, from its start
  std::size_t bytes = 0;
  std::size_t nodes_offset = 0, sums_offset = 0;
  int reductions = 0;
  struct {
    Reduction sum;
    std::size_t offset;  // of what is summed
    int input;
  } reduction[kMaxInputs];

  void use(const Problem& p, const Variant& of) {
    variant = &of;
    const Choice choice = kernel_of(p, of, the_case);
    kernel = choice.kernel;
    prepared = choice.prepared;
  }
  std::size_t take(std::size_t size) {
    const std::size_t offset = bytes;
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
};

/// Rows where channels lie closest, columns where steps do, unless `forced` is one of the two.
Way way_of(const Problem& p, const char* forced) {
  if (forced != nullptr) {
    if (std::strcmp(forced, "rows") == 0) return Way::rows;
    if (std::strcmp(forced, "columns") == 0) return Way::columns;
  }
  const std::int64_t* stride = p.out.stride;
  if (p.backward) stride = p.dy ? p.dy.stride : (p.state_is_output ? p.states : p.in[0]).stride;
  if (p.channels == 1) return Way::columns;
  if (stride[2] == 1 || p.time <= 1) return Way::rows;
  return std::abs(stride[1]) < std::abs(stride[2]) ? Way::columns : Way::rows;
}

void set_arrays(const Problem& p, Args& g) {
  set_extents(p, g);
  for (int i = 0; i < kMaxInputs; ++i) g.sum_slot[i] = -1;
  for (int i = 0; i < p.inputs; ++i) {
    g.in[i] = steps_of(p, p.in[i], p.in[i].data == absent_input());
  }
  g.initial = states_of(p, p.initial);
  g.checkpoints = static_cast<char*>(p.checkpoints.data);
  if (p.backward) {
    g.dy = steps_of(p, p.dy);
    for (int i = 0; i < p.inputs; ++i) {
      if (p.din[i] && (p.state_inputs >> i & 1u) != 0) g.states = steps_of(p, p.states);
    }
    g.enter = states_of(p, p.dfinal);
    g.leave = states_of(p, p.dinitial);
  } else {
    g.out = steps_of(p, p.out);
    g.enter = g.initial;
    g.leave = states_of(p, p.final_state);
  }
}

/// A tile, beside what Args has of it.
struct Cut {
  Index rows = 1, lanes = 1;  // its steps and channels
  int warps = kWarps;
  bool has_room = true;  // of shared memory
  unsigned width = 0;    // of the traits, kFullWidth or kHalfWidth
};

// What kernels have beside the shared memory that a launch asks for, at most.
constexpr int kFixedShared = 4 * 1024;

Cut cut_rows(const Problem& p, const Kernel& kernel, int most_shared, Args& g) {
  const auto fits = [&](int leaf) {
    return kernel.shared_bytes(row_band_log2(kernel.vector_bytes), leaf, kernel.warps, kMaxLevels) +
               kFixedShared <=
           most_shared;
  };
  Cut cut;
  cut.warps = kernel.warps;
  const int threads = cut.warps * kWarp;
  const int band_log2 = row_band_log2(kernel.vector_bytes);
  // States are recomputed from checkpoints, so that tiles have to start at one.
  const bool recomputes = p.backward && !p.state_is_output;
  cut.has_room = fits(recomputes ? std::max(1, (kLeafSteps << band_log2) / threads) : 1);
  g.leaf = kernel.leaf;
  while (g.leaf > 1 && !fits(g.leaf)) g.leaf /= 2;
  const Index width = kernel.vector_bytes / static_cast<Index>(size_of(p.dtype));
  const int all = log2_at_least(ceil_div(p.channels, width));
  g.across_log2 = std::min(band_log2, all);
  if (!p.layout.cu_seqlens) {
    // Sequences shorter than a tile leave threads over, which take other sequences, two warps at
    // least each, or more channels.
    const int needed = std::max(log2_at_least(std::max<Index>(1, ceil_div(p.time, g.leaf))),
                                log2_at_least(kWarp) - band_log2);
    const int spare = log2_at_least(threads) - needed, most = log2_at_least(cut.warps) - 1;
    if (are_wide_rows_best(p.sequences, p.channels, spare - band_log2, most)) {
      g.across_log2 = std::min(spare, all);
    }
    if (g.across_log2 <= band_log2) g.teams_log2 = std::clamp(spare - g.across_log2, 0, most);
  }
  cut.rows = (threads >> g.across_log2 >> g.teams_log2) * g.leaf;
  cut.lanes = width << g.across_log2;
  if (g.teams_log2 == 0 && g.leaf == kernel.leaf) {
    cut.width = g.across_log2 == band_log2       ? kFullWidth
                : g.across_log2 == band_log2 - 1 ? kHalfWidth
                                                 : 0u;
  }
  g.tiles = std::max<Index>(1, ceil_div(p.time, cut.rows));
  return cut;
}

Cut cut_columns(const Problem& p, const Kernel& kernel, int most_shared, Args& g) {
  Cut cut;
  cut.warps = kernel.warps;
  g.leaf = kernel.leaf;
  while (cut.warps > 1 &&
         kernel.shared_bytes(0, g.leaf, cut.warps, 0) + kFixedShared > most_shared) {
    cut.warps /= 2;
  }
  if (!p.layout.cu_seqlens) {
    g.across_log2 = 5 - std::min(5, log2_at_least(std::max<Index>(1, ceil_div(p.time, g.leaf))));
  }
  cut.rows = (kWarp >> g.across_log2) * g.leaf;
  cut.lanes = Index{1} << g.across_log2;
  cut.width = g.across_log2 == 0 ? kFullWidth : 0u;
  g.tiles = std::max<Index>(1, ceil_div(p.time, cut.rows));
  if (!p.layout.cu_seqlens && cut.warps == kRadix) {
    if (fills_blocks(g.tiles)) {
      g.fan_log2 = kRadixLog2;
      g.tiles = ceil_div(g.tiles, kRadix) * kRadix;
    } else if (g.tiles == 2 || g.tiles == 4) {
      g.fan_log2 = log2_at_least(g.tiles);
    }
  }
  return cut;
}

/// What becomes of an input's gradient.
enum class Gradient {
  none,
  written,
  widened,  ///< written to the workspace, in the accumulation type, and reduced
  summed    ///< over time: the kernel leaves a sum for each tile
};
Gradient gradient_of(const Problem& p, int input) {
  const Array<3>& din = p.din[input];
  if (!p.backward || !din) return Gradient::none;
  const bool is_vector = (p.vector_inputs >> input & 1u) != 0;
  if (is_vector || (din.shape[1] == 1 && p.time != 1)) return Gradient::summed;
  const bool is_whole =
      (din.shape[0] == p.batch || p.batch == 1) && (din.shape[2] == p.channels || p.channels == 1);
  return is_whole ? Gradient::written : Gradient::widened;
}

bool is_stored(Gradient g) { return g == Gradient::written || g == Gradient::widened; }

constexpr unsigned when(bool holds, Trait trait) { return holds ? trait : 0u; }

unsigned size_traits(const Problem& p, Way way, const Cut& cut, const char* forced, int device,
                     const Args& g) {
  const bool in_rows = way == Way::rows;
  unsigned traits = cut.width | when(forced != nullptr, kForced) |
                    when(forced != nullptr && std::strcmp(forced, "serial") == 0, kForcedSerial) |
                    when(!cut.has_room, kNoRoom) |
                    when(p.time <= cut.rows && std::min<Index>(ceil_div(p.time, g.leaf),
                                                               g.band_leaves) <= kOrderedLeaves,
                         kFewLeaves) |
                    when(static_cast<bool>(p.layout.cu_seqlens), kPacked) |
                    when(p.layout.cu_seqlens || p.layout.lengths || p.layout.reset, kSequences) |
                    when(p.time == g.tiles * cut.rows && p.channels % cut.lanes == 0, kWholeTiles) |
                    when(p.time % cut.rows != 0 && p.time < kRadix * cut.rows, kFewRaggedTiles);
  if (in_rows) {
    const Index all_tiles = p.sequences * g.tiles * ceil_div(p.channels, cut.lanes);
    const bool has_adjacent_rows = std::abs((p.backward ? g.dy : g.out).time) < 2 * p.channels;
    traits |=
        when(are_clusters_best(Properties::of(device).major, g.tiles, all_tiles, has_adjacent_rows),
             kClustersBest);
  }
  return traits;
}

/// Finds which arrays kernels access in vectors, too.
unsigned array_traits(const Problem& p, const Kernel& kernel, Way way, const Cut& cut, Args& g) {
  const bool in_rows = way == Way::rows;
  const auto is_vector_input = [&](int i) { return (p.vector_inputs >> i & 1u) != 0; };
  unsigned traits = 0;
  for (int i = 0; i < p.inputs; ++i) {
    const Gradient gradient = gradient_of(p, i);
    if (gradient != Gradient::none) g.din[i] = steps_of(p, p.din[i]);
    if (gradient == Gradient::widened) {
      g.din[i] = {nullptr, p.time * p.channels, p.channels, 1, true, false};
    }
    g.has_wide = g.has_wide || (is_stored(gradient) && g.din[i].wide);
    traits |= when(gradient == Gradient::summed, kSums) |
              when(gradient == Gradient::summed && !is_vector_input(i), kStepSums);
  }

  const Index element = static_cast<Index>(size_of(p.dtype));
  const auto starts_vector = [](const void* data, int bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
  };
  const auto in_step = [&](Index stride, Index count) {
    return count <= 1 || stride * element % kernel.vector_bytes == 0;
  };
  // Every row, or every channel, starts at a vector.
  const auto is_aligned = [&](const Steps& s) {
    return starts_vector(s.data, kernel.vector_bytes) && in_step(s.batch, p.batch) &&
           (in_rows ? in_step(s.time, p.time) : in_step(s.channel, p.channels));
  };
  const bool holds_vectors = p.channels * element % kernel.vector_bytes == 0;
  const auto set_vector = [&](Steps& s) {
    if (s.data == nullptr || s.wide) return;
    s.vector = in_rows ? s.channel == 1 && holds_vectors && is_aligned(s) : s.time == 1;
  };
  set_vector(g.out);
  set_vector(g.states);
  set_vector(g.dy);
  for (int i = 0; i < p.inputs; ++i) {
    set_vector(g.in[i]);
    if (gradient_of(p, i) == Gradient::written) set_vector(g.din[i]);
  }

  const auto is_vectors = [](const Steps& s) { return s.data == nullptr || s.vector; };
  bool reads_vectors = in_rows && is_vectors(g.states) && is_vectors(g.dy);
  bool writes_vectors = in_rows && (!p.out || g.out.vector);
  bool reads_lanes = starts_vector(g.checkpoints, kVectorBytes);
  for (int i = 0; i < p.inputs; ++i) {
    const Steps& in = g.in[i];
    if (is_stored(gradient_of(p, i))) {
      writes_vectors = writes_vectors && (g.din[i].wide || g.din[i].vector);
    }
    if (!is_vector_input(i)) {
      reads_vectors = reads_vectors && is_vectors(in);
    } else if (in.data != nullptr) {
      reads_lanes = reads_lanes && in.channel == 1 && starts_vector(in.data, kVectorBytes);
    }
  }

  // The kernels' fast ways: a tile read a vector a thread, whole lines straight from registers.
  g.is_regular = reads_vectors && cut.width == kFullWidth;
  g.is_direct = writes_vectors && g.across_log2 >= row_band_log2(kernel.vector_bytes);

  const auto all_arrays = [&](auto&& is_so) {
    const auto holds = [&](const Steps& s) { return s.data == nullptr || is_so(s); };
    bool all = holds(g.out) && holds(g.states) && holds(g.dy);
    for (int i = 0; i < p.inputs; ++i) {
      all = all && (is_vector_input(i) || (holds(g.in[i]) && holds(g.din[i])));
    }
    return all;
  };
  const auto is_line = [&](const Steps& s) {
    return s.channel == 1 && std::abs(s.time) < INT32_MAX / element;
  };
  const auto is_column = [&](const Steps& s) {
    return s.vector && is_aligned(s) && (cut.lanes == 1 || s.channel == p.time);
  };
  const bool has_all =
      p.type->kind != CellKind::scan ||
      (g.in[0].data != nullptr &&
       (p.backward ? g.states.data != nullptr && g.dy.data != nullptr : g.in[1].data != nullptr));
  return traits | when(!p.backward && !p.out, kNoOutput) | when(g.has_wide, kWide) |
         when(reads_lanes, kLaneVectors) | when(reads_vectors && writes_vectors, kVectors) |
         when(has_all, kAllArrays) | when(all_arrays(is_aligned), kAligned) |
         when(all_arrays(is_line), kLines) | when(!in_rows && all_arrays(is_column), kColumns);
}

/// Finds who runs short sequences (choice.hpp), by the traits that are known.
unsigned choice_traits(const Problem& p, const PassKernels& kernels, const Kernel& tiled, Way way,
                       const char* forced, unsigned traits, const Args& g) {
  Best best = p.time <= tiled.leaf ? Best::serial : Best::tiles;
  if (kernels.ordered.function != nullptr) {
    const Lie lie = way != Way::rows                                    ? Lie::columns
                    : g.across_log2 < row_band_log2(tiled.vector_bytes) ? Lie::part
                    : (traits & kVectors) != 0                          ? Lie::line
                                                                        : Lie::apart;
    best = best_of(p.dtype, p.sequences * p.channels, p.time, tiled.leaf, lie,
                   (traits & kAligned) != 0, p.backward);
  }
  const bool is_ordered =
      forced == nullptr ? best == Best::ordered : std::strcmp(forced, "ordered") == 0;
  return when(best == Best::serial, kSerialBest) | when(is_ordered, kOrderedBest);
}

/// Takes the workspace: ticket and nodes, which are cleared; whole gradients and sums, which are
/// not.
void set_workspace(const Problem& p, const Cut& cut, Plan& plan) {
  Args& g = plan.args;
  const std::size_t accumulated = size_of(p.accumulation);
  const Index item_lanes = g.groups * cut.lanes;
  if (g.levels > 0) {
    plan.take(sizeof(unsigned));
    int words = static_cast<int>(2 * accumulated / sizeof(*g.nodes));
    if (plan.way == Way::columns) words = column_node_words(words, size_of(p.dtype));
    plan.nodes_offset =
        plan.take(static_cast<std::size_t>((g.tile_items >> g.fan_log2) * item_lanes * words) *
                  sizeof(*g.nodes));
    plan.cleared_bytes = plan.bytes;
  }
  const bool packed = static_cast<bool>(p.layout.cu_seqlens);
  const std::size_t slot_bytes = static_cast<std::size_t>(g.tile_items * item_lanes) * accumulated;
  signed char slots = 0;
  for (int i = 0; i < p.inputs; ++i) {
    const Gradient gradient = gradient_of(p, i);
    if (gradient == Gradient::none || (gradient == Gradient::written && plan.blocks > 0)) continue;
    auto& reduction = plan.reduction[plan.reductions++];
    Reduction& r = reduction.sum;
    reduction.input = i;
    r.out = steps_of(p, p.din[i]);
    r.out_rows = p.din[i].shape[0];
    r.out_steps = p.din[i].shape[1];
    r.out_channels = p.din[i].shape[2];
    r.channels = p.channels;
    if (plan.blocks == 0) continue;  // sums of nothing
    if (gradient == Gradient::summed) {
      // The kernel leaves a sum for each tile, which lie in order.
      g.sum_slot[i] = slots++;
      r.rows = packed ? 1 : p.sequences;
      r.steps = packed ? g.tile_items : g.tiles;
      r.pitch = item_lanes;
    } else {
      r.rows = p.batch;
      r.steps = p.time;
      r.pitch = p.channels;
      reduction.offset =
          plan.take(static_cast<std::size_t>(p.batch * p.time * p.channels) * accumulated);
    }
  }
  if (slots > 0) plan.sums_offset = plan.take(static_cast<std::size_t>(slots) * slot_bytes);
  for (int r = 0; r < plan.reductions; ++r) {
    const int slot = g.sum_slot[plan.reduction[r].input];
    if (slot >= 0) {
      plan.reduction[r].offset = plan.sums_offset + static_cast<std::size_t>(slot) * slot_bytes;
    }
  }
  if (plan.bytes > 0) plan.bytes += kAlignment;  // the caller's pointer may lie anywhere
}

/// Tickets and blocks are counted in 31 bits.
void check_count(const Problem& p, Index count) {
  if (count <= INT32_MAX) return;
  throw InvalidArgument(std::string(p.call) + ": " + std::to_string(p.sequences) +
                        " sequences of up to " + std::to_string(p.time) + " steps and " +
                        std::to_string(p.channels) + " channels make " + std::to_string(count) +
                        " tiles, expected fewer than 2^31");
}

/// A plan takes as much of the workspace on every device.
Plan make_plan(const Problem& p, int device, bool is_memory_fast) {
  Plan plan;
  const PassKernels& kernels = kernels_of(p);
  // Read for every call: a benchmark compares the ways within one process.
  const char* forced = std::getenv("SCANRNN_CUDA_KERNEL");
  plan.way = way_of(p, forced);
  Args& g = plan.args;
  set_arrays(p, g);

  const int most_shared = Properties::of(device).most_shared;
  const Kernel& tiled = plan.way == Way::rows ? kernels.rows : kernels.columns;
  Cut cut = (plan.way == Way::rows ? cut_rows : cut_columns)(p, tiled, most_shared, g);
  const int line = plan.way == Way::rows ? row_band_log2(tiled.vector_bytes) : g.across_log2;
  g.band_leaves = kWarp >> std::min(g.across_log2, line);
  unsigned traits = size_traits(p, plan.way, cut, forced, device, g) |
                    array_traits(p, tiled, plan.way, cut, g) | when(!is_memory_fast, kSlowMemory);
  traits |= choice_traits(p, kernels, tiled, plan.way, forced, traits, g);
  plan.the_case = case_of(kernels, p.cell);
  plan.variant = choose(kVariants, kernels, plan.the_case, plan.way, traits);
  if (is_of_clusters(*plan.variant)) {
    plan.clusters = plan.variant;
    plan.variant = choose(plan.variant + 1, kernels, plan.the_case, plan.way, traits);
  }
  plan.use(p, *plan.variant);
  if ((plan.variant->needs & kVectors) != 0) g.is_regular = g.is_direct = true;
  if (plan.variant->way == Way::threads) {
    g.teams_log2 = g.fan_log2 = 0;
    g.tiles = 1;
    cut = {std::max<Index>(1, p.time), std::max<Index>(1, p.channels)};
    plan.way = Way::threads;
  }

  const bool packed = static_cast<bool>(p.layout.cu_seqlens) && plan.way != Way::threads;
  g.groups = ceil_div(p.channels, cut.lanes);
  g.tile_items = packed ? p.time / cut.rows + p.sequences : p.sequences * g.tiles;
  g.by_groups = Divisor::of(g.groups);
  g.by_round = Divisor::of(g.groups * std::max<Index>(1, p.sequences));
  plan.blocks = ceil_div(p.sequences * p.channels, kThreads);
  if (plan.way != Way::threads) {
    for (Index most = 1; most < g.tiles >> g.fan_log2; most *= kRadix) ++g.levels;
    plan.blocks = g.tile_items * g.groups;
    check_count(p, plan.blocks);  // of tickets
    if (plan.way == Way::columns) plan.blocks = ceil_div(plan.blocks, cut.warps);
    plan.blocks = ceil_div(plan.blocks, Index{1} << g.teams_log2);
    if (plan.kernel->blocks > 0 && g.fan_log2 == kRadixLog2 && g.levels > 0) {  // they stay
      const Index at_once = Index{Properties::of(device).multiprocessors} * plan.kernel->blocks;
      plan.blocks = std::min(plan.blocks, at_once);
    }
  }
  check_count(p, plan.blocks);
  plan.threads = cut.warps * kWarp;
  plan.shared_bytes = plan.kernel->shared_bytes(g.across_log2, g.leaf, cut.warps, g.levels);
  set_workspace(p, cut, plan);
  return plan;
}

// A device's bit in a set of devices. Those that have none are asked every time.
std::uint64_t bit_of(int device) {
  return device < kMostDevices ? std::uint64_t{1} << device : std::uint64_t{0};
}

// Tells a device, once, how much shared memory the kernel may ask for.
cudaError_t prepare(const Kernel& kernel, std::atomic<std::uint64_t>& prepared, int device) {
  if ((prepared.load(std::memory_order_relaxed) & bit_of(device)) != 0) return cudaSuccess;
  const int most = Properties::of(device).most_shared;
  cudaFuncAttributes has;
  cudaError_t error = cudaFuncGetAttributes(&has, kernel.function);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 most - static_cast<int>(has.sharedSizeBytes));
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 kernel.carveout);
  }
  if (error == cudaSuccess) prepared.fetch_or(bit_of(device), std::memory_order_relaxed);
  return error;
}

cudaLaunchAttribute cluster_dimension(int blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

// Whether the current device can hold a cluster of the kernel's blocks, and the code that it loads
// was compiled for clusters.
bool holds_clusters(const Problem& p, const Plan& plan, int device) {
  const Choice choice = kernel_of(p, *plan.clusters, plan.the_case);
  const Kernel& kernel = *choice.kernel;
  std::atomic<std::uint64_t>& prepared = *choice.prepared;
  std::atomic<std::uint64_t>& no_clusters = prepared_of(p).no_clusters;
  if ((no_clusters.load(std::memory_order_relaxed) & bit_of(device)) != 0) return false;
  if ((prepared.load(std::memory_order_relaxed) & bit_of(device)) != 0) return true;
  std::atomic<std::uint64_t> unknown{0};  // others must not see the device's bit before the answer
  cudaFuncAttributes has;
  int count = 0;
  if (cudaFuncGetAttributes(&has, kernel.function) == cudaSuccess && has.ptxVersion >= 90 &&
      prepare(kernel, unknown, device) == cudaSuccess) {
    cudaLaunchAttribute dimension = cluster_dimension(kRadix);
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(kRadix);
    launch.blockDim = dim3(static_cast<unsigned>(kernel.warps * kWarp));
    launch.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes(0, kernel.leaf, 0, 0));
    launch.attrs = &dimension;
    launch.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&count, kernel.function, &launch) != cudaSuccess) count = 0;
  }
  if (count <= 0) cudaGetLastError();
  (count > 0 ? prepared : no_clusters).fetch_or(bit_of(device), std::memory_order_relaxed);
  return count > 0;
}

// Whether the code that the current device loads is for an architecture with fast memory.
bool loads_fast_memory(const Problem& p, int device) {
  Prepared& prepared = prepared_of(p);
  if ((prepared.fast_memory.load(std::memory_order_relaxed) & bit_of(device)) != 0) return true;
  if ((prepared.slow_memory.load(std::memory_order_relaxed) & bit_of(device)) != 0) return false;
  cudaFuncAttributes has;
  if (cudaFuncGetAttributes(&has, kernels_of(p).rows.function) != cudaSuccess) {
    cudaGetLastError();  // the launch will say it, and why
    return false;
  }
  const bool is_fast = has_fast_memory(has.ptxVersion);
  (is_fast ? prepared.fast_memory : prepared.slow_memory)
      .fetch_or(bit_of(device), std::memory_order_relaxed);
  return is_fast;
}

// Makes a plan of whole tiles one of clusters, which need no nodes for their own tiles and are as
// many as run at a time.
void use_clusters(const Problem& p, Plan& plan, int device) {
  Args& g = plan.args;
  plan.use(p, *plan.clusters);
  plan.cluster_blocks = kRadix;
  plan.shared_bytes = plan.kernel->shared_bytes(g.across_log2, g.leaf, kWarps, 0);
  g.fan_log2 = kRadixLog2;
  --g.levels;
  plan.cleared_bytes = plan.nodes_offset + (plan.cleared_bytes - plan.nodes_offset) / kRadix;
  const Index at_once = Index{Properties::of(device).multiprocessors} * plan.kernel->blocks;
  plan.blocks = std::min(plan.blocks, std::max<Index>(1, at_once / kRadix) * kRadix);
}

// Gives the plan its workspace.
void place(Plan& plan, char* base) {
  Args& g = plan.args;
  g.ticket = reinterpret_cast<unsigned*>(base);
  g.nodes = reinterpret_cast<unsigned long long*>(base + plan.nodes_offset);
  g.sums = base + plan.sums_offset;
  for (int r = 0; r < plan.reductions; ++r) {
    char* from = base + plan.reduction[r].offset;
    plan.reduction[r].sum.from = from;
    Steps& din = g.din[plan.reduction[r].input];
    if (din.data == nullptr) din.data = from;
  }
}

}  // namespace

bool available() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return true;
  cudaGetLastError();
  return false;
}

const char* unavailable_reason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count > 0 ? "" : "no CUDA device is visible";
  cudaGetLastError();
  return cudaGetErrorString(error);
}

const char* architectures() { return SCANRNN_CUDA_ARCHITECTURES; }

std::size_t workspace_bytes(const Problem& problem, const Target& target) {
  return make_plan(problem, target.index, true).bytes;
}

void execute(const Problem& problem, Workspace workspace, const Target& target) {
  const char* call = problem.call;
  const CurrentDevice current(call, target.index);
  Plan plan = make_plan(problem, target.index, loads_fast_memory(problem, target.index));
  if (plan.clusters != nullptr && holds_clusters(problem, plan, target.index)) {
    use_clusters(problem, plan, target.index);
  }
  place(plan, start_of(call, workspace, plan.bytes));
  const cudaStream_t stream = static_cast<cudaStream_t>(target.stream);

  cudaError_t error = cudaSuccess;
  if (plan.blocks > 0) {
    if (plan.way != Way::threads) {
      error = prepare(*plan.kernel, *plan.prepared, target.index);
      if (error != cudaSuccess) fail(call, plan.kernel->name, target.index, error);
    }
    if (plan.cleared_bytes > 0) {
      error = launch_clear(plan.args.ticket, plan.args.nodes,
                           plan.cleared_bytes - plan.nodes_offset, stream);
      if (error != cudaSuccess) fail(call, "clearing the workspace", target.index, error);
    }
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(plan.blocks));
    launch.blockDim = dim3(static_cast<unsigned>(plan.threads));
    launch.dynamicSmemBytes = static_cast<std::size_t>(plan.shared_bytes);
    launch.stream = stream;
    cudaLaunchAttribute attribute[2]{};
    launch.attrs = attribute;
    if (plan.cleared_bytes > 0 && may_start_early(target.index, stream)) {
      cudaLaunchAttribute& early = attribute[launch.numAttrs++];
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
    }
    if (plan.cluster_blocks > 1) {
      attribute[launch.numAttrs++] = cluster_dimension(plan.cluster_blocks);
    }
    void* arguments[] = {&plan.args, const_cast<void*>(problem.cell)};
    error = cudaLaunchKernelExC(&launch, plan.kernel->function, arguments);
    if (error != cudaSuccess) fail(call, plan.kernel->name, target.index, error);
  }
  Reduction sums[kMostReductions];
  for (int r = 0; r < plan.reductions; ++r) sums[r] = plan.reduction[r].sum;
  error = launch_reductions(sums, plan.reductions, problem.dtype, stream);
  if (error != cudaSuccess) fail(call, "the sum of a gradient", target.index, error);
}

}  // namespace scanrnn::cuda
