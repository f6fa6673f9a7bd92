// SPDX-License-Identifier: Apache-2.0
// The CPU executor: plan, tiles, leaves, finish.
//
// A unit of work is one sequence times one block of channels. A thread runs a unit leaf after leaf:
// one pass over memory, in which every leaf yields its map beside its outputs, the merge tree turns
// maps into the state before the next leaf, and that leaf starts from it. Where units are too few
// for the threads, they are cut into tiles of 2^k leaves that several threads take in time order. A
// tile first reduces its leaves to one map, publishes it, looks back for the state before it, and
// only then runs. Both ways merge in the tree's bracketing, so they give the same bits.
#include "cpu/executor.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/threads.hpp"
#include "cpu/tree.hpp"
#include "scanrnn/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace scanrnn::cpu {
namespace {

using Index = std::int64_t;

// Tuning. Measured on two cores of an EPYC 9004 (1 MiB second-level cache each), fp32.
constexpr Index kWideLaneBytes = 16384;     // a block's row: long runs of memory, states in L1
constexpr Index kNarrowLaneBytes = 128;     // the least a row is split into: two cache lines
constexpr Index kColumnLanes = 32;          // lanes of a block whose time axis is contiguous
constexpr Index kColumnLeaves = 8;          // leaves staged at once there: runs of 256 steps
constexpr Index kGroupVectors = 4;          // registers of leaves side by side, few channels
constexpr Index kReducedLanes = 256;        // block width where a gradient is summed over channels
constexpr Index kTileBytes = 256 * 1024;    // inputs of a tile: read twice, the second time from L2
constexpr Index kParallelElements = 32768;  // below this many elements a thread isn't worth waking
constexpr Index kStreamBytes = 4 << 20;     // outputs from this size on are written past the caches

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

Index read_index(const ConstArray<1>& array, Index i) {
  const char* p = static_cast<const char*>(array.data);
  const Index at = i * array.stride[0];
  if (array.dtype == DType::i32) {
    return *reinterpret_cast<const std::int32_t*>(p + at * 4);
  }
  return *reinterpret_cast<const std::int64_t*>(p + at * 8);
}

// Steps [begin, end) of row `row` are sequence n; [0, begin) and [end, time) of that row, where
// they belong to no other sequence, are padding.
struct Span {
  Index row, begin, end;
  Index length() const { return end - begin; }
};

Span span_of(const Problem& p, Index n) {
  if (p.layout.cu_seqlens) {
    return {0, read_index(p.layout.cu_seqlens, n), read_index(p.layout.cu_seqlens, n + 1)};
  }
  if (!p.layout.lengths) return {n, 0, p.time};
  const Index length = read_index(p.layout.lengths, n);
  return p.layout.left_padded ? Span{n, p.time - length, p.time} : Span{n, 0, length};
}

// The arrays of a pass: a cell's inputs, their gradients, and the rest. kStates is no array of the
// caller's but the recomputed states of a leaf.
enum OperandIndex {
  kIn = 0,
  kDin = kIn + kMaxInputs,
  kOut = kDin + kMaxInputs,
  kDy,
  kPrevious,
  kStates,
  kOperands
};

// How a gradient is summed over the axes that its input is broadcast over.
struct Reduction {
  bool over_batch = false, over_time = false, over_channels = false;
  bool any() const { return over_batch || over_time || over_channels; }
  // What the passes leave in the workspace: (N, D) sums over time, or (B, T, blocks) sums over a
  // block's channels, or the whole (B, T, D); always of the accumulation dtype.
  std::size_t partial_offset = 0;
  std::size_t partial_bytes = 0;
};

struct Plan {
  int threads = 1;
  std::size_t scalar = 4;  // bytes of a row's scalar
  int planes = 1;
  int vector_lanes = 1;
  Index block = 1;  // channels of a block
  Index blocks = 1;
  Index padded = 1;        // lanes of a row: block rounded up to vectors
  Index group = 0;         // leaves that run side by side as lanes; 0: lanes are channels
  Index row_lanes = 1;     // lanes that buffers have room for
  Index chunk_leaves = 1;  // leaves staged at once
  Index tile_leaves = 0;   // 0: units are not cut
  int levels = 2;
  int sums = 0;  // inputs whose gradient is summed over time
  bool stream_out = false;
  Reduction reduction[kMaxInputs];

  bool padding = false;  // rows have lanes of no channel

  std::size_t vector_bytes = 0;   // of one row
  std::size_t buffer_bytes = 0;   // of one staged operand
  bool buffered[kOperands] = {};  // operands that need one
  std::size_t scratch_bytes = 0;  // of one thread
  std::size_t slot_bytes = 0;     // of one published tile
  Index items = 0;
  std::size_t offsets_offset = 0;  // (N+1) items before each sequence
  std::size_t flags_offset = 0, slots_offset = 0, sums_offset = 0, total_bytes = 0;

