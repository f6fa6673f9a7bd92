// SPDX-License-Identifier: Apache-2.0
// The CPU executor: plan, tiles, leaves, finish.
//
// A unit of work is one sequence times one block of channels. A thread runs a unit leaf after leaf:
// one pass over memory, in which every leaf yields its map beside its outputs, the merge tree turns
// maps into the state before the next leaf, and that leaf starts from it. Where units are too few
// for the threads, they are cut into tiles of 2^k leaves that several threads take in time order. A
// tile first reduces its leaves to one map, publishes it, looks back for the state before it, and
// only then runs. Both ways merge in the tree's bracketing, so they give the same bits.
//
// Lanes are channels, and a leaf is kLeafSteps steps of them, unless steps lie side by side in
// memory or channels are few: then lanes are steps, and a leaf is a run of kRunSteps steps of one
// channel.
#include "cpu/executor.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/spans.hpp"
#include "cpu/threads.hpp"
#include "cpu/tree.hpp"
#include "scanrnn/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace scanrnn::cpu {
namespace {

// Tuning. Measured on two cores of an EPYC 9004 (1 MiB second-level cache each), float32, medians.
//
// What a row is split into, the tile and the first pass matter most where one sequence keeps both
// cores busy. (1, 2^20, 64) forward, streaming 21 ms: rows split into halves of 128 bytes, a thread
// each, 53 ms (each core then prefetches the other's half too); tiles of time of 64 KiB 30.0 ms,
// 256 KiB 25.9, 1 MiB 25.2. (1, 65536, 512) in halves of 1 KiB: 36 ms, where streaming takes 11.5.
// Sparing the first pass where the state is known: (1, 2^22, 1) 2.8 to 2.5.
//
// A cell that opens gates keeps a core busier than memory does, and where every thread takes tiles
// in both passes, it opens most gates twice. Pieces of rows, each walked whole, open them once:
// (1, 65536, 256), CPU time of two threads, ms, forward and with backward,
//     gilr 34 to 17, 64 to 43   min_lstm 46 to 24, 96 to 62   rg_lru 56 to 30, 120 to 72
//     qrnn 52 to 30, 133 to 80  sru 33 to 21, 131 to 79
// where rows in one piece take one thread 16 and 39 with gilr, 23 and 52 with min_lstm. No
// processor prefetches pieces; unless they are asked for, min_lstm takes 29 and 61, row by row (not
// in groups of registers) gilr 41. The scan is left with tiles: in pieces that are asked for
// it takes one thread 9.8 and 22, in one piece 7.7 and 17.
//
// A leaf of such a cell is run in groups of as many lanes as such a piece. (4, 4096, 512), one
// thread, ms, forward and backward: row by row sru 10.3 and 25.8, qrnn 10.6 and 19.2; in groups,
// each of which asks for the next, sru 8.6 and 23.1, qrnn 9.4 and 19.6. Gradients written array by
// array (leaf.hpp): sru's backward 20.1. Gates that backward opens once: sru 17.2, qrnn 16.1.
constexpr Index kWideLaneBytes = 16384;     // a block's row: one long run of memory
constexpr Index kNarrowLaneBytes = 4096;    // the least that a row is split into,
constexpr Index kPieceLaneBytes = 256;      // or, where gates are opened, into pieces; and groups
constexpr int kPieceAhead = 8;              // steps ahead that those are asked for
constexpr Index kColumnLanes = 32;          // lanes of a block whose time axis is contiguous
constexpr Index kColumnLeaves = 8;          // leaves staged at once there: runs of 256 steps
constexpr Index kAlongLeast = 64;           // steps from which lanes are steps, where they lie so
constexpr Index kReducedLanes = 256;        // block width where a gradient is summed over channels
constexpr Index kTileBytes = 512 * 1024;    // inputs of a tile, that may be read twice
constexpr Index kParallelElements = 32768;  // below this many elements a thread isn't worth waking
constexpr int kReadySpins = 64;             // a fraction of a first pass
constexpr Index kStreamAlignment = 16;      // of such outputs
constexpr Index kStreamBytes = 4 << 20;     // outputs from this size on are written past the caches

constexpr std::size_t kRowVectors = 5, kMapVectors = 5;  // of a worker, beside its sums

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

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
  bool pieces = false;  // rows are split into pieces
  // Lanes that a kernel gets at once. One that opens gates gets a leaf in groups: what they carry
  // stays in registers, and what backward recomputes in the first-level cache.
  Index group = 1;
  Index padded = 1;        // lanes of a row: block rounded up to vectors
  bool along = false;      // sequences of kAlongLeast steps or more run with steps as lanes
  Index row_lanes = 1;     // lanes that buffers have room for
  Index run_plane = 0;     // steps that a buffer has room for, where lanes are steps
  Index kept_runs = 0;     // runs of which the steps' maps are kept between two passes
  Index chunk_leaves = 1;  // leaves staged at once
  Index tile_steps = 0;    // 0: units are not cut
  int levels = 2;
  int sums = 0;     // inputs whose gradient is summed over time
  int vectors = 0;  // inputs that are one value a channel
  bool stream_out = false;
  Reduction reduction[kMaxInputs];

