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

enum class Way { rows, columns, serial, ordered };

// --- the plan ----------------------------------------------------------------------------------

struct Plan {
  Way way = Way::rows;
  const Kernel* kernel = nullptr;
  std::atomic<std::uint64_t>* prepared = nullptr;
  const Kernel* clusters = nullptr;  // to be preferred, where the device can hold clusters
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
};

/// Rows where channels lie closest, columns where steps do, unless `forced` names another way:
/// "rows", "columns" or "serial". ("ordered" takes the place of the first two where it can.)
Way way_of(const Problem& p, const char* forced) {
  if (forced != nullptr) {
    if (std::strcmp(forced, "serial") == 0) return Way::serial;
    if (std::strcmp(forced, "rows") == 0) return Way::rows;
    if (std::strcmp(forced, "columns") == 0) return Way::columns;
  }
  const std::int64_t* stride = p.out.stride;
  if (p.backward) stride = p.dy ? p.dy.stride : (p.state_is_output ? p.states : p.in[0]).stride;
  if (p.channels == 1) return Way::columns;
  if (stride[2] == 1 || p.time <= 1) return Way::rows;
  return std::abs(stride[1]) < std::abs(stride[2]) ? Way::columns : Way::rows;
}

Plan make_plan(const Problem& p, int device) {
  Plan plan;
  Entry& entry = entry_of(p);
  const PassKernels& kernels = p.backward ? entry.kernels.backward : entry.kernels.forward;
  Prepared& prepared = p.backward ? entry.backward : entry.forward;
  // Read for every call: a benchmark compares the ways within one process.
  const char* forced = std::getenv("SCANRNN_CUDA_KERNEL");
  plan.way = way_of(p, forced);

  Args& g = plan.args;
  for (int i = 0; i < kMaxInputs; ++i) g.sum_slot[i] = -1;
  set_extents(p, g);
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

  // The shape of a tile.
  const Index element = static_cast<Index>(size_of(p.dtype));
  const Index vector_bytes = plan.way == Way::rows ? kernels.rows.vector_bytes : kVectorBytes;
  const Index width = vector_bytes / element;
  const bool packed = static_cast<bool>(p.layout.cu_seqlens);
  const int most_shared = Properties::of(device).most_shared;
  const int fixed_shared = 4 * 1024;  // what kernels have beside what a launch asks for, at most
  Index rows = 1;                     // steps of a tile
  Index lanes = 1;                    // channels of a tile
  int warps = kWarps;
  const Kernel* kernel = &kernels.serial;
  // States are recomputed from checkpoints, so that tiles have to start at one.
  const int band_log2 = row_band_log2(kernels.rows.vector_bytes);
  const int least_leaf = p.backward && !p.state_is_output
                             ? std::max(1, (kLeafSteps << band_log2) / (kernels.rows.warps * kWarp))
                             : 1;
  if (plan.way == Way::rows &&
      kernels.rows.shared_bytes(band_log2, least_leaf, warps, kMaxLevels) + fixed_shared >
          most_shared) {
    plan.way = Way::serial;
  }
  // One leaf is one thread's work: without the tree around it, it gives the same bits sooner.
  const int leaf = (plan.way == Way::rows ? kernels.rows : kernels.columns).leaf;
  if (!packed && p.time <= leaf && forced == nullptr) {
    plan.way = Way::serial;
  }
  if (plan.way == Way::rows) {
    kernel = &kernels.rows;
    plan.prepared = &prepared.rows;
    warps = kernel->warps;
    const int threads = warps * kWarp;
    g.leaf = kernel->leaf;
    const int band_leaves_log2 = log2_at_least(kWarp) - band_log2;
    while (g.leaf > 1 && kernel->shared_bytes(band_log2, g.leaf, warps, kMaxLevels) + fixed_shared >
                             most_shared) {
      g.leaf /= 2;
    }
    const int all = log2_at_least(ceil_div(p.channels, width));
    g.across_log2 = std::min(band_log2, all);
    if (!packed) {
      // Sequences shorter than a tile leave threads over, which take more channels.
      const int needed = log2_at_least(std::max<Index>(1, ceil_div(p.time, g.leaf)));
      const int spare = log2_at_least(threads) - std::max(needed, band_leaves_log2);
      if (spare > band_log2) g.across_log2 = std::min(spare, all);
      // What is left over then takes other sequences, two warps at least each.
      if (g.across_log2 <= band_log2) {
        g.teams_log2 = std::clamp(spare - g.across_log2, 0, log2_at_least(warps) - 1);
      }
    }
    rows = (threads >> g.across_log2 >> g.teams_log2) * g.leaf;
    lanes = width << g.across_log2;
  } else if (plan.way == Way::columns) {
    kernel = &kernels.columns;
    plan.prepared = &prepared.columns;
    g.leaf = kernel->leaf;
    warps = kernel->warps;
    while (warps > 1 && kernel->shared_bytes(0, g.leaf, warps, 0) + fixed_shared > most_shared) {
      warps /= 2;
    }
    if (!packed) {
      g.across_log2 = 5 - std::min(5, log2_at_least(std::max<Index>(1, ceil_div(p.time, g.leaf))));
    }
    rows = (kWarp >> g.across_log2) * g.leaf;
    lanes = Index{1} << g.across_log2;
  }
  const bool wants_ordered = forced == nullptr ? is_ordered_best(p.sequences * p.channels, p.time,
                                                                 plan.way == Way::columns)
                                               : std::strcmp(forced, "ordered") == 0;
  if (wants_ordered && !packed && plan.way != Way::serial && kernels.ordered.function != nullptr &&
      ceil_div(p.time, g.leaf) <= kOrderedLeaves && p.time <= rows) {
    const int most =
        plan.way == Way::rows ? row_band_log2(static_cast<int>(vector_bytes)) : g.across_log2;
    g.band_leaves = kWarp >> std::min(g.across_log2, most);
    g.teams_log2 = 0;
    kernel = &kernels.ordered;
    plan.prepared = nullptr;
    plan.way = Way::ordered;
    warps = kWarps;
  }
  const bool is_one_thread = plan.way == Way::serial || plan.way == Way::ordered;
  if (is_one_thread) {  // a sequence and channel each
    rows = std::max<Index>(1, p.time);
    lanes = std::max<Index>(1, p.channels);
  }
  plan.kernel = kernel;
  plan.threads = warps * kWarp;
  g.tiles = std::max<Index>(1, ceil_div(p.time, rows));
  g.groups = ceil_div(p.channels, lanes);
  g.tile_items = packed && !is_one_thread ? p.time / rows + p.sequences : p.sequences * g.tiles;
  g.by_groups = Divisor::of(g.groups);
  g.by_round = Divisor::of(g.groups * std::max<Index>(1, p.sequences));
  Index nodes = g.tiles;  // of a sequence
  if (plan.way == Way::columns && !packed && warps == kRadix && fills_blocks(g.tiles)) {
    g.fan_log2 = kRadixLog2;
    nodes = ceil_div(g.tiles, kRadix);
    g.tiles = nodes * kRadix;
    g.tile_items = p.sequences * g.tiles;
  }
  for (Index most = 1; most < nodes; most *= kRadix) ++g.levels;
  if (is_one_thread) g.levels = 0;
  plan.shared_bytes = kernel->shared_bytes(g.across_log2, g.leaf, warps, g.levels);

  if (is_one_thread) {
    plan.blocks = ceil_div(p.sequences * p.channels, kThreads);
  } else {
    plan.blocks = g.tile_items * g.groups;
    if (plan.way == Way::columns) plan.blocks = ceil_div(plan.blocks, warps);
    plan.blocks = ceil_div(plan.blocks, Index{1} << g.teams_log2);
  }

  // Vectors, where an array allows them.
  const auto set_vector = [&](Steps& s) {
    if (s.data == nullptr || s.wide) return;
    if (plan.way == Way::columns) {
      s.vector = s.time == 1;
      return;
    }
    const auto in_step = [&](Index stride, Index count) {
      return count <= 1 || stride * element % vector_bytes == 0;
    };
    s.vector = s.channel == 1 && p.channels % width == 0 &&
               reinterpret_cast<std::uintptr_t>(s.data) % vector_bytes == 0 &&
               in_step(s.time, p.time) && in_step(s.batch, p.batch);
  };
  for (int i = 0; i < p.inputs; ++i) set_vector(g.in[i]);
  set_vector(g.out);
  set_vector(g.states);
  set_vector(g.dy);

  // The workspace: ticket and nodes, which are cleared; sums and partial gradients, which are not.
  const std::size_t accumulated = size_of(p.accumulation);
  const auto take = [&plan](std::size_t bytes) {
    const std::size_t offset = plan.bytes;
    plan.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  if (g.levels > 0) {
    take(sizeof(unsigned));
    int words = static_cast<int>(2 * accumulated / sizeof(*g.nodes));
    if (plan.way == Way::columns) words = column_node_words(words, size_of(p.dtype));
    plan.nodes_offset =
        take(static_cast<std::size_t>((g.tile_items >> g.fan_log2) * g.groups * lanes * words) *
             sizeof(*g.nodes));
    plan.cleared_bytes = plan.bytes;
  }
  const Index item_lanes = g.groups * lanes;
  const std::size_t slot_bytes = static_cast<std::size_t>(g.tile_items * item_lanes) * accumulated;
  signed char slots = 0;
  bool sums_vectors_only = true;
  for (int i = 0; p.backward && i < p.inputs; ++i) {
    const Array<3>& din = p.din[i];
    if (!din) continue;
    const bool is_vector = (p.vector_inputs >> i & 1u) != 0;
    const bool sums_time = is_vector || (din.shape[1] == 1 && p.time != 1);
    g.din[i] = steps_of(p, din);
    if (!sums_time && (din.shape[0] == p.batch || p.batch == 1) &&
        (din.shape[2] == p.channels || p.channels == 1) && plan.blocks > 0) {
      set_vector(g.din[i]);
      continue;
    }
    auto& reduction = plan.reduction[plan.reductions++];
    Reduction& r = reduction.sum;
    reduction.input = i;
    r.out = g.din[i];
    r.out_rows = din.shape[0];
    r.out_steps = din.shape[1];
    r.out_channels = din.shape[2];
    r.channels = p.channels;
    if (plan.blocks == 0) continue;  // sums of nothing
    if (sums_time) {
      sums_vectors_only = sums_vectors_only && is_vector;
      // The kernel leaves a sum for each tile, which lie in order.
      g.sum_slot[i] = slots++;
      r.rows = packed ? 1 : p.sequences;
      r.steps = packed ? g.tile_items : g.tiles;
      r.pitch = item_lanes;
    } else {
      // The whole gradient, in the accumulation type.
      r.rows = p.batch;
      r.steps = p.time;
      r.pitch = p.channels;
      reduction.offset =
          take(static_cast<std::size_t>(p.batch * p.time * p.channels) * accumulated);
      g.din[i] = {nullptr, p.time * p.channels, p.channels, 1, true, false};
    }
  }
  if (slots > 0) plan.sums_offset = take(static_cast<std::size_t>(slots) * slot_bytes);
  for (int r = 0; r < plan.reductions; ++r) {
    const int slot = g.sum_slot[plan.reduction[r].input];
    if (slot >= 0) {
      plan.reduction[r].offset = plan.sums_offset + static_cast<std::size_t>(slot) * slot_bytes;
    }
  }
  // The kernels' fast ways out: whole lines straight from registers.
  g.is_direct = plan.way == Way::rows && g.across_log2 >= band_log2;
  g.is_regular = plan.way == Way::rows && g.across_log2 == band_log2 && g.teams_log2 == 0 &&
                 g.leaf == kernel->leaf;
  const auto is_regular = [](const Steps& s) { return s.data == nullptr || s.vector; };
  for (int i = 0; i < p.inputs; ++i) {
    if ((p.vector_inputs >> i & 1u) == 0) g.is_regular = g.is_regular && is_regular(g.in[i]);
  }
  g.is_regular = g.is_regular && is_regular(g.states) && is_regular(g.dy);
  if (p.out) g.is_direct = g.is_direct && g.out.vector;
  for (int i = 0; i < p.inputs; ++i) {
    if (!p.backward || !p.din[i] || g.sum_slot[i] >= 0) continue;
    g.has_wide = g.has_wide || g.din[i].wide;
    g.is_direct = g.is_direct && (g.din[i].wide || g.din[i].vector);
  }
  // Whole tiles read a thread's channels at once of all there is.
  bool reads_lanes = reinterpret_cast<std::uintptr_t>(g.checkpoints) % kVectorBytes == 0;
  for (int i = 0; i < p.inputs; ++i) {
    const Steps& s = g.in[i];
    if ((p.vector_inputs >> i & 1u) == 0 || s.data == nullptr) continue;
    reads_lanes = reads_lanes && s.channel == 1 &&
                  reinterpret_cast<std::uintptr_t>(s.data) % kVectorBytes == 0;
  }
  if (plan.way == Way::rows && kernels.whole.function != nullptr &&
      (p.out || !kernels.whole.needs_output) && reads_lanes && g.is_regular && g.is_direct &&
      !g.has_wide && sums_vectors_only && g.cu_seqlens == nullptr && g.lengths == nullptr &&
      g.reset == nullptr && p.time % rows == 0 && p.channels % lanes == 0) {
    plan.kernel = &kernels.whole;
    plan.prepared = &prepared.whole;
    for (int i = 0; i < kMostCases && kernels.cases[i].function != nullptr; ++i) {
      if (!kernels.cases[i].suits(p.cell)) continue;
      plan.kernel = &kernels.cases[i];
      plan.prepared = &prepared.cases[i];
    }
    plan.shared_bytes = plan.kernel->shared_bytes(g.across_log2, g.leaf, warps, g.levels);
    const bool has_adjacent_rows = std::abs((p.backward ? g.dy : g.out).time) < 2 * p.channels;
    if (kernels.clusters.function != nullptr && forced == nullptr &&
        are_clusters_best(Properties::of(device).major, g.tiles, g.tile_items * g.groups,
                          has_adjacent_rows)) {
      plan.clusters = &kernels.clusters;
    }
  }
  // Arrays that start anywhere, in calls that ask for nothing else.
  const auto all_steps = [&](auto&& is_so) {
    bool all = is_so(g.out) && is_so(g.states) && is_so(g.dy);
    for (int i = 0; i < p.inputs; ++i) all = all && is_so(g.in[i]) && is_so(g.din[i]);
    return all;
  };
  const bool has_all =
      g.in[0].data != nullptr &&
      (p.backward ? g.states.data != nullptr && g.dy.data != nullptr : g.in[1].data != nullptr);
  const bool is_plain = has_all && !g.has_wide && slots == 0 && g.cu_seqlens == nullptr &&
                        g.lengths == nullptr && g.reset == nullptr;
  const auto is_line = [&](const Steps& s) {
    return s.data == nullptr || (s.channel == 1 && std::abs(s.time) < INT32_MAX / element);
  };
  if (plan.way == Way::rows && kernels.lines.function != nullptr && is_plain &&
      !(g.is_regular && g.is_direct) && g.across_log2 == band_log2 && g.teams_log2 == 0 &&
      g.leaf == kernel->leaf && all_steps(is_line)) {
    plan.kernel = &kernels.lines;
    plan.prepared = &prepared.lines;
    plan.shared_bytes = kernels.lines.shared_bytes(g.across_log2, g.leaf, warps, g.levels);
  }
  const auto is_aligned = [&](const Steps& s) {
    const auto in_step = [&](Index stride, Index count) {
      return count <= 1 || stride * element % kVectorBytes == 0;
    };
    return s.data == nullptr || (reinterpret_cast<std::uintptr_t>(s.data) % kVectorBytes == 0 &&
                                 in_step(s.channel, p.channels) && in_step(s.batch, p.batch));
  };
  if (plan.way == Way::columns && kernels.ragged_columns.function != nullptr && is_plain &&
      g.across_log2 == 0 &&
      ((p.time % rows != 0 && p.time < kRadix * rows) || !all_steps(is_aligned))) {
    plan.kernel = &kernels.ragged_columns;
    plan.prepared = &prepared.ragged_columns;
  }
  if (plan.bytes > 0) plan.bytes += kAlignment;  // the caller's pointer may lie anywhere
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
bool holds_clusters(const Kernel& kernel, Prepared& prepared, int device) {
  if ((prepared.no_clusters.load(std::memory_order_relaxed) & bit_of(device)) != 0) return false;
  if ((prepared.clusters.load(std::memory_order_relaxed) & bit_of(device)) != 0) return true;
  std::atomic<std::uint64_t> unknown{0};  // others must not see the device's bit before the answer
  cudaFuncAttributes has;
  int count = 0;
  if (cudaFuncGetAttributes(&has, kernel.function) == cudaSuccess && has.ptxVersion >= 90 &&
      prepare(kernel, unknown, device) == cudaSuccess) {
    cudaLaunchAttribute dimension = cluster_dimension(kRadix);
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(kRadix);
    launch.blockDim = dim3(kThreads);
    launch.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes(0, kernel.leaf, 0, 0));
    launch.attrs = &dimension;
    launch.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&count, kernel.function, &launch) != cudaSuccess) count = 0;
  }
  if (count <= 0) cudaGetLastError();
  (count > 0 ? prepared.clusters : prepared.no_clusters)
      .fetch_or(bit_of(device), std::memory_order_relaxed);
  return count > 0;
}

// Makes a plan of whole tiles one of clusters, which need no nodes for their own tiles and are as
// many as run at a time.
void use_clusters(Plan& plan, std::atomic<std::uint64_t>& prepared, int device) {
  Args& g = plan.args;
  plan.kernel = plan.clusters;
  plan.prepared = &prepared;
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
  return make_plan(problem, target.index).bytes;
}

void execute(const Problem& problem, Workspace workspace, const Target& target) {
  const char* call = problem.call;
  const CurrentDevice current(call, target.index);
  Plan plan = make_plan(problem, target.index);
  if (plan.clusters != nullptr) {
    Entry& entry = entry_of(problem);
    Prepared& prepared = problem.backward ? entry.backward : entry.forward;
    if (holds_clusters(*plan.clusters, prepared, target.index)) {
      use_clusters(plan, prepared.clusters, target.index);
    }
  }
  place(plan, start_of(call, workspace, plan.bytes));
  const cudaStream_t stream = static_cast<cudaStream_t>(target.stream);

  cudaError_t error = cudaSuccess;
  if (plan.blocks > 0) {
    if (plan.prepared != nullptr) {
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