  Index tiles_of(Index length) const {
    if (tile_leaves == 0) return 1;
    return std::max<Index>(1, ceil_div(ceil_div(length, kLeafSteps), tile_leaves));
  }
};

// Whether kernels can work on whole vectors of such an array where it lies.
bool runs_in_place(const Problem& p, const Plan& plan, DType dtype, Index channel_stride) {
  return dtype == p.accumulation && plan.planes == 1 && plan.group == 0 && channel_stride == 1;
}

// `observed`: a trace wants every merge by itself, on one thread.
Plan make_plan(const Problem& p, const CellKernels& kernels, int max_threads,
               bool observed = false) {
  Plan plan;
  plan.planes = is_complex(p.accumulation) ? 2 : 1;
  plan.scalar = size_of(p.accumulation) / static_cast<std::size_t>(plan.planes);
  plan.vector_lanes = kernels.vector_lanes;

  bool sums_channels = false;
  for (int i = 0; p.backward && i < p.inputs; ++i) {
    if (!p.din[i]) continue;
    Reduction& r = plan.reduction[i];
    r.over_batch = p.din[i].shape[0] == 1 && p.batch != 1;
    r.over_time = p.din[i].shape[1] == 1 && p.time != 1;
    r.over_channels = p.din[i].shape[2] == 1 && p.channels != 1;
    if (r.over_time) ++plan.sums;
    if (r.over_channels && !r.over_time) sums_channels = true;
  }

  // The block's shape follows the layout of the array that moves most: the output, or its gradient.
  const Array<3>& out = p.out;
  Index time_stride = out.stride[1], channel_stride = out.stride[2];
  if (p.backward) {
    const ConstArray<3>& lead = p.dy ? p.dy : (p.state_is_output ? p.states : p.in[0]);
    time_stride = lead.stride[1];
    channel_stride = lead.stride[2];
  }
  const bool rows = channel_stride == 1 || p.channels == 1;
  const bool columns = !rows && (time_stride == 1 || time_stride == -1);
  const Index scalar = static_cast<Index>(plan.scalar);

  Index longest = 0, total = 0;
  for (Index n = 0; n < p.sequences; ++n) {
    const Index length = span_of(p, n).length();
    longest = std::max(longest, length);
    total += length;
    if (!p.layout.cu_seqlens && !p.layout.lengths) {
      total = p.sequences * length;
      break;
    }
  }
  const Index elements = total * p.channels;
  plan.threads = static_cast<int>(
      std::max<Index>(1, std::min<Index>(max_threads, elements / kParallelElements)));

  Index widest = columns ? kColumnLanes : kWideLaneBytes / scalar;
  if (sums_channels) widest = kReducedLanes;
  plan.block = std::min(std::max<Index>(p.channels, 1), widest);
  const bool thin = 2 * p.channels <= plan.vector_lanes;
  if ((thin || columns) && longest >= plan.vector_lanes * kLeafSteps && !p.layout.reset &&
      !sums_channels && !observed) {
    plan.group = kGroupVectors * plan.vector_lanes;
    while (plan.group > longest / kLeafSteps) plan.group /= 2;
    plan.block = 1;
  }
  // Narrower blocks where they let every thread work on channels of its own; else tiles of time.
  const Index threads = plan.threads;
  if (threads > 1 && p.sequences > 0) {
    const auto share = [&](Index block) {  // of the threads' time that is put to use
      const Index units = p.sequences * ceil_div(p.channels, block);
      const double balanced =
          static_cast<double>(units) / static_cast<double>(round_up(units, threads));
      const double heaviest =
          static_cast<double>(longest) * static_cast<double>(std::min(block, p.channels));
      return std::min(balanced,
                      static_cast<double>(elements) / (static_cast<double>(threads) * heaviest));
    };
    const Index narrowest = std::max<Index>(kNarrowLaneBytes / scalar, plan.vector_lanes);
    if (plan.group == 0 && !sums_channels) {
      Index block = plan.block;
      while (share(block) < 0.85 && block > narrowest) {
        block = std::max(narrowest, round_up(ceil_div(block, 2), plan.vector_lanes));
      }
      if (share(block) > share(plan.block)) plan.block = block;
    }
    if (share(plan.block) < 0.85) {
      const Index tile_inputs = p.backward ? 3 : 2;
      const Index step_bytes = plan.block * scalar * plan.planes * tile_inputs;
      Index leaves = std::max<Index>(4, plan.group);
      while (plan.group == 0 && leaves * 2 * kLeafSteps * step_bytes <= kTileBytes) leaves *= 2;
      if (ceil_div(longest, kLeafSteps) > leaves) plan.tile_leaves = leaves;
    }
  }
  plan.blocks = ceil_div(p.channels, plan.block);
  plan.padded = round_up(plan.block, plan.vector_lanes);
  plan.row_lanes = std::max(plan.padded, plan.group);
  plan.chunk_leaves = columns && plan.group == 0 ? kColumnLeaves : 1;
  plan.vector_bytes = static_cast<std::size_t>(plan.row_lanes * plan.planes) * plan.scalar;
  plan.levels = Tree::levels_for(
      std::max<Index>(1, plan.tile_leaves > 0 ? plan.tile_leaves : ceil_div(longest, kLeafSteps)));
  const double moved = static_cast<double>(elements) * static_cast<double>(size_of(p.dtype));
  plan.stream_out = moved >= static_cast<double>(kStreamBytes);

  // Per thread: staged operands, the leaf's vectors, the tree.
  const Index chunk_steps = std::max<Index>(
      plan.group > 0 ? kLeafSteps : 0, std::min<Index>(plan.chunk_leaves * kLeafSteps, longest));
  const std::size_t rows_staged = static_cast<std::size_t>(chunk_steps + 1);
  plan.buffer_bytes = aligned(rows_staged * plan.vector_bytes);
  plan.padding = plan.group > 0 || p.channels % plan.vector_lanes != 0;
  const auto in_place = [&](const auto& view) {
    return !plan.padding && runs_in_place(p, plan, view.dtype, view.stride[2]);
  };
  for (int i = 0; i < p.inputs; ++i) {
    plan.buffered[kIn + i] = p.in[i] && !in_place(p.in[i]);
    const Reduction& r = plan.reduction[i];
    plan.buffered[kDin + i] = p.din[i] && !r.over_time && (r.over_channels || !in_place(p.din[i]));
  }
  plan.buffered[kOut] = plan.group > 0 || (p.out && !in_place(p.out));
  plan.buffered[kDy] = p.dy && !in_place(p.dy);
  plan.buffered[kPrevious] = p.states && !in_place(p.states);
  plan.buffered[kStates] = plan.group > 0 || (p.backward && !p.state_is_output);
  const std::size_t buffers =
      static_cast<std::size_t>(std::count(plan.buffered, plan.buffered + kOperands, true));
  const std::size_t vectors = 10 + kMaxInputs;
  plan.scratch_bytes = buffers * plan.buffer_bytes + vectors * aligned(plan.vector_bytes) +
                       aligned(Tree::bytes_for(plan.levels, plan.vector_bytes, plan.sums));

  plan.items = 0;
  Index tiled = 0;  // units times their tiles, where published
  if (p.sequences > 0 && p.channels > 0) {
    if (!p.layout.cu_seqlens && !p.layout.lengths) {
      plan.items = p.sequences * plan.tiles_of(p.time) * plan.blocks;
    } else {
      for (Index n = 0; n < p.sequences; ++n) {
        plan.items += plan.tiles_of(span_of(p, n).length()) * plan.blocks;
      }
    }
    if (plan.tile_leaves > 0) tiled = plan.items;
  }
  plan.threads = static_cast<int>(std::min<Index>(plan.threads, std::max<Index>(plan.items, 1)));

  std::size_t at = 0;
  const auto take = [&at](std::size_t bytes) {
    const std::size_t offset = at;
    at += aligned(bytes);
    return offset;
  };
  take(plan.scratch_bytes * static_cast<std::size_t>(plan.threads));
  plan.offsets_offset = take(static_cast<std::size_t>(p.sequences + 1) * sizeof(Index));
  plan.slot_bytes = 2 * plan.vector_bytes;
  plan.flags_offset = take(static_cast<std::size_t>(tiled) * sizeof(std::atomic<std::uint32_t>));
  plan.slots_offset = take(static_cast<std::size_t>(tiled) * plan.slot_bytes);
  plan.sums_offset = take(static_cast<std::size_t>(tiled) * static_cast<std::size_t>(plan.sums) *
                          plan.vector_bytes);
  for (int i = 0; i < kMaxInputs; ++i) {
    Reduction& r = plan.reduction[i];
    if (!r.any()) continue;
    Index count = p.batch * p.time * p.channels;
    if (r.over_time) {
      count = p.sequences * p.channels;
    } else if (r.over_channels) {
      count = p.batch * p.time * plan.blocks;
    }
    r.partial_bytes = static_cast<std::size_t>(count) * size_of(p.accumulation);
    r.partial_offset = take(r.partial_bytes);
  }
  plan.total_bytes = at + 128;
  return plan;
}

enum class Pass { map, run };

// One thread's share of a call.
class Worker {
 public:
  Worker(const Problem& problem, const Plan& plan, const CellKernels& kernels,
         const InstructionSet& set, char* workspace, char* scratch)
      : p_(problem),
        plan_(plan),
        kernels_(kernels),
        set_(set),
        map_kernels_(
            set.map[static_cast<int>(problem.accumulation) - static_cast<int>(DType::f32)]),
        workspace_(workspace),
        plane_(plan.row_lanes),
        row_(plan.row_lanes * plan.planes),
        tree_(make_tree(scratch)) {
    // Lanes of no channel are computed along; what they start from is merely not to be garbage.
    if (plan.padding) std::memset(scratch, 0, plan.scratch_bytes);
    char* at = scratch;
    for (int i = 0; i < kOperands; ++i) {
      if (!plan_.buffered[i]) continue;
      operands_[i].buffer = at;
      at += plan_.buffer_bytes;
    }
    const auto vector = [&] {
      char* here = at;
      at += aligned(plan_.vector_bytes);
      return here;
    };
    state_ = vector();
    map_a_ = vector();
    map_x_ = vector();
    start_ = vector();
    initial_ = vector();
    carries_ = vector();
    spare_a_ = vector();
    spare_x_ = vector();
    zeros_ = vector();
    sink_ = vector();
    std::memset(zeros_, 0, plan.vector_bytes);
    for (int s = 0; s < plan_.sums; ++s) sum_[s] = vector();
    flags_ = reinterpret_cast<std::atomic<std::uint32_t>*>(workspace_ + plan_.flags_offset);
  }

