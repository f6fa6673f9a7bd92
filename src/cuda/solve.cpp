// SPDX-License-Identifier: Apache-2.0
// Calls of nonlinear cells: the plan, the workspace, and the launches on the caller's stream.
// Nothing here waits, allocates or remembers a call.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "cuda/call.hpp"
#include "cuda/clear.hpp"
#include "cuda/kernels/solve_table.hpp"
#include "cuda/reduce.hpp"
#include "cuda/solve_args.hpp"
#include "cuda/solve_tuning.hpp"

namespace scanrnn::cuda {
namespace {

constexpr int kHalfToDouble = 4;  // the dtypes that cells have

struct SolveTable {
  SolveKernels kernels[kNonlinearCells][kHalfToDouble];  // by NonlinearCellKind and DType
  SolveTable() {
#define SCANRNN_SET(name, Cell) \
  set(NonlinearCellKind::name, {name##_f16(), name##_bf16(), name##_f32(), name##_f64()});
    SCANRNN_NONLINEAR_CELLS(SCANRNN_SET)
#undef SCANRNN_SET
  }
  void set(NonlinearCellKind kind, std::initializer_list<SolveKernels> row) {
    std::copy(row.begin(), row.end(), kernels[static_cast<int>(kind)]);
  }
};

const SolveKernels& kernels_of(const SolveProblem& p) {
  static const SolveTable table;
  return table.kernels[static_cast<int>(p.type->kind)][static_cast<int>(p.dtype)];
}

struct SolvePlan {
  SolveArgs args{};
  const void* kernel = nullptr;
  const char* name = "";
  Index blocks = 0;
  const void* rest = nullptr;  // what hasn't converged
  Index rest_blocks = 0;
  std::size_t cleared_bytes = 0;  // of the workspace, from its start
  std::size_t bytes = 0;
  struct {
    std::size_t control, expected, pass, start, end, gain, moved, progress, fell_back, partial,
        sums;
  } offset{};
  int reductions = 0;
  struct {
    Reduction sum;
    int slot;
  } reduction[kMaxNonlinearInputs];
};

StepArray step_array(const SolveProblem& p, const ConstArray<3>& array, bool is_ascending) {
  StepArray s;
  if (!array || array.data == absent_input()) return s;
  const Index element = static_cast<Index>(size_of(array.dtype));
  s.data = static_cast<char*>(const_cast<void*>(array.data));
  s.batch = array.stride[0] * element;
  s.time = array.stride[1] * element;
  s.channel = array.stride[2] * element;
  s.next = is_ascending ? s.time : -s.time;
  s.wide = array.dtype != p.dtype;
  return s;
}

void set_arrays(const SolveProblem& p, SolveArgs& g) {
  set_extents(p, g);
  const bool is_ascending = p.backward == g.reverse;
  g.reset_next = is_ascending ? g.reset_time : -g.reset_time;
  for (int k = 0; k < p.type->inputs; ++k) {
    g.sum_slot[k] = -1;
    g.in[k] = step_array(p, p.in[k], is_ascending);
    if (p.backward && !p.type->has(p.type->vector_inputs, k)) {
      g.din[k] = step_array(p, p.din[k], is_ascending);
    }
  }
  for (int s = 0; s < p.type->states; ++s) {
    g.initial[s] = states_of(p, p.initial[s]);
    if (p.backward) {
      g.states[s] = step_array(p, p.states[s], is_ascending);
      g.enter[s] = states_of(p, p.dfinal[s]);
      g.leave[s] = states_of(p, p.dinitial[s]);
    } else {
      g.leave[s] = states_of(p, p.final_state[s]);
    }
  }
  if (p.backward) {
    g.dy = step_array(p, p.dy, is_ascending);
  } else {
    g.out = step_array(p, p.out, is_ascending);
    g.kept = step_array(p, p.kept, is_ascending);
    g.report = static_cast<double*>(p.report.data);
    g.tolerance = p.tolerance;
    g.max_passes = p.max_passes;
  }
}

SolvePlan make_plan(const SolveProblem& p, int device) {
  SolvePlan plan;
  SolveArgs& g = plan.args;
  set_arrays(p, g);
  const SolveKernels& kernels = kernels_of(p);
  const NonlinearCellType& type = *p.type;
  const bool packed = static_cast<bool>(p.layout.cu_seqlens);
  const std::size_t accumulated = size_of(p.accumulation);

  while (g.across_log2 < 5 && (Index{1} << g.across_log2) < p.channels) ++g.across_log2;
  const Index per = kSolveThreads >> g.across_log2;
  const Index groups = ceil_div(p.channels, Index{1} << g.across_log2);
  g.pitch = groups << g.across_log2;
  const SolveSegment segment = solve_segment(p.time, groups, per, kernels.blocks, packed);
  g.segment = std::clamp<Index>(p.segment > 0 ? p.segment : segment.steps, 1, kMostSegmentSteps);
  g.burn_in = static_cast<int>(std::min<Index>(g.segment, segment.burn_in));
  g.bound[0] = g.bound[1] = 0;
  for (int s = 0; s < type.states; ++s) g.bound[s] = type.bounds[s];

  const auto take = [&plan](std::size_t count, std::size_t size) {
    const std::size_t offset = plan.bytes;
    plan.bytes += (count * size + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const bool is_empty = p.sequences == 0 || p.channels == 0;
  const Index serial_blocks = ceil_div(p.sequences * p.channels, kSerialThreads);
  const Index least = p.segment > 0 ? g.segment : kLeastSegments * g.segment;
  if (!p.backward && (p.max_passes <= 0 || p.time <= least)) {
    plan.kernel = kernels.serial;
    plan.name = "solve_serial";
    plan.blocks = serial_blocks;
    return plan;
  }
  if (!p.backward) {
    plan.rest = kernels.serial;
    plan.rest_blocks = serial_blocks;
  }

  g.chunks = std::max<Index>(1, ceil_div(ceil_div(p.time, g.segment), per));
  const Index rows = packed ? p.time / (per * g.segment) + p.sequences : p.sequences * g.chunks;
  g.groups = static_cast<int>(groups);
  g.units = rows * groups;
  g.items = rows * per;
  // Units and runs are counted in 32 bits.
  if (g.units > kMostUnits) {
    throw InvalidArgument(std::string(p.call) + ": segment is " + std::to_string(g.segment) +
                          ", expected more for " + std::to_string(p.sequences) +
                          " sequences of up to " + std::to_string(p.time) + " steps");
  }
  plan.kernel = p.backward ? kernels.backward : kernels.forward;
  plan.name = p.backward ? "solve_backward" : "solve_forward";
  if (!is_empty) {
    plan.blocks = std::min<Index>(
        g.units, static_cast<Index>(kernels.blocks) * Properties::of(device).multiprocessors);
  }

  const std::size_t n = static_cast<std::size_t>(p.sequences);
  const std::size_t all_groups = n * static_cast<std::size_t>(groups);
  const std::size_t states = static_cast<std::size_t>(type.states);
  const std::size_t elements = static_cast<std::size_t>(g.items * g.pitch);
  take(1, sizeof(unsigned));
  plan.offset.control =
      take(2 + all_groups + n + static_cast<std::size_t>(2 * g.units), sizeof(unsigned));
  plan.cleared_bytes = plan.bytes;
  plan.offset.expected = take(all_groups, sizeof(unsigned));
  plan.offset.pass = take(all_groups, sizeof(unsigned));
  plan.offset.start = take(elements * states, accumulated);
  plan.offset.gain = take(elements * states * states, accumulated);
  if (!p.backward) {
    plan.offset.end = take(elements * states, accumulated);
    plan.offset.moved = take(elements, 1);
    plan.offset.progress = take(2 * n * static_cast<std::size_t>(g.pitch), accumulated);
    plan.offset.fell_back = take(n * static_cast<std::size_t>(g.pitch), sizeof(int));
    plan.offset.partial = take(all_groups, SolveReport::kColumns * sizeof(double));
  }
  signed char slots = 0;
  for (int k = 0; p.backward && k < type.inputs; ++k) {
    const Array<3>& sum = p.sum_of(k);
    if (!sum) continue;
    auto& reduction = plan.reduction[plan.reductions++];
    Reduction& r = reduction.sum;
    r.out = steps_of(p, sum);
    r.out_rows = r.out_steps = 1;
    r.out_channels = p.channels;
    r.channels = p.channels;
    reduction.slot = slots;
    if (is_empty) continue;  // sums of nothing
    g.sum_slot[k] = slots++;
    r.rows = 1;
    r.steps = g.items;
    r.pitch = g.pitch;
  }
  plan.offset.sums = take(elements * static_cast<std::size_t>(slots), accumulated);
  plan.bytes += kAlignment;  // the caller's pointer may lie anywhere
  return plan;
}

// Gives the plan its workspace.
void place(SolvePlan& plan, char* base, std::size_t accumulated) {
  SolveArgs& g = plan.args;
  const auto& at = plan.offset;
  g.ticket = reinterpret_cast<unsigned*>(base);
  unsigned* control = reinterpret_cast<unsigned*>(base + at.control);
  const Index groups = g.sequences * g.groups;
  g.queue_tail = control;
  g.finished = control + 1;
  g.arrived = control + 2;
  g.groups_done = g.arrived + groups;
  g.dirty = g.groups_done + g.sequences;
  g.queue = g.dirty + g.units;
  g.expected = reinterpret_cast<unsigned*>(base + at.expected);
  g.pass = reinterpret_cast<unsigned*>(base + at.pass);
  g.start = base + at.start;
  g.end = base + at.end;
  g.gain = base + at.gain;
  g.moved = reinterpret_cast<unsigned char*>(base + at.moved);
  g.progress = base + at.progress;
  g.fell_back = reinterpret_cast<int*>(base + at.fell_back);
  g.partial = reinterpret_cast<double*>(base + at.partial);
  g.sums = base + at.sums;
  const std::size_t slot = static_cast<std::size_t>(g.items * g.pitch) * accumulated;
  for (int r = 0; r < plan.reductions; ++r) {
    plan.reduction[r].sum.from = g.sums + static_cast<std::size_t>(plan.reduction[r].slot) * slot;
  }
}

}  // namespace

std::size_t workspace_bytes(const SolveProblem& problem, const Target& target) {
  return make_plan(problem, target.index).bytes;
}

void execute(const SolveProblem& problem, Workspace workspace, const Target& target) {
  const char* call = problem.call;
  const CurrentDevice current(call, target.index);
  SolvePlan plan = make_plan(problem, target.index);
  char* const base = start_of(call, workspace, plan.bytes);
  if (plan.bytes > 0) place(plan, base, size_of(problem.accumulation));
  const cudaStream_t stream = static_cast<cudaStream_t>(target.stream);

  cudaError_t error = cudaSuccess;
  if (plan.blocks > 0) {
    if (plan.cleared_bytes > 0) {
      error = launch_clear(plan.args.ticket, plan.args.queue_tail,
                           plan.cleared_bytes - plan.offset.control, stream);
      if (error != cudaSuccess) fail(call, "clearing the workspace", target.index, error);
    }
    const auto launch = [&](const void* kernel, const char* name, Index blocks, bool is_early) {
      const bool is_serial = kernel == kernels_of(problem).serial;
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(static_cast<unsigned>(blocks));
      config.blockDim = dim3(is_serial ? kSerialThreads : kSolveThreads);
      config.stream = stream;
      cudaLaunchAttribute early{};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      if (is_early) {
        config.attrs = &early;
        config.numAttrs = 1;
      }
      void* arguments[] = {&plan.args, const_cast<void*>(problem.cell)};
      error = cudaLaunchKernelExC(&config, kernel, arguments);
      if (error != cudaSuccess) fail(call, name, target.index, error);
    };
    launch(plan.kernel, plan.name, plan.blocks,
           plan.cleared_bytes > 0 && may_start_early(target.index, stream));
    if (plan.rest != nullptr) launch(plan.rest, "solve_serial", plan.rest_blocks, false);
  }
  Reduction sums[kMostReductions];
  for (int r = 0; r < plan.reductions; ++r) sums[r] = plan.reduction[r].sum;
  error = launch_reductions(sums, plan.reductions, problem.dtype, stream);
  if (error != cudaSuccess) fail(call, "the sum of a gradient", target.index, error);
}

}  // namespace scanrnn::cuda