  bool padding = false;  // rows have lanes of no channel

  std::size_t vector_bytes = 0;   // of one row
  std::size_t map_bytes = 0;      // of a vector of maps, sums and the tree's states
  std::size_t buffer_bytes = 0;   // of one staged operand
  std::size_t kept_bytes = 0;     // of one run
  std::size_t opened_bytes = 0;   // of one input of a group, opened
  bool buffered[kOperands] = {};  // operands that need one
  std::size_t scratch_bytes = 0;  // of one thread
  std::size_t slot_bytes = 0;     // of one published tile
  Index items = 0;
  std::size_t offsets_offset = 0;  // (N+1) items before each sequence
  std::size_t flags_offset = 0, slots_offset = 0, sums_offset = 0, total_bytes = 0;

  Index tiles_of(Index length) const {
    return tile_steps == 0 ? 1 : std::max<Index>(1, ceil_div(length, tile_steps));
  }
};

bool is_vector(const Problem& p, int input) { return (p.vector_inputs >> input & 1u) != 0; }

// Whether kernels can work on whole vectors of such an array where it lies.
bool runs_in_place(const Problem& p, const Plan& plan, DType dtype, Index channel_stride) {
  return dtype == p.accumulation && plan.planes == 1 && channel_stride == 1;
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
  plan.along = (thin || columns) && !p.layout.reset && !sums_channels && !observed;
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
    const Index unit = plan.along ? 1 : plan.vector_lanes;  // blocks are multiples of it
    const Index narrowest = plan.along ? 1 : std::max(kNarrowLaneBytes / scalar, unit);
    const auto narrowed = [&](Index least) {
      Index block = plan.block;
      while (share(block) < 0.85 && block > least) {
        block = std::max(least, round_up(ceil_div(block, 2), unit));
      }
      return block;
    };
    if (!sums_channels) {
      const Index block = narrowed(narrowest);
      if (share(block) > share(plan.block)) plan.block = block;
    }
    if (!sums_channels && !plan.along && !kernels.step_is_input) {
      const Index piece = narrowed(std::max(kPieceLaneBytes / scalar, unit));
      plan.pieces = piece < plan.block && share(piece) >= 0.85;
      if (plan.pieces) plan.block = piece;
    }
    if (share(plan.block) < 0.85) {
      Index steps = 4 * kRunSteps;
      if (plan.along) {
        plan.block = 1;
      } else {
        const Index tile_inputs = p.backward ? 3 : 2;
        const Index step_bytes = plan.block * scalar * plan.planes * tile_inputs;
        steps = 4 * kLeafSteps;
        while (2 * steps * step_bytes <= kTileBytes) steps *= 2;
      }
      if (longest > steps) plan.tile_steps = steps;
    }
  }
  plan.blocks = ceil_div(p.channels, plan.block);
  plan.padded = round_up(plan.block, plan.vector_lanes);
  plan.group = kernels.step_is_input ? plan.padded
                                     : std::max(kPieceLaneBytes / scalar, Index{plan.vector_lanes});
  plan.row_lanes = plan.padded;
  plan.chunk_leaves = columns ? kColumnLeaves : 1;
  plan.vector_bytes = static_cast<std::size_t>(plan.row_lanes * plan.planes) * plan.scalar;
  plan.map_bytes = static_cast<std::size_t>(plan.row_lanes * plan.planes) * sizeof(double);
  const Index deepest = plan.tile_steps > 0 ? plan.tile_steps : longest;
  plan.levels = Tree::levels_for(std::max<Index>(2, ceil_div(deepest, kLeafSteps)));
  const double moved = static_cast<double>(elements) * static_cast<double>(size_of(p.dtype));
  plan.stream_out = moved >= static_cast<double>(kStreamBytes);

  // Per thread: staged operands, the leaf's vectors, the tree.
  const Index chunk_steps = std::min<Index>(plan.chunk_leaves * kLeafSteps, longest);
  const std::size_t rows_staged = static_cast<std::size_t>(chunk_steps + 1);
  plan.buffer_bytes = rows_staged * plan.vector_bytes;
  if (plan.along) {
    plan.run_plane =
        round_up(std::min<Index>(kRunSteps, longest), plan.vector_lanes) + 2 * plan.vector_lanes;
    plan.buffer_bytes =
        std::max(plan.buffer_bytes, static_cast<std::size_t>(plan.run_plane) *
                                        static_cast<std::size_t>(plan.planes) * plan.scalar);
  }
  plan.buffer_bytes = aligned(plan.buffer_bytes);
  plan.padding = plan.along || p.channels % plan.vector_lanes != 0;
  const auto in_place = [&](const auto& view) {
    return !plan.padding && runs_in_place(p, plan, view.dtype, view.stride[2]);
  };
  for (int i = 0; i < p.inputs; ++i) {
    if (is_vector(p, i)) ++plan.vectors;
    plan.buffered[kIn + i] = p.in[i] && !is_vector(p, i) && !in_place(p.in[i]);
    const Reduction& r = plan.reduction[i];
    plan.buffered[kDin + i] = p.din[i] && !r.over_time && (r.over_channels || !in_place(p.din[i]));
  }
  plan.buffered[kOut] = p.out && !in_place(p.out);
  plan.buffered[kDy] = p.dy && !in_place(p.dy);
  plan.buffered[kPrevious] = p.states && !in_place(p.states);
  plan.buffered[kStates] = !p.state_is_output && (p.backward || (plan.along && p.checkpoints));
  const std::size_t buffers =
      static_cast<std::size_t>(std::count(plan.buffered, plan.buffered + kOperands, true));
  if (plan.along && plan.tile_steps > 0 && !p.backward && kernels.along.keep != nullptr) {
    plan.kept_runs = plan.tile_steps / kRunSteps;
    plan.kept_bytes = plan.scalar == 4 ? kKeptRunBytes<float> : kKeptRunBytes<double>;
  }
  if (p.backward && kernels.opened_inputs != 0) {
    plan.opened_bytes = static_cast<std::size_t>(kLeafSteps * plan.group) * plan.scalar;
  }
  const std::size_t sums = static_cast<std::size_t>(plan.sums);
  plan.scratch_bytes =
      static_cast<std::size_t>(p.inputs) * aligned(plan.opened_bytes) +
      static_cast<std::size_t>(plan.kept_runs) * plan.kept_bytes + buffers * plan.buffer_bytes +
      (kRowVectors + sums + static_cast<std::size_t>(plan.vectors)) * aligned(plan.vector_bytes) +
      (kMapVectors + sums) * aligned(plan.map_bytes) +
      aligned(Tree::bytes_for(plan.levels, plan.map_bytes, plan.sums));

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
    if (plan.tile_steps > 0) tiled = plan.items;
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
  plan.slot_bytes = 2 * plan.map_bytes;
  plan.flags_offset = take(static_cast<std::size_t>(tiled) * sizeof(std::atomic<std::uint32_t>));
  plan.slots_offset = take(static_cast<std::size_t>(tiled) * plan.slot_bytes);
  plan.sums_offset =
      take(static_cast<std::size_t>(tiled) * static_cast<std::size_t>(plan.sums) * plan.map_bytes);
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
    const std::size_t kept = static_cast<std::size_t>(plan.kept_runs) * plan.kept_bytes;
    if (plan.padding) std::memset(scratch + kept, 0, plan.scratch_bytes - kept);
    kept_ = scratch;
    char* at = scratch + kept;
    for (int i = 0; i < kOperands; ++i) {
      if (!plan_.buffered[i]) continue;
      operands_[i].buffer = at;
      at += plan_.buffer_bytes;
    }
    const auto take = [&at](std::size_t bytes) {
      char* here = at;
      at += aligned(bytes);
      return here;
    };
    for (char** row : {&state_, &leaf_x_, &initial_, &spare_, &zeros_}) {
      *row = take(plan_.vector_bytes);
    }
    for (char** vector : {&map_a_, &map_x_, &start_, &total_, &observed_}) {
      *vector = take(plan_.map_bytes);
    }
    for (int s = 0; s < plan_.sums; ++s) {
      leaf_sum_[s] = take(plan_.vector_bytes);
      sum_[s] = take(plan_.map_bytes);
    }
    for (int i = 0; i < p_.inputs; ++i) {
      if (is_vector(p_, i)) vector_[i] = take(plan_.vector_bytes);
    }
    opened_ = take(static_cast<std::size_t>(p_.inputs) * aligned(plan_.opened_bytes));
    std::memset(zeros_, 0, plan.vector_bytes);
    flags_ = reinterpret_cast<std::atomic<std::uint32_t>*>(workspace_ + plan_.flags_offset);
  }

  void observe(TreeObserver* observer) { tree_.observe(observer, observed_); }

  /// Tile `tile` of block `block` of sequence n; `first_item` is the item of its tile 0.
  void item(Index n, Index block, Index tile, Index first_item) {
    const Index channels = std::min(plan_.block, p_.channels - block * plan_.block);
    const Index lanes = runs_along(span_of(p_, n).length()) ? 1 : channels;
    for (Index lane = 0; lane < channels; lane += lanes) {
      enter(n, block, lane, lanes);
      unit(tile, first_item);
    }
  }

  /// Adds the tiles' sums of a unit in the tree's bracketing.
  void fold_tile_sums(Index n, Index block, Index first_item) {
    enter(n, block, 0, std::min(plan_.block, p_.channels - block * plan_.block));
    const Index tiles = plan_.tiles_of(length_);
    if (tiles == 1) return;
    const bool last_is_whole = leaves_ % tile_leaves() == 0;
    const Index whole = last_is_whole ? tiles : tiles - 1;
    for (int s = 0; s < plan_.sums; ++s) {
      // Level by level in place: the sum of 2^l tiles ends up at the last of them.
      for (Index width = 1; width * 2 <= whole; width *= 2) {
        for (Index end = 2 * width; end <= whole; end += 2 * width) {
          add(tile_sum(first_item + end - width - 1, s), tile_sum(first_item + end - 1, s));
        }
      }
      char* total = total_;
      bool started = false;
      if (!last_is_whole) {
        std::memcpy(total, tile_sum(first_item + tiles - 1, s), plan_.map_bytes);
        started = true;
      }
      Index end = whole;
      for (Index width = 1; end > 0; width *= 2) {
        if ((end & width) == 0) continue;
        if (started) {
          add(tile_sum(first_item + end - 1, s), total);
        } else {
          std::memcpy(total, tile_sum(first_item + end - 1, s), plan_.map_bytes);
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
    bool fixed = false;   // the base is a row for all steps
    char* buffer = nullptr;
  };

  Tree make_tree(char* scratch) const {
    const std::size_t tree_bytes =
        aligned(Tree::bytes_for(plan_.levels, plan_.map_bytes, plan_.sums));
    return Tree(map_kernels_, static_cast<int>(plan_.padded), plan_.row_lanes, plan_.map_bytes,
                plan_.levels, plan_.sums, scratch + plan_.scratch_bytes - tree_bytes);
  }

  bool runs_along(Index length) const { return plan_.along && length >= kAlongLeast; }

  Index tile_leaves() const { return plan_.tile_steps / leaf_steps_; }

  void unit(Index tile, Index first_item) {
    const Index tiles = plan_.tiles_of(length_);
    if (tile == 0) fill_padding();
    const Index first = tiles == 1 ? 0 : tile * tile_leaves();
    const Index last = tiles == 1 ? leaves_ : std::min(leaves_, first + tile_leaves());
    load_start();
    // Where the state before the tile is known already, the first pass is spared: then the map is a
    // by-product of the second. Of two threads on one sequence, one hardly ever makes the first.
    bool published = tile + 1 == tiles;
    if (tile > 0 && !published && !is_ready(first_item, tile)) {
      tree_.begin(nullptr);
      process(Pass::map, first, last);
      publish(first_item, tile);
      published = true;
      is_kept_ = true;
    }
    if (tile > 0) look_back(first_item, tile);
    tree_.begin(start_);
    if (leaves_ == 0) narrow(start_, state_);
    process(Pass::run, first, last);
    is_kept_ = false;
    if (!published) publish(first_item, tile);
    if (tile + 1 == tiles) store_finish();
    for (int s = 0; s < plan_.sums; ++s) {
      tree_.fold_sum(s, total_, false);
      if (tiles > 1) {
        std::memcpy(tile_sum(first_item + tile, s), total_, plan_.map_bytes);
      } else {
        store_sum(s, total_);
      }
    }
  }

  // --- entering a unit -------------------------------------------------------------------------

  template <class View>
  void bind(Operand& operand, const View& view) {
    operand.base = nullptr;
    operand.fixed = false;
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

  // Lanes [lane, lane + lanes) of a block.
  void enter(Index n, Index block, Index lane, Index lanes) {
    n_ = n;
    block_index_ = block;
    span_ = span_of(p_, n);
    length_ = span_.length();
    along_ = runs_along(length_);
    leaf_steps_ = along_ ? kRunSteps : kLeafSteps;
    leaves_ = ceil_div(length_, leaf_steps_);
    channel_ = block * plan_.block + lane;
    lanes_ = lanes;
    any_direct_ = false;
    staged_ = -1;
    for (int i = 0; i < p_.inputs; ++i) bind(operands_[kIn + i], p_.in[i]);
    load_vectors();
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

  // Reads the inputs that are one value a channel, once for all steps, and has the cell make of
  // them what its kernels want.
  void load_vectors() {
    for (int i = 0; i < p_.inputs; ++i) {
      if (vector_[i] == nullptr) continue;
      Operand& o = operands_[kIn + i];
      char* row = static_cast<char*>(vector_[i]);
      std::memset(row, 0, plan_.vector_bytes);
      load(o, 0, 1, 0, lanes_, row);
      o.base = row;
      o.step = 0;
      o.fixed = true;
    }
    if (kernels_.prepare != nullptr) {
      kernels_.prepare(static_cast<int>(plan_.padded), plane_, vector_);
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
    if (p_.backward) load_vector(p_.dfinal, spare_);
    widen(p_.backward ? spare_ : initial_, start_);
  }

  void widen(const void* row, void* vector) const {
    map_kernels_.widen(static_cast<int>(plan_.padded), plane_, row, vector);
  }
  void narrow(const void* vector, void* row) const {
    map_kernels_.narrow(static_cast<int>(plan_.padded), plane_, vector, row);
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
    narrow(total, spare_);
    for (int i = 0; i < p_.inputs; ++i) {
      if (sum_input_[i] == s) store_vector(sum_array(i), spare_);
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
    return std::min<Index>(leaf_steps_, length_ - leaf * leaf_steps_);
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
    for (Index j = first; j < last; ++j) {
      if (along_) {
        run_along(pass, j);
      } else {
        run_leaf(pass, j);
      }
    }
    flush(pass);
  }

  // Copies what the kernels can't read in place of the chunk that leaf `leaf` lies in.
  void stage(Pass pass, Index leaf) {
    const Index chunk = leaf / plan_.chunk_leaves;
    if (chunk == staged_) return;
    flush(pass);
    staged_ = chunk;
    // Only as far as the tile goes: its neighbours write the rest of the chunk.
    const Index first = std::max(chunk * plan_.chunk_leaves, first_leaf_);
    const Index last = std::min((chunk + 1) * plan_.chunk_leaves, last_leaf_);
    chunk_step_ = first * kLeafSteps;
    chunk_steps_ = std::min(last * kLeafSteps, length_) - chunk_step_;
    const auto fetch = [&](const Operand& o) {
      if (o.fixed) return;
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
    if (o.fixed) return {o.base + lane * static_cast<Index>(plan_.scalar), 0};
    if (o.direct && in_place) {
      return {o.base + (step * o.step + lane) * static_cast<Index>(plan_.scalar), o.step};
    }
    return {o.buffer + (step - chunk_step_) * static_cast<Index>(row_bytes()) +
                lane * static_cast<Index>(plan_.scalar),
            row_};
  }
  // The same for an array that is written, if it is wanted.
  Rows output_rows(const Operand& o, Index step, Index lane, bool in_place) const {
    if (o.base == nullptr) return {};
    const ConstRows rows = rows_of(o, step, lane, in_place);
    return {const_cast<void*>(rows.data), rows.stride};
  }

  // Whether stores past the caches can take numbers from `p` on, `stride` scalars apart.
  bool is_stream_aligned(const void* p, Index stride) const {
    return reinterpret_cast<std::uintptr_t>(p) % kStreamAlignment == 0 &&
           stride * static_cast<Index>(plan_.scalar) % kStreamAlignment == 0;
  }

  // Whether all the rows that a leaf writes of an operand go past the caches.
  bool goes_past_cache(const Operand& o, Index step) const {
    if (o.base == nullptr) return true;
    const Rows rows = output_rows(o, step, 0, true);
    return o.direct && is_stream_aligned(rows.data, rows.stride);
  }

  static char* at_lane(char* vector, Index lane, std::size_t scalar) {
    return vector + lane * static_cast<Index>(scalar);
  }

  Index checkpoint_row(Index leaf) const {
    const Index base = p_.layout.cu_seqlens ? span_.begin / kLeafSteps + n_
                                            : span_.row * (p_.time / kLeafSteps + 1);
    return base + leaf;
  }

  // The checkpoint before leaf `leaf` of kLeafSteps steps, this unit's lanes.
  Operand checkpoint_operand(Index leaf) const {
    Operand o;
    o.dtype = p_.accumulation;
    o.base =
        static_cast<char*>(p_.checkpoints.data) + (checkpoint_row(leaf) * p_.channels + channel_) *
                                                      static_cast<Index>(size_of(p_.accumulation));
    o.lane = 1;
    return o;
  }

  LeafArgs arguments(Index leaf, Index lane, Index lanes, bool in_place) {
    LeafArgs g;
    const Index step = leaf * kLeafSteps;
    g.cell = p_.cell;
    g.steps = static_cast<int>(steps_of(leaf));
    g.lanes = static_cast<int>(lanes);
    g.plane = plane_;
    g.resident = !in_place && plan_.chunk_leaves > 1;
    if (in_place && !kernels_.step_is_input) look_ahead(g, lane);
    for (int i = 0; i < p_.inputs; ++i) g.in[i] = rows_of(operands_[kIn + i], step, lane, in_place);
    if (reset_ != nullptr) {
      g.reset = reset_ + step * reset_step_;
      g.reset_stride = reset_step_;
    }
    g.state = at_lane(state_, lane, plan_.scalar);
    g.map_a = at_lane(map_a_, lane, sizeof(double));
    g.map_x = at_lane(leaf_x_, lane, plan_.scalar);
    bool past_cache = plan_.stream_out && in_place;
    if (!p_.backward) {
      g.out = output_rows(operands_[kOut], step, lane, in_place);
      g.past_cache = past_cache && goes_past_cache(operands_[kOut], step);
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
      past_cache = past_cache && goes_past_cache(operands_[kDin + i], step);
      g.sum[i] =
          sum_input_[i] < 0 ? nullptr : at_lane(leaf_sum_[sum_input_[i]], lane, plan_.scalar);
    }
    g.past_cache = past_cache;
    return g;
  }

  // Asks for the next group, the last one of a leaf for the next leaf's first.
  void look_ahead(LeafArgs& g, Index lane) const {
    if (lane + g.lanes < direct_lanes_) {
      g.ahead_lanes = g.lanes;
      return;
    }
    // Where states are recomputed, leaves are read from their start: the whole of one ahead.
    const bool whole = lane > 0 || (p_.backward && !p_.state_is_output);
    const int steps = whole ? kLeafSteps : kPieceAhead;
    g.ahead_steps = p_.backward ? -steps : steps;
    g.ahead_lanes = static_cast<int>(-lane);
  }

  void call(Pass pass, LeafArgs g) {
    if (p_.backward && !p_.state_is_output) {
      LeafArgs states = g;
      states.out = {const_cast<void*>(g.c.data), row_};
      // The kernel updates its state; the row of the first state must survive it.
      states.state = spare_;
      std::memcpy(spare_, g.c_first, static_cast<std::size_t>(g.lanes) * plan_.scalar);
      const Index group = plan_.group;
      for (int i = 0; i < p_.inputs; ++i) {
        if ((kernels_.opened_inputs >> i & 1u) == 0 || operands_[kIn + i].base == nullptr) continue;
        states.opened[i] = {opened_ + static_cast<std::size_t>(i) * aligned(plan_.opened_bytes),
                            group};
        g.in[i] = {states.opened[i].data, group};
      }
      kernels_.states(states);
      g.ahead_steps = g.ahead_lanes = 0;
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

  // Hands the tree what the kernels found of a leaf.
  void push(Pass pass, bool cut) {
    widen(leaf_x_, map_x_);
    for (int s = 0; s < plan_.sums; ++s) {
      if (pass == Pass::map) {
        std::memset(sum_[s], 0, plan_.map_bytes);
      } else {
        widen(leaf_sum_[s], sum_[s]);
      }
    }
    tree_.push(0, map_a_, map_x_, cut, sum_);
  }

  // One leaf, lanes are channels: those of whole vectors in place where arrays allow, the rest
  // staged.
  void run_leaf(Pass pass, Index j) {
    const Index leaf = leaf_at(j);
    stage(pass, leaf);
    if (pass == Pass::run) {
      narrow(tree_.state(), state_);
      if (!p_.backward && p_.checkpoints) {
        store(checkpoint_operand(leaf), 0, 1, 0, lanes_, state_, row_);
      }
    }
    if (p_.backward && !p_.state_is_output) {
      load(checkpoint_operand(leaf), 0, 1, 0, lanes_, operands_[kStates].buffer);
    }
    const Index group = plan_.group;
    for (Index lane = 0; lane < direct_lanes_; lane += group) {
      call(pass, arguments(leaf, lane, std::min(group, direct_lanes_ - lane), true));
    }
    if (direct_lanes_ < lanes_) {
      const Index end = round_up(lanes_, plan_.vector_lanes);
      for (Index lane = direct_lanes_; lane < end; lane += group) {
        call(pass, arguments(leaf, lane, std::min(group, end - lane), false));
      }
    }
    push(pass, has_reset(leaf));
  }

  // One run of a channel's steps, lanes are steps. Arrays whose time axis is contiguous are read
  // and written in place, others through buffers, in the order of time.
  void run_along(Pass pass, Index j) {
    const Index leaf = leaf_at(j);
    const Index step = leaf * leaf_steps_;
    const Index steps = steps_of(leaf);
    RunArgs g;
    g.cell = p_.cell;
    g.steps = static_cast<int>(steps);
    g.descending = p_.backward != p_.layout.reverse;
    g.plane = plan_.run_plane;
    g.state_plane = plane_;
    g.state = state_;
    g.map_a = map_a_;
    g.map_x = leaf_x_;
    for (int i = 0; i < p_.inputs; ++i) {
      if (!reads(i, pass)) continue;
      const Operand& o = operands_[kIn + i];
      if (o.step == 0) g.fixed |= 1u << i;
      g.in[i] = o.fixed ? o.base : run_input(o, step, o.step == 0 ? 1 : steps);
    }
    if (pass == Pass::run) narrow(tree_.state(), state_);
    if (!p_.state_is_output && (p_.backward || (pass == Pass::run && p_.checkpoints))) {
      run_states(g, step);
    }
    if (p_.backward) {
      if (operands_[kDy].base != nullptr) g.dy = run_input(operands_[kDy], step, steps);
      if (pass == Pass::run && p_.state_is_output) bind_previous(g, step);
    }
    const int first_output = p_.backward ? kDin : kOut;
    const int outputs = pass == Pass::map ? 0 : (p_.backward ? p_.inputs : 1);
    g.past_cache = plan_.stream_out;
    for (int i = 0; i < outputs; ++i) {
      const Operand& o = operands_[first_output + i];
      char* to = o.base == nullptr  ? nullptr
                 : is_run_direct(o) ? run_address(o, step, steps)
                                    : o.buffer;
      (p_.backward ? g.din[i] : g.out) = to;
      // Registers start where the recurrence does, at the run's end if it goes down.
      const char* start = g.descending ? to + steps * static_cast<Index>(plan_.scalar) : to;
      if (to != nullptr && (to == o.buffer || !is_stream_aligned(start, 0))) g.past_cache = false;
      if (p_.backward && sum_input_[i] >= 0) g.sum[i] = leaf_sum_[sum_input_[i]];
    }
    const RunKernels& kernels = kernels_.along;
    if (plan_.kept_runs > 0 && (pass == Pass::map || is_kept_)) {
      g.kept = kept_ + (j - first_leaf_) * static_cast<Index>(plan_.kept_bytes);
      (pass == Pass::map ? kernels.keep : kernels.finish)(g);
    } else if (pass == Pass::map) {
      (p_.backward ? kernels.map_backward : kernels.map)(g);
    } else {
      (p_.backward ? kernels.run_backward : kernels.run)(g);
    }
    for (int i = 0; i < outputs; ++i) {
      const Operand& o = operands_[first_output + i];
      if (o.base != nullptr && !is_run_direct(o)) store_run(o, step, steps);
    }
    push(pass, false);
  }

  // The step that comes first in time of `steps` of them from `step` on, and the stride of time.
  Index earliest(Index step, Index steps) const {
    return p_.layout.reverse ? step + steps - 1 : step;
  }
  Index time_stride(const Operand& o) const { return p_.layout.reverse ? -o.step : o.step; }

  bool is_run_direct(const Operand& o) const {
    return o.dtype == p_.accumulation && plan_.planes == 1 && time_stride(o) == 1;
  }
  char* run_address(const Operand& o, Index step, Index steps) const {
    return o.base + earliest(step, steps) * o.step * static_cast<Index>(size_of(o.dtype));
  }

  void load_run(const Operand& o, Index step, Index steps, char* to) const {
    if (steps <= 0) return;
    set_.load[static_cast<int>(o.dtype)]({1, static_cast<int>(steps), run_address(o, step, steps),
                                          to, 0, time_stride(o), 0, plan_.run_plane});
  }
  void store_run(const Operand& o, Index step, Index steps) const {
    set_.store[static_cast<int>(o.dtype)]({1, static_cast<int>(steps), o.buffer,
                                           run_address(o, step, steps), 0, time_stride(o), 0,
                                           plan_.run_plane});
  }
  const void* run_input(const Operand& o, Index step, Index steps) const {
    if (is_run_direct(o)) return run_address(o, step, steps);
    load_run(o, step, steps, o.buffer);
    return o.buffer;
  }

  // The states before `steps` steps: forward's output one step earlier. At the sequence's start
  // that would be outside of the array, so the register with the initial state is put together
  // aside.
  void bind_previous(RunArgs& g, Index step) const {
    const Operand& h = operands_[kPrevious];
    if (h.base == nullptr) return;
    const Index scalar = static_cast<Index>(plan_.scalar);
    const Index steps = g.steps;
    char* edge = h.buffer;  // one register, then room for a copy of the run
    char* copy = h.buffer + plan_.vector_lanes * scalar;
    const bool direct = is_run_direct(h);
    if (step > 0) {
      if (!direct) load_run(h, step - 1, steps, copy);
      g.c_prev = direct ? run_address(h, step - 1, steps) : copy;
      return;
    }
    // Steps [0, steps - 1) are what precedes steps [1, steps).
    const bool down = p_.layout.reverse;
    if (!direct) load_run(h, 0, steps - 1, copy + (down ? 0 : scalar));
    g.c_prev = direct ? h.base + (down ? (steps - 2) * h.step : -h.step) * scalar : copy;
    const Index width = plan_.vector_lanes;
    const Index at = down ? (steps - 1) / width * width : 0;
    const Index rest = steps % width == 0 ? width : steps % width;
    const Index count = (down ? steps - at : rest) - 1;  // lanes beside the initial state
    load_run(h, 0, count, edge + (down ? 0 : scalar));
    for (int k = 0; k < plan_.planes; ++k) {
      std::memcpy(edge + (k * plan_.run_plane + (down ? count : 0)) * scalar,
                  initial_ + k * plane_ * scalar, plan_.scalar);
    }
    g.c_edge = edge;
    g.edge = static_cast<int>(at);
  }

  // Recomputes the states of a run for backward, or takes checkpoints of them in forward. Real
  // types only, as are the cells that need it.
  void run_states(RunArgs& g, Index step) {
    const Index scalar = static_cast<Index>(plan_.scalar);
    const Index steps = g.steps;
    const bool down = p_.layout.reverse;
    char* c = operands_[kStates].buffer + plan_.vector_lanes * scalar;
    char* before = down ? c + steps * scalar : c - scalar;  // where the state before the run goes
    if (p_.backward) {
      load(checkpoint_operand(step / kLeafSteps), 0, 1, 0, 1, spare_);
    } else {
      std::memcpy(spare_, state_, plan_.scalar);
    }
    std::memcpy(before, spare_, plan_.scalar);
    RunArgs states = g;
    states.descending = down;
    states.state = spare_;
    states.out = c;
    kernels_.along.states(states);
    g.c = c;
    g.c_prev = down ? c + scalar : c - scalar;
    for (Index s = 0; !p_.backward && s < steps; s += kLeafSteps) {
      const char* at = down ? before - s * scalar : before + s * scalar;
      store(checkpoint_operand((step + s) / kLeafSteps), 0, 1, 0, 1, at, 0);
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
           static_cast<std::size_t>(item * plan_.sums + s) * plan_.map_bytes;
  }
  void add(const char* earlier, char* total) const {
    map_kernels_.add(static_cast<int>(plan_.padded), plane_, earlier, total);
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  // Flags: 0 unpublished, 1 a map, 2 a map with a reset in it.
  bool wait_for(Index item) const {
    std::uint32_t flag;
    for (int spins = 0; (flag = flags_[item].load(std::memory_order_acquire)) == 0; ++spins) {
      if (spins < 2000) {
        pause();
      } else {
        std::this_thread::yield();  // the tile's thread may have been put off its core
      }
    }
    return flag == 2;
  }

  // Publishes the largest complete node that ends with this tile: its own map, merged with the
  // nodes of earlier tiles wherever the tree closes here. Those tiles were taken before this one,
  // by threads that publish before they wait for more, so the wait ends.
  void publish(Index first_item, Index tile) {
    char* a = slot(first_item + tile);
    char* x = a + plan_.map_bytes;
    std::memcpy(a, tree_.top_a(), plan_.map_bytes);
    std::memcpy(x, tree_.top_x(), plan_.map_bytes);
    bool cut = tree_.top_cut();
    for (Index width = 1; (tile & width) != 0; width *= 2) {
      const Index sibling = first_item + tile - width;
      const bool sibling_cut = wait_for(sibling);
      if (!cut) {
        map_kernels_.merge(static_cast<int>(plan_.padded), plane_, slot(sibling),
                           slot(sibling) + plan_.map_bytes, a, x);
      }
      cut = cut || sibling_cut;
    }
    flags_[first_item + tile].store(cut ? 2 : 1, std::memory_order_release);
  }

  // Whether look_back would find all that it waits for, at once or within a moment: the tile before
  // may be about to publish, having waited for the same node as this thread just completed.
  bool is_ready(Index first_item, Index tile) const {
    Index rest = tile;
    for (int spins = 0; rest > 0 && spins < kReadySpins; ++spins) {
      while (rest > 0 && flags_[first_item + rest - 1].load(std::memory_order_relaxed) != 0) {
        rest &= rest - 1;
      }
      if (rest > 0) pause();
    }
    return rest == 0;
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
        std::memcpy(start_, slot(node) + plan_.map_bytes, plan_.map_bytes);
      } else {
        map_kernels_.apply(static_cast<int>(plan_.padded), plane_, slot(node),
                           slot(node) + plan_.map_bytes, start_, start_);
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
  // Rows.
  char *state_ = nullptr, *leaf_x_ = nullptr, *leaf_sum_[kMaxInputs] = {};  // of the leaf
  char *spare_ = nullptr, *zeros_ = nullptr;
  char* initial_ = nullptr;        // h0, in backward too: the state before the first step
  void* vector_[kMaxInputs] = {};  // vector inputs, as kernels read them
  char* opened_ = nullptr;         // rows of one group, by input
  // Vectors in double precision.
  char *map_a_ = nullptr, *map_x_ = nullptr, *total_ = nullptr, *observed_ = nullptr;
  char* start_ = nullptr;  // the state (or adjoint) before the tile
  void* sum_[kMaxInputs] = {};
  std::atomic<std::uint32_t>* flags_ = nullptr;

  // The unit.
  Index n_ = 0, block_index_ = 0, length_ = 0, leaves_ = 0, channel_ = 0, lanes_ = 0;
  bool along_ = false;
  Index leaf_steps_ = kLeafSteps;
  Span span_{};
  bool any_direct_ = false;
  Index direct_lanes_ = 0;
  const std::uint8_t* reset_ = nullptr;
  Index reset_step_ = 0;
  // What the buffers hold.
  Index staged_ = -1, chunk_step_ = 0, chunk_steps_ = 0;
  Index first_leaf_ = 0, last_leaf_ = 0;  // of the leaves being processed
  char* kept_ = nullptr;                  // the steps' maps of the tile's runs,
  bool is_kept_ = false;                  // if its first pass left them there
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
  return bytes_of([&](int threads) { return make_plan(problem, cell, threads); });
}

void execute(const Problem& problem, const CellKernels& cell, const InstructionSet& set,
             Workspace workspace) {
  const Placed<Plan> placed_plan = placed(
      problem.call, workspace, [&](int threads) { return make_plan(problem, cell, threads); });
  const Plan& plan = placed_plan.plan;
  char* const base = placed_plan.base;

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
    if (plan.tile_steps > 0) {
      auto* flags = reinterpret_cast<std::atomic<std::uint32_t>*>(base + plan.flags_offset);
      for (Index i = 0; i < plan.items; ++i) new (flags + i) std::atomic<std::uint32_t>(0);
    }
    Call call{&problem, &plan, &cell, &set, base, items_before, {}};
    parallel(plan.threads, work, &call);
    if (plan.sums > 0 && plan.tile_steps > 0) {
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