  void observe(TreeObserver* observer) { tree_.observe(observer, carries_); }

  /// Tile `tile` of block `block` of sequence n; `first_item` is the item of its tile 0.
  void item(Index n, Index block, Index tile, Index first_item) {
    enter(n, block);
    const Index tiles = plan_.tiles_of(length_);
    if (tile == 0) fill_padding();
    const Index first = tile * plan_.tile_leaves;
    const Index last = tiles == 1 ? leaves_ : std::min(leaves_, first + plan_.tile_leaves);
    load_start();
    if (tile > 0) {
      if (tile + 1 < tiles) {
        tree_.begin(nullptr);
        process(Pass::map, first, last);
        publish(first_item, tile);
      }
      look_back(first_item, tile);
    }
    tree_.begin(start_);
    if (leaves_ == 0) std::memcpy(state_, start_, plan_.vector_bytes);
    process(Pass::run, first, last);
    if (tile == 0 && tiles > 1) publish(first_item, 0);
    if (tile + 1 == tiles) store_finish();
    for (int s = 0; s < plan_.sums; ++s) {
      char* total = spare_a_;
      tree_.fold_sum(s, total, false);
      if (tiles > 1) {
        std::memcpy(tile_sum(first_item + tile, s), total, plan_.vector_bytes);
      } else {
        store_sum(s, total);
      }
    }
  }

  /// Adds the tiles' sums of a unit in the tree's bracketing.
  void fold_tile_sums(Index n, Index block, Index first_item) {
    enter(n, block);
    const Index tiles = plan_.tiles_of(length_);
    if (tiles == 1) return;
    const bool last_is_whole = leaves_ % plan_.tile_leaves == 0;
    const Index whole = last_is_whole ? tiles : tiles - 1;
    for (int s = 0; s < plan_.sums; ++s) {
      // Level by level in place: the sum of 2^l tiles ends up at the last of them.
      for (Index width = 1; width * 2 <= whole; width *= 2) {
        for (Index end = 2 * width; end <= whole; end += 2 * width) {
          add(tile_sum(first_item + end - width - 1, s), tile_sum(first_item + end - 1, s));
        }
      }
      char* total = spare_a_;
      bool started = false;
      if (!last_is_whole) {
        std::memcpy(total, tile_sum(first_item + tiles - 1, s), plan_.vector_bytes);
        started = true;
      }
      Index end = whole;
      for (Index width = 1; end > 0; width *= 2) {
        if ((end & width) == 0) continue;
        if (started) {
          add(tile_sum(first_item + end - 1, s), total);
        } else {
          std::memcpy(total, tile_sum(first_item + end - 1, s), plan_.vector_bytes);
          started = true;
        }
        end -= width;
      }
      store_sum(s, total);
    }
  }

 private:
  // One array of the current unit, in the order of the recurrence.
  struct Operand {
    char* base = nullptr;  // its element at step 0, first channel; null: absent
    Index step = 0, lane = 0;
    DType dtype = DType::f32;
    bool direct = false;  // kernels read or write lanes [0, direct_lanes_) in place
    char* buffer = nullptr;
  };

  Tree make_tree(char* scratch) const {
    const std::size_t tree_bytes =
        aligned(Tree::bytes_for(plan_.levels, plan_.vector_bytes, plan_.sums));
    return Tree(map_kernels_, static_cast<int>(plan_.padded), plan_.row_lanes, plan_.vector_bytes,
                plan_.levels, plan_.sums, scratch + plan_.scratch_bytes - tree_bytes);
  }

  // --- entering a unit -------------------------------------------------------------------------

  template <class View>
  void bind(Operand& operand, const View& view) {
    operand.base = nullptr;
    if (!view) return;
    const Index first = p_.layout.reverse ? span_.end - 1 : span_.begin;
    const Index size = static_cast<Index>(size_of(view.dtype));
    operand.dtype = view.dtype;
    operand.step = p_.layout.reverse ? -view.stride[1] : view.stride[1];
    operand.lane = view.stride[2];
    char* data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data)));
    operand.base =
        data +
        (span_.row * view.stride[0] + first * view.stride[1] + channel_ * view.stride[2]) * size;
    operand.direct = runs_in_place(p_, plan_, view.dtype, operand.lane);
    any_direct_ = any_direct_ || operand.direct;
  }

  void enter(Index n, Index block) {
    n_ = n;
    block_index_ = block;
    span_ = span_of(p_, n);
    length_ = span_.length();
    leaves_ = ceil_div(length_, kLeafSteps);
    channel_ = block * plan_.block;
    lanes_ = std::min(plan_.block, p_.channels - channel_);
    any_direct_ = false;
    staged_ = -1;
    group_staged_ = -1;
    for (int i = 0; i < p_.inputs; ++i) bind(operands_[kIn + i], p_.in[i]);
    bind(operands_[kOut], p_.out);
    bind(operands_[kDy], p_.dy);
    bind(operands_[kPrevious], p_.states);
    int sums = 0;
    for (int i = 0; p_.backward && i < p_.inputs; ++i) {
      const Reduction& r = plan_.reduction[i];
      sum_input_[i] = -1;
      if (r.over_time) {
        operands_[kDin + i].base = nullptr;
        if (p_.din[i]) sum_input_[i] = sums++;
      } else if (r.any() && !r.over_channels) {
        Array<3> partial{workspace_ + r.partial_offset,
                         p_.accumulation,
                         {p_.batch, p_.time, p_.channels},
                         {p_.time * p_.channels, p_.channels, 1}};
        bind(operands_[kDin + i], partial);
      } else {
        bind(operands_[kDin + i], p_.din[i]);
        if (r.over_channels) operands_[kDin + i].direct = false;
      }
    }
    direct_lanes_ = any_direct_ ? lanes_ / plan_.vector_lanes * plan_.vector_lanes : 0;
    reset_ = nullptr;
    if (p_.layout.reset) {
      const ConstArray<2>& reset = p_.layout.reset;
      const Index first = p_.layout.reverse ? span_.end - 1 : span_.begin;
      reset_ = static_cast<const std::uint8_t*>(reset.data) + span_.row * reset.stride[0] +
               first * reset.stride[1];
      reset_step_ = p_.layout.reverse ? -reset.stride[1] : reset.stride[1];
    }
  }

  // --- transfers -------------------------------------------------------------------------------

  void load(const Operand& o, Index step, Index steps, Index lane, Index lanes, char* rows) const {
    if (steps <= 0 || lanes <= 0) return;
    const Index at = step * o.step + lane * o.lane;
    TransferArgs g{static_cast<Index>(steps),
                   static_cast<int>(lanes),
                   o.base + at * static_cast<Index>(size_of(o.dtype)),
                   rows + lane * static_cast<Index>(plan_.scalar),
                   o.step,
                   o.lane,
                   row_,
                   plane_};
    set_.load[static_cast<int>(o.dtype)](g);
  }

  void store(const Operand& o, Index step, Index steps, Index lane, Index lanes, const char* rows,
             Index row_stride) const {
    if (steps <= 0 || lanes <= 0) return;
    const Index at = step * o.step + lane * o.lane;
    TransferArgs g{static_cast<Index>(steps),
                   static_cast<int>(lanes),
                   rows + lane * static_cast<Index>(plan_.scalar),
                   o.base + at * static_cast<Index>(size_of(o.dtype)),
                   o.step,
                   o.lane,
                   row_stride,
                   plane_,
                   plan_.stream_out};
    set_.store[static_cast<int>(o.dtype)](g);
  }

  template <class View>
  Operand vector_operand(const View& view) const {  // row n of an (N,D) array
    Operand o;
    o.dtype = view.dtype;
    o.lane = view.stride[1];
    char* data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data)));
    o.base = data + (n_ * view.stride[0] + channel_ * view.stride[1]) *
                        static_cast<Index>(size_of(view.dtype));
    return o;
  }

  template <class View>
  void load_vector(const View& view, char* vector) const {
    std::memset(vector, 0, plan_.vector_bytes);
    if (view) load(vector_operand(view), 0, 1, 0, lanes_, vector);
  }

  template <class View>
  void store_vector(const View& view, const char* vector) const {
    if (view) store(vector_operand(view), 0, 1, 0, lanes_, vector, row_);
  }

  void load_start() {
    load_vector(p_.initial, initial_);
    if (p_.backward) {
      load_vector(p_.dfinal, start_);
    } else {
      std::memcpy(start_, initial_, plan_.vector_bytes);
    }
  }

  void store_finish() const {
    if (p_.backward) {
      store_vector(p_.dinitial, state_);
    } else {
      store_vector(p_.final_state, state_);
    }
  }

  Array<2> sum_array(int input) const {
    return {workspace_ + plan_.reduction[input].partial_offset,
            p_.accumulation,
            {p_.sequences, p_.channels},
            {p_.channels, 1}};
  }

  void store_sum(int s, const char* total) const {
    for (int i = 0; i < p_.inputs; ++i) {
      if (sum_input_[i] == s) store_vector(sum_array(i), total);
    }
  }

  void fill_padding() const {
    if (!p_.layout.lengths) return;
    const Index before = p_.layout.reverse ? p_.time - span_.end : span_.begin;
    const Index after = p_.time - length_ - before;
    const auto fill = [&](const Operand& o) {
      if (o.base == nullptr) return;
      store(o, -before, before, 0, lanes_, zeros_, 0);
      store(o, length_, after, 0, lanes_, zeros_, 0);
    };
    fill(operands_[kOut]);
    for (int i = 0; p_.backward && i < p_.inputs; ++i) {
      if (!plan_.reduction[i].over_channels) fill(operands_[kDin + i]);
    }
  }

  // --- leaves ----------------------------------------------------------------------------------

  // The leaf at place j in the order of processing: backward starts at the sequence's end.
  Index leaf_at(Index j) const { return p_.backward ? leaves_ - 1 - j : j; }

  Index steps_of(Index leaf) const {
    return std::min<Index>(kLeafSteps, length_ - leaf * kLeafSteps);
  }

  bool reads(int i, Pass pass) const {
    const unsigned wanted = p_.backward         ? p_.backward_inputs
                            : pass == Pass::map ? p_.map_inputs
                                                : (1u << p_.inputs) - 1;
    return ((wanted >> i) & 1u) != 0 && operands_[kIn + i].base != nullptr;
  }

  // Processes places [first, last) of the unit.
  void process(Pass pass, Index first, Index last) {
    staged_ = -1;
    first_leaf_ = p_.backward ? leaves_ - last : first;
    last_leaf_ = p_.backward ? leaves_ - first : last;
    for (Index j = first; j < last;) {
      Index lanes = plan_.group;
      while (lanes >= plan_.vector_lanes && !is_group(j, lanes, last)) lanes /= 2;
      if (lanes > 1 && lanes >= plan_.vector_lanes) {
        run_group(pass, j, lanes);
        j += lanes;
      } else {
        run_leaf(pass, j);
        ++j;
      }
    }
    flush(pass);
  }

  // Whether `lanes` whole leaves from place j on are a subtree of the merge tree.
  bool is_group(Index j, Index lanes, Index last) const {
    return j % lanes == 0 && j + lanes <= last && steps_of(leaf_at(j)) == kLeafSteps &&
           steps_of(leaf_at(j + lanes - 1)) == kLeafSteps;
  }

  // Copies what the kernels can't read in place of the chunk that leaf `leaf` lies in.
  void stage(Pass pass, Index leaf) {
    const Index chunk = leaf / plan_.chunk_leaves;
    if (chunk == staged_) return;
    flush(pass);
    staged_ = chunk;
    group_staged_ = -1;
    // Only as far as the tile goes: its neighbours write the rest of the chunk.
    const Index first = std::max(chunk * plan_.chunk_leaves, first_leaf_);
    const Index last = std::min((chunk + 1) * plan_.chunk_leaves, last_leaf_);
    chunk_step_ = first * kLeafSteps;
    chunk_steps_ = std::min(last * kLeafSteps, length_) - chunk_step_;
    const auto fetch = [&](const Operand& o) {
      const Index lane = o.direct ? direct_lanes_ : 0;
      load(o, chunk_step_, chunk_steps_, lane, lanes_ - lane, o.buffer);
    };
    for (int i = 0; i < p_.inputs; ++i) {
      if (reads(i, pass)) fetch(operands_[kIn + i]);
    }
    if (!p_.backward) return;
    if (operands_[kDy].base != nullptr) fetch(operands_[kDy]);
    const Operand& h = operands_[kPrevious];
    if (pass == Pass::run && h.base != nullptr && h.buffer != nullptr) {
      // Row r is the state before step chunk_step_ + r.
      const Index lane = h.direct ? direct_lanes_ : 0;
      if (chunk_step_ > 0) {
        load(h, chunk_step_ - 1, chunk_steps_, lane, lanes_ - lane, h.buffer);
      } else {
        std::memcpy(h.buffer, initial_, plan_.vector_bytes);
        load(h, 0, chunk_steps_ - 1, lane, lanes_ - lane, h.buffer + row_bytes());
      }
    }
  }

  // Writes back what kernels left in the buffers for the staged chunk.
  void flush(Pass pass) {
    if (staged_ < 0 || pass == Pass::map) {
      staged_ = -1;
      return;
    }
    staged_ = -1;
    const auto write = [&](const Operand& o) {
      if (o.base == nullptr) return;
      const Index lane = o.direct ? direct_lanes_ : 0;
      store(o, chunk_step_, chunk_steps_, lane, lanes_ - lane, o.buffer, row_);
    };
    write(operands_[kOut]);
    for (int i = 0; p_.backward && i < p_.inputs; ++i) {
      if (plan_.reduction[i].over_channels) {
        sum_over_channels(i);
      } else {
        write(operands_[kDin + i]);
      }
    }
  }

  std::size_t row_bytes() const { return static_cast<std::size_t>(row_) * plan_.scalar; }

  // Rows from step `step` on, lanes from `lane` on; `step` lies in the staged chunk.
  ConstRows rows_of(const Operand& o, Index step, Index lane, bool in_place) const {
    if (o.base == nullptr) return {zeros_, 0};
    if (o.direct && in_place) {
      return {o.base + (step * o.step + lane) * static_cast<Index>(plan_.scalar), o.step};
    }
    return {o.buffer + (step - chunk_step_) * static_cast<Index>(row_bytes()) +
                lane * static_cast<Index>(plan_.scalar),
            row_};
  }
  // The same for an array that is written; one that isn't wanted has a row to throw away.
  Rows output_rows(const Operand& o, Index step, Index lane, bool in_place) const {
    if (o.base == nullptr) return {sink_, 0};
    const ConstRows rows = rows_of(o, step, lane, in_place);
    return {const_cast<void*>(rows.data), rows.stride};
  }

  // Whether the rows that a leaf writes are all of the kind that stores past the caches take.
  bool goes_past_cache(const Operand& o, Index step) const {
    if (o.base == nullptr) return true;
    const Rows rows = output_rows(o, step, 0, true);
    const std::size_t bytes = static_cast<std::size_t>(plan_.vector_lanes) * plan_.scalar;
    return o.direct && reinterpret_cast<std::uintptr_t>(rows.data) % bytes == 0 &&
           rows.stride % plan_.vector_lanes == 0;
  }

  static char* at_lane(char* vector, Index lane, std::size_t scalar) {
    return vector + lane * static_cast<Index>(scalar);
  }

  Index checkpoint_row(Index leaf) const {
    const Index base = p_.layout.cu_seqlens ? span_.begin / kLeafSteps + n_
                                            : span_.row * (p_.time / kLeafSteps + 1);
    return base + leaf;
  }

  // Checkpoints of leaves `leaf`, `leaf` + direction, ... as an operand whose steps are leaves.
  Operand checkpoint_operand(Index leaf, Index direction) const {
    Operand o;
    o.dtype = p_.accumulation;
    o.base =
        static_cast<char*>(p_.checkpoints.data) + (checkpoint_row(leaf) * p_.channels + channel_) *
                                                      static_cast<Index>(size_of(p_.accumulation));
    o.lane = direction == 0 ? 1 : direction * p_.channels;
    return o;
  }

  LeafArgs arguments(Index leaf, Index lane, Index lanes, bool in_place) {
    LeafArgs g;
    const Index step = leaf * kLeafSteps;
    g.cell = p_.cell;
    g.steps = static_cast<int>(steps_of(leaf));
    g.lanes = static_cast<int>(lanes);
    g.plane = plane_;
    g.resident = !in_place && plan_.group + plan_.chunk_leaves > 1;
    for (int i = 0; i < p_.inputs; ++i) g.in[i] = rows_of(operands_[kIn + i], step, lane, in_place);
    if (reset_ != nullptr) {
      g.reset = reset_ + step * reset_step_;
      g.reset_stride = reset_step_;
    }
    g.state = at_lane(state_, lane, plan_.scalar);
    g.map_a = at_lane(map_a_, lane, plan_.scalar);
    g.map_x = at_lane(map_x_, lane, plan_.scalar);
    if (!p_.backward) {
      g.out = output_rows(operands_[kOut], step, lane, in_place);
      g.past_cache = plan_.stream_out && in_place && goes_past_cache(operands_[kOut], step);
      return g;
    }
    g.dy = rows_of(operands_[kDy], step, lane, in_place);
    if (p_.state_is_output) {
      const Operand& h = operands_[kPrevious];
      if (h.base != nullptr) {
        if (h.direct && in_place) {
          g.c_prev = rows_of(h, step - 1, lane, true);
          g.c_first = step == 0 ? at_lane(initial_, lane, plan_.scalar) : g.c_prev.data;
        } else {
          g.c_prev = rows_of(h, step, lane, false);
          g.c_first = g.c_prev.data;
        }
      }
    } else {
      char* states = operands_[kStates].buffer + lane * static_cast<Index>(plan_.scalar);
      g.c_first = states;
      g.c_prev = {states, row_};
      g.c = {states + row_bytes(), row_};
    }
    for (int i = 0; i < p_.inputs; ++i) {
      g.din[i] = output_rows(operands_[kDin + i], step, lane, in_place);
      g.past_cache = (i == 0 ? plan_.stream_out && in_place : g.past_cache) &&
                     goes_past_cache(operands_[kDin + i], step);
      g.sum[i] = sum_input_[i] < 0 ? nullptr : at_lane(sum_[sum_input_[i]], lane, plan_.scalar);
    }
    return g;
  }

  void call(Pass pass, const LeafArgs& g) {
    if (p_.backward && !p_.state_is_output) {
      LeafArgs states = g;
      states.out = {const_cast<void*>(g.c.data), row_};
      states.state = const_cast<char*>(static_cast<const char*>(g.c_first));
      // The kernel updates its state; the row of the first state must survive it.
      char* first = at_lane(spare_x_, 0, plan_.scalar);
      std::memcpy(first, g.c_first, static_cast<std::size_t>(g.lanes) * plan_.scalar);
      states.state = first;
      kernels_.states(states);
    }
    if (pass == Pass::map) {
      (p_.backward ? kernels_.map_backward : kernels_.map)(g);
    } else {
      (p_.backward ? kernels_.run_backward : kernels_.run)(g);
    }
  }

  bool has_reset(Index leaf) const {
    const Index first = leaf * kLeafSteps;
    for (Index t = first; reset_ != nullptr && t < first + steps_of(leaf); ++t) {
      if (reset_[t * reset_step_] != 0) return true;
    }
    return false;
  }

  void* const* sums(Pass pass) {
    if (pass == Pass::map) {
      for (int s = 0; s < plan_.sums; ++s) std::memset(sum_[s], 0, plan_.vector_bytes);
    }
    for (int s = 0; s < plan_.sums; ++s) sum_pointers_[s] = sum_[s];
    return sum_pointers_;
  }

  // One leaf, lanes are channels: those of whole vectors in place where arrays allow, the rest
  // staged.
  void run_leaf(Pass pass, Index j) {
    const Index leaf = leaf_at(j);
    stage(pass, leaf);
    if (pass == Pass::run) {
      std::memcpy(state_, tree_.state(), plan_.vector_bytes);
      if (!p_.backward && p_.checkpoints) {
        store(checkpoint_operand(leaf, 0), 0, 1, 0, lanes_, state_, row_);
      }
    }
    if (p_.backward && !p_.state_is_output) {
      load(checkpoint_operand(leaf, 0), 0, 1, 0, lanes_, operands_[kStates].buffer);
    }
    if (direct_lanes_ > 0) call(pass, arguments(leaf, 0, direct_lanes_, true));
    if (direct_lanes_ < plan_.padded && direct_lanes_ < lanes_) {
      const Index rest = round_up(lanes_ - direct_lanes_, plan_.vector_lanes);
      call(pass, arguments(leaf, direct_lanes_, rest, false));
    }
    tree_.push(0, map_a_, map_x_, has_reset(leaf), sums(pass));
  }

  // `lanes` whole leaves of one channel side by side, a subtree of the sequence's tree. In a tile
  // of one group the pass that runs finds what the pass before it staged and merged.
  void run_group(Pass pass, Index j, Index lanes) {
    flush(pass);
    const Index direction = p_.backward ? -1 : 1;
    const Index leaf = leaf_at(j);
    const Index step = leaf * kLeafSteps;
    const bool again = group_staged_ == j;
    const auto view = [&](const Operand& o) {
      Operand segments = o;
      segments.lane = direction * kLeafSteps * o.step;
      return segments;
    };
    const auto fetch = [&](const Operand& o) {
      load(view(o), step, kLeafSteps, 0, lanes, o.buffer);
    };
    for (int i = 0; i < p_.inputs; ++i) {
      if (reads(i, pass) && !(again && reads(i, Pass::map))) fetch(operands_[kIn + i]);
    }
    chunk_step_ = 0;
    LeafArgs g = arguments(0, 0, lanes, false);
    g.steps = kLeafSteps;
    if (!again) {
      if (p_.backward && operands_[kDy].base != nullptr) fetch(operands_[kDy]);
      if (p_.backward && !p_.state_is_output) {
        load(checkpoint_operand(leaf, direction), 0, 1, 0, lanes, operands_[kStates].buffer);
      }
      LeafArgs map = g;
      map.map_a = tree_rows();
      map.map_x = tree_rows() + row_bytes();
      call(Pass::map, map);
      map_kernels_.merge_lanes(lane_tree(lanes));
      group_staged_ = j;
      for (int i = 0; i < p_.inputs; ++i) {
        if (reads(i, pass))
          prefetch_group(operands_[kIn + i], step + direction * lanes * kLeafSteps, lanes);
      }
      prefetch_group(operands_[kDy], step + direction * lanes * kLeafSteps, lanes);
      prefetch_group(operands_[kPrevious], step + direction * lanes * kLeafSteps, lanes);
    }
    if (pass == Pass::run) {
      stage_previous_of_group(view(operands_[kPrevious]), leaf, lanes);
      copy_lane(carries_, 0, static_cast<const char*>(tree_.state()), 0);
      map_kernels_.states_of_lanes(lane_tree(lanes));
      if (!p_.backward && p_.checkpoints) {
        store(checkpoint_operand(leaf, direction), 0, 1, 0, lanes, carries_, row_);
      }
      std::memcpy(state_, carries_, plan_.vector_bytes);
      (p_.backward ? kernels_.run_backward : kernels_.run)(g);
      const auto write = [&](const Operand& o) {
        if (o.base != nullptr) store(view(o), step, kLeafSteps, 0, lanes, o.buffer, row_);
      };
      write(operands_[kOut]);
      for (int i = 0; p_.backward && i < p_.inputs; ++i) write(operands_[kDin + i]);
      copy_lane(state_, 0, state_, lanes - 1);
      for (int s = 0; s < plan_.sums; ++s) {
        map_kernels_.sum_lanes(static_cast<int>(lanes), plane_, sum_[s]);
      }
    }
    int level = 0;
    while ((Index{1} << level) < lanes) ++level;
    copy_lane(map_a_, 0, tree_rows() + static_cast<std::size_t>(2 * level) * row_bytes(), 0);
    copy_lane(map_x_, 0, tree_rows() + static_cast<std::size_t>(2 * level + 1) * row_bytes(), 0);
    tree_.push(level, map_a_, map_x_, false, sums(pass));
  }

  // Hints at what the next group reads, while this one is computed.
  void prefetch_group(const Operand& o, Index leaf_step, Index lanes) const {
    if (o.base == nullptr || (o.step != 1 && o.step != -1)) return;
    const Index size = static_cast<Index>(size_of(o.dtype));
    const Index steps = lanes * kLeafSteps;
    Index first = p_.backward ? leaf_step + kLeafSteps - steps : leaf_step;
    first = std::max<Index>(first, 0);
    const Index last = std::min(first + steps, length_);
    const char* from = o.base + (o.step == 1 ? first : -(last - 1)) * size;
    for (Index at = 0; at < (last - first) * size; at += 64) __builtin_prefetch(from + at, 0, 2);
  }

  // The state before every step of a group: the output one step earlier, or the initial state.
  void stage_previous_of_group(const Operand& h, Index leaf, Index lanes) {
    if (h.base == nullptr) return;
    const Index step = leaf * kLeafSteps;
    const bool at_start = leaf - (lanes - 1) == 0;  // backward: the last lane is the first leaf
    const Index safe = at_start ? lanes - 1 : lanes;
    load(h, step - 1, kLeafSteps, 0, safe, h.buffer);
    if (at_start) {
      load(h, step, kLeafSteps - 1, safe, 1, h.buffer + row_bytes());
      copy_lane(h.buffer, safe, initial_, 0);
    }
  }

  // Rows for the tree over a group's lanes, in the buffer that this direction has no other use for.
  char* tree_rows() const { return operands_[p_.backward ? kOut : kStates].buffer; }

  LaneTree lane_tree(Index lanes) const {
    return {static_cast<int>(lanes), plane_, tree_rows(), row_, carries_};
  }

  void copy_lane(char* to, Index to_lane, const char* from, Index from_lane) const {
    const Index scalar = static_cast<Index>(plan_.scalar);
    for (int k = 0; k < plan_.planes; ++k) {
      std::memcpy(to + (k * plane_ + to_lane) * scalar, from + (k * plane_ + from_lane) * scalar,
                  plan_.scalar);
    }
  }

  template <class S>
  void sum_rows(int input) {
    S* partial = reinterpret_cast<S*>(workspace_ + plan_.reduction[input].partial_offset);
    const S* rows = reinterpret_cast<const S*>(operands_[kDin + input].buffer);
    for (Index t = 0; t < chunk_steps_; ++t) {
      const Index step = chunk_step_ + t;
      const Index time = p_.layout.reverse ? span_.end - 1 - step : span_.begin + step;
      for (int k = 0; k < plan_.planes; ++k) {
        double total = 0;
        for (Index i = 0; i < lanes_; ++i)
          total += static_cast<double>(rows[t * row_ + k * plane_ + i]);
        partial[((span_.row * p_.time + time) * plan_.blocks + block_index_) * plan_.planes + k] =
            static_cast<S>(total);
      }
    }
  }
  void sum_over_channels(int input) {
    if (plan_.reduction[input].over_time) return;
    if (plan_.scalar == 4) {
      sum_rows<float>(input);
    } else {
      sum_rows<double>(input);
    }
  }

  // --- between tiles ---------------------------------------------------------------------------

  char* slot(Index item) const {
    return workspace_ + plan_.slots_offset + static_cast<std::size_t>(item) * plan_.slot_bytes;
  }
  char* tile_sum(Index item, int s) const {
    return workspace_ + plan_.sums_offset +
           static_cast<std::size_t>(item * plan_.sums + s) * plan_.vector_bytes;
  }
  void add(const char* earlier, char* total) const {
    map_kernels_.add(static_cast<int>(plan_.padded), plane_, earlier, total);
  }

  // Flags: 0 unpublished, 1 a map, 2 a map with a reset in it.
  bool wait_for(Index item) const {
    std::uint32_t flag;
    for (int spins = 0; (flag = flags_[item].load(std::memory_order_acquire)) == 0; ++spins) {
      if (spins < 2000) {
#if defined(__x86_64__)
        _mm_pause();
#endif
      } else {
        std::this_thread::yield();  // the tile's thread may have been put off its core
      }
    }
    return flag == 2;
  }

  // Publishes the largest complete node that ends with this tile: its own map, merged with the
  // nodes of earlier tiles wherever the tree closes here. Those tiles were taken before this one,
  // by threads that publish before they wait for anything else, so the wait ends.
  void publish(Index first_item, Index tile) {
    char* a = slot(first_item + tile);
    char* x = a + plan_.vector_bytes;
    std::memcpy(a, tree_.top_a(), plan_.vector_bytes);
    std::memcpy(x, tree_.top_x(), plan_.vector_bytes);
    bool cut = tree_.top_cut();
    for (Index width = 1; (tile & width) != 0; width *= 2) {
      const Index sibling = first_item + tile - width;
      const bool sibling_cut = wait_for(sibling);
      if (!cut) {
        map_kernels_.merge(static_cast<int>(plan_.padded), plane_, slot(sibling),
                           slot(sibling) + plan_.vector_bytes, a, x);
      }
      cut = cut || sibling_cut;
    }
    flags_[first_item + tile].store(cut ? 2 : 1, std::memory_order_release);
  }

  // start_ becomes the state before this tile: the nodes of its number's binary digits, oldest
  // first.
  void look_back(Index first_item, Index tile) {
    Index end = 0;
    for (Index width = Index{1} << 40; width >= 1; width /= 2) {
      if ((tile & width) == 0) continue;
      end += width;
      const Index node = first_item + end - 1;
      if (wait_for(node)) {
        std::memcpy(start_, slot(node) + plan_.vector_bytes, plan_.vector_bytes);
      } else {
        map_kernels_.apply(static_cast<int>(plan_.padded), plane_, slot(node),
                           slot(node) + plan_.vector_bytes, start_, start_);
      }
    }
  }

  const Problem& p_;
  const Plan& plan_;
  const CellKernels& kernels_;
  const InstructionSet& set_;
  const MapKernels& map_kernels_;
  char* const workspace_;
  const Index plane_;
  const Index row_;
  Tree tree_;

  Operand operands_[kOperands];
  int sum_input_[kMaxInputs] = {-1, -1, -1, -1, -1, -1, -1, -1};
  char *state_ = nullptr, *map_a_ = nullptr, *map_x_ = nullptr;
  char* start_ = nullptr;    // the state (or adjoint) before the tile
  char* initial_ = nullptr;  // h0, in backward too: the state before the first step
  char *carries_ = nullptr, *spare_a_ = nullptr, *spare_x_ = nullptr, *zeros_ = nullptr;
  char* sink_ = nullptr;
  char* sum_[kMaxInputs] = {};
  void* sum_pointers_[kMaxInputs] = {};
  std::atomic<std::uint32_t>* flags_ = nullptr;

  // The unit.
  Index n_ = 0, block_index_ = 0, length_ = 0, leaves_ = 0, channel_ = 0, lanes_ = 0;
  Span span_{};
  bool any_direct_ = false;
  Index direct_lanes_ = 0;
  const std::uint8_t* reset_ = nullptr;
  Index reset_step_ = 0;
  // What the buffers hold.
  Index staged_ = -1, chunk_step_ = 0, chunk_steps_ = 0;
  Index group_staged_ = -1;               // place of the group whose inputs and tree they hold
  Index first_leaf_ = 0, last_leaf_ = 0;  // of the leaves being processed
};

struct Call {
  const Problem* problem;
  const Plan* plan;
  const CellKernels* kernels;
  const InstructionSet* set;
  char* workspace;
  const Index* items_before;  // of each sequence; null where all have the same
  std::atomic<Index> next{0};
};

void work(void* context, int thread) {
  Call& call = *static_cast<Call*>(context);
  const Plan& plan = *call.plan;
  Index item = call.next.fetch_add(1, std::memory_order_relaxed);
  if (item >= plan.items) return;
  Worker worker(*call.problem, plan, *call.kernels, *call.set, call.workspace,
                call.workspace + plan.scratch_bytes * static_cast<std::size_t>(thread));
  const Index tiles = plan.tiles_of(call.problem->time);
  for (; item < plan.items; item = call.next.fetch_add(1, std::memory_order_relaxed)) {
    Index n, within, count;
    if (call.items_before == nullptr) {
      count = tiles;
      n = item / (tiles * plan.blocks);
      within = item % (tiles * plan.blocks);
    } else {
      const Index* end = call.items_before + call.problem->sequences + 1;
      n = std::upper_bound(call.items_before, end, item) - call.items_before - 1;
      within = item - call.items_before[n];
      count = (call.items_before[n + 1] - call.items_before[n]) / plan.blocks;
    }
    const Index block = within / count;
    worker.item(n, block, within % count, item - within % count);
  }
#if defined(__x86_64__)
  if (plan.stream_out) _mm_sfence();  // stores past the caches are ordered by nothing else
#endif
}

// Sums partial gradients into din: over sequences or batch, and over channels or their blocks, in
// the order of the indices and in double precision.
template <class S>
void reduce_partial(const Problem& p, const Plan& plan, const InstructionSet& set, int input,
                    const char* workspace) {
  const Reduction& r = plan.reduction[input];
  const S* partial = reinterpret_cast<const S*>(workspace + r.partial_offset);
  const Array<3>& din = p.din[input];
  const Index rows = r.over_time ? p.sequences : p.batch;
  const Index times = r.over_time ? 1 : p.time;
  const Index channels = r.over_channels && !r.over_time ? plan.blocks : p.channels;
  const Index row_sum = r.over_batch || (r.over_time && p.layout.cu_seqlens) ? rows : 1;
  const Index channel_sum = r.over_channels ? channels : 1;
  const int planes = plan.planes;
  for (Index b = 0; b < rows; b += row_sum) {
    for (Index t = 0; t < times; ++t) {
      for (Index d = 0; d < channels; d += channel_sum) {
        S total[2] = {0, 0};
        for (int k = 0; k < planes; ++k) {
          double sum = 0;
          for (Index i = b; i < b + row_sum; ++i) {
            for (Index c = d; c < d + channel_sum; ++c) {
              sum += static_cast<double>(partial[((i * times + t) * channels + c) * planes + k]);
            }
          }
          total[k] = static_cast<S>(sum);
        }
        const Index at =
            (b / row_sum) * din.stride[0] + t * din.stride[1] + (d / channel_sum) * din.stride[2];
        TransferArgs g{
            1, 1, total, static_cast<char*>(din.data) + at * static_cast<Index>(size_of(din.dtype)),
            0, 0, 0,     1};
        set.store[static_cast<int>(din.dtype)](g);
      }
    }
  }
}

void zero_fill(const Array<3>& array, const InstructionSet& set) {
  const double zero[2] = {0, 0};
  for (Index b = 0; b < array.shape[0]; ++b) {
    for (Index t = 0; t < array.shape[1]; ++t) {
      for (Index d = 0; d < array.shape[2]; ++d) {
        const Index at = b * array.stride[0] + t * array.stride[1] + d * array.stride[2];
        TransferArgs g{
            1,    1,
            zero, static_cast<char*>(array.data) + at * static_cast<Index>(size_of(array.dtype)),
            0,    0,
            0,    1};
        set.store[static_cast<int>(array.dtype)](g);
      }
    }
  }
}

}  // namespace

std::size_t workspace_bytes(const Problem& problem, const CellKernels& cell) {
  return make_plan(problem, cell, num_threads()).total_bytes;
}

void execute(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
             Workspace workspace) {
  Plan plan = make_plan(problem, cell, num_threads());
  // The thread count may have been raised since the caller asked for the size.
  while (plan.total_bytes > workspace.bytes && plan.threads > 1) {
    plan = make_plan(problem, cell, plan.threads - 1);
  }
  if (plan.total_bytes > workspace.bytes || workspace.data == nullptr) {
    throw InvalidArgument("workspace has " + std::to_string(workspace.bytes) + " bytes, expected " +
                          std::to_string(plan.total_bytes));
  }
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(workspace.data);
  char* base = static_cast<char*>(workspace.data) + ((address + 127) / 128 * 128 - address);

  for (int i = 0; i < kMaxInputs; ++i) {
    const Reduction& r = plan.reduction[i];
    if (r.any() && !r.over_time) std::memset(base + r.partial_offset, 0, r.partial_bytes);
  }
  Index* items_before = nullptr;
  if (plan.items > 0) {
    if (problem.layout.cu_seqlens || problem.layout.lengths) {
      items_before = reinterpret_cast<Index*>(base + plan.offsets_offset);
      items_before[0] = 0;
      for (Index n = 0; n < problem.sequences; ++n) {
        items_before[n + 1] =
            items_before[n] + plan.tiles_of(span_of(problem, n).length()) * plan.blocks;
      }
    }
    if (plan.tile_leaves > 0) {
      auto* flags = reinterpret_cast<std::atomic<std::uint32_t>*>(base + plan.flags_offset);
      for (Index i = 0; i < plan.items; ++i) new (flags + i) std::atomic<std::uint32_t>(0);
    }
    Call call{&problem, &plan, &cell, &set, base, items_before, {}};
    parallel(plan.threads, work, &call);
    if (plan.sums > 0 && plan.tile_leaves > 0) {
      Worker worker(problem, plan, cell, set, base, base);
      Index first = 0;
      for (Index n = 0; n < problem.sequences; ++n) {
        const Index tiles = plan.tiles_of(span_of(problem, n).length());
        for (Index block = 0; block < plan.blocks; ++block, first += tiles) {
          worker.fold_tile_sums(n, block, first);
        }
      }
    }
  }
  for (int i = 0; problem.backward && i < problem.inputs; ++i) {
    if (!problem.din[i]) continue;
    if (plan.items == 0) {
      zero_fill(problem.din[i], set);
    } else if (plan.reduction[i].any()) {
      if (plan.scalar == 4) {
        reduce_partial<float>(problem, plan, set, i, base);
      } else {
        reduce_partial<double>(problem, plan, set, i, base);
      }
    }
  }
}

#if defined(SCANRNN_DEBUG_MERGE)
void execute_observed(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
                      UnitObserver& observer) {
  const Plan plan = make_plan(problem, cell, 1, true);
  std::vector<char> memory(plan.total_bytes);
  Worker worker(problem, plan, cell, set, memory.data(), memory.data());
  worker.observe(&observer);
  for (Index n = 0; n < problem.sequences; ++n) {
    for (Index block = 0; block < plan.blocks; ++block) {
      const Span span = span_of(problem, n);
      const Index first = block * plan.block;
      const Index channels = std::min(plan.block, problem.channels - first);
      observer.enter({n, span.row, span.begin, span.end, first, channels, plan.row_lanes});
      worker.item(n, block, 0, 0);
    }
  }
}
#endif

}  // namespace scanrnn::cpu
