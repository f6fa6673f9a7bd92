// SPDX-License-Identifier: Apache-2.0
// The CPU executor of nonlinear cells: segments, passes, and the runs of both.
//
// All that takes time is running pieces: some steps of some channels of one sequence, from a state
// that is known. A serial run is one piece a sequence; guesses, the passes of multiple shooting,
// the adjoint's maps and what falls back are other lists of pieces. Pieces know nothing of each
// other, so a thread takes several at once, side by side in the lanes of registers, and which ones
// they are doesn't show in the result.
//
// A channel of a piece is a lane. Wide pieces are cut into blocks of channels, narrow ones stand
// side by side until the lanes are full. Rows are read and written in place where a block's lanes
// lie so, else through buffers of a few steps.
#include "cpu/solve.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "cpu/spans.hpp"
#include "cpu/threads.hpp"
#include "scanrnn/core/math.hpp"
#include "scanrnn/error.hpp"

namespace scanrnn::cpu {
namespace {

// Of a row: independent registers hide a step's latency, and memory is walked in long runs. (GRU
// forward at (1,4096,512) float32 on one core of an EPYC 9004: 512 bytes 14.4 ms, 4096 bytes 5.0.)
constexpr Index kLaneBytes = 4096;
// Where channels are few, or don't lie side by side, buffers stay near instead, and have rows for
// their transposition. (The same with steps side by side: 4096 bytes 42 ms, 512 bytes 11.)
constexpr Index kNarrowBytes = 512;
constexpr Index kTogether = 128;        // pieces side by side, at most
constexpr Index kSumSteps = 32;         // that are summed in single precision
constexpr Index kBufferBytes = 16384;   // of kSumSteps rows, or fewer if they are wide
constexpr Index kBurnIn = 64;           // steps that guess a segment's start
constexpr Index kParallelSteps = 4096;  // of a channel: below, a thread isn't worth waking

// Multiple shooting runs all steps two or three times, which pays where a serial run leaves lanes
// empty and waits for one step after the other: with few channels. GRU at (1,65536,D) float32 on
// one core of the same, serial against segments: D = 1, 4, 8, forward 4.2, 4.9, 5.2 ms against 0.4,
// 1.7, 4.4; backward 8.7, 6.8, 10.9 against 1.2, 4.7, 9.0. More cores help the latter alone. (Many
// sequences of few channels would be better off serially, side by side, but a row's result is not
// to depend on them.)
constexpr Index kFewChannels = 8;
constexpr Index kShortest = 256;      // steps of a segment
constexpr Index kFewestSegments = 8;  // fewer aren't worth it
constexpr Index kSingleCost = 3;      // of a channel by itself, against one of all
constexpr Index kLanesWanted = 2048;  // segments times channels: the lanes of some threads

/// Steps of a segment of a sequence of `length` steps.
Index segment_steps(const SolveProblem& p, Index length) {
  const Index whole = std::max<Index>(length, 1);
  if (!p.backward && p.max_passes == 0) return whole;
  if (p.segment > 0) return std::min(p.segment, whole);
  if (p.channels > kFewChannels) return whole;
  const Index steps = std::max(kShortest, ceil_div(length * p.channels, kLanesWanted));
  return length >= kFewestSegments * steps ? steps : whole;
}

/// A sequence and its segments. Steps count in the order of the pass.
struct Sequence {
  Index row, origin;  ///< of the caller's arrays: step 0
  Index length;
  Index segment, segments;
  Index first;   ///< row of the first segment in the arrays of states
  int passes;    ///< that it took
  bool is_open;  ///< some of its segments are to run in the next pass
  Index last() const { return first + segments - 1; }
};

/// Steps [at, at + steps) of the channels from `channel` on.
struct Piece {
  Index row, origin, sequence;
  Index at, steps, channel;
  Index from, to;  ///< rows of its start and of its end in the arrays of states
};

/// How a list of pieces is run.
enum class Task { guess, serial, shoot, map_back, run_back };

/// An array of the caller's.
struct View {
  char* data = nullptr;
  DType dtype = DType::f32;
  Index row = 0, step = 0, lane = 0;
  explicit operator bool() const { return data != nullptr; }
  char* at(Index element) const { return data + element * static_cast<Index>(size_of(dtype)); }
};

View view_of(const ConstArray<3>& a) {
  return {static_cast<char*>(const_cast<void*>(a.data)), a.dtype, a.stride[0], a.stride[1],
          a.stride[2]};
}
/// (N,D): a row for each sequence.
View view_of(const ConstArray<2>& a) {
  return {static_cast<char*>(const_cast<void*>(a.data)), a.dtype, a.stride[0], 0, a.stride[1]};
}

bool is_vector(const SolveProblem& p, int i) { return p.type->has(p.type->vector_inputs, i); }

using Progress = SolveProgress<double>;

struct Plan {
  int threads = 1;
  Index lanes = 1;     // that rows have room for
  Index vector = 1;    // lanes of a register
  Index chunk = 1;     // steps that buffers have room for
  Index segments = 0;  // of all sequences
  Index listed = 0;    // pieces that the list has room for
  bool shoots = false;
  int sums = 0;                   // inputs whose gradient is wanted, summed
  std::size_t scratch_bytes = 0;  // of one thread
  std::size_t sequences_at = 0, list_at = 0, start_at = 0, end_at = 0, map_at = 0, moved_at = 0,
              progress_at = 0, sums_at = 0, total_bytes = 0;
};

Plan make_plan(const SolveProblem& p, const SolveKernels& kernels, int max_threads) {
  Plan plan;
  const std::size_t scalar = size_of(p.accumulation);
  plan.vector = kernels.vector_lanes;
  Index steps = 0, longest = 1;
  const bool alike = !p.layout.cu_seqlens && !p.layout.lengths;
  const Index kinds = alike ? std::min<Index>(p.sequences, 1) : p.sequences;
  const Index each = alike ? p.sequences : 1;
  for (Index n = 0; n < kinds; ++n) {
    const Index length = span_of(p, n).length();
    const Index segments = std::max<Index>(1, ceil_div(length, segment_steps(p, length)));
    plan.shoots = plan.shoots || segments > 1;
    plan.segments += each * segments;
    steps += each * length;
    longest = std::max(longest, length);
  }
  plan.threads =
      static_cast<int>(std::clamp<Index>(steps * p.channels / kParallelSteps, 1, max_threads));
  const bool wide =
      p.in[0].stride[2] == 1 && p.channels * static_cast<Index>(scalar) >= kNarrowBytes;
  const Index most = wide ? kLaneBytes : kNarrowBytes;
  plan.lanes = std::min(most / static_cast<Index>(scalar),
                        round_up(std::max<Index>(plan.segments * p.channels, 1), plan.vector));
  plan.chunk = kSumSteps;
  while (plan.chunk > 4 && (plan.chunk / 2 >= longest ||
                            plan.chunk * plan.lanes * static_cast<Index>(scalar) > kBufferBytes)) {
    plan.chunk /= 2;
  }
  plan.listed = plan.shoots ? std::max(plan.segments, p.channels) : plan.segments;

  Index staged = 0, single = 0;  // rows of every step of a chunk, and others
  for (int i = 0; i < p.type->inputs; ++i) {
    if (!is_vector(p, i)) {
      staged += 1 + (p.din[i] ? 1 : 0);
    } else {
      ++single;
    }
    if (p.sum_of(i)) ++plan.sums;
  }
  const Index states = p.type->states;
  staged += 3 + states;  // out or dy, kept, resets; states, which have one more
  // That one, what is carried, zeros; sums, also in double precision.
  single += states + states + states * states + 1 + 3 * plan.sums;
  plan.scratch_bytes =
      aligned(static_cast<std::size_t>((staged * plan.chunk + single) * plan.lanes) * scalar);

  std::size_t at = plan.scratch_bytes * static_cast<std::size_t>(plan.threads);
  const auto place = [&at](Index count, std::size_t size) {
    const std::size_t here = at;
    at += aligned(static_cast<std::size_t>(count) * size);
    return here;
  };
  const Index cells = plan.segments * p.channels;
  plan.sequences_at = place(p.sequences, sizeof(Sequence));
  plan.list_at = place(plan.listed, sizeof(Piece));
  plan.start_at = place(cells * states, scalar);
  plan.end_at = place(cells * states, scalar);
  plan.map_at = place(plan.shoots ? cells * states * states : 0, scalar);
  plan.moved_at = place(plan.shoots ? cells : 0, 1);
  plan.progress_at = place(plan.shoots ? p.sequences * p.channels : 0, sizeof(Progress));
  plan.sums_at = place(cells * plan.sums, sizeof(double));
  plan.total_bytes = at + 128;  // to align the caller's memory
  return plan;
}

/// Calls body(thread, next) on some threads; next() gives the numbers below `count`, then -1.
template <class Body>
void share(int threads, Index count, const Body& body) {
  struct Context {
    const Body& body;
    Index count;
    std::atomic<Index> taken;
  } context{body, count, {0}};
  if (count <= 0) return;
  parallel(
      static_cast<int>(std::min<Index>(threads, count)),
      [](void* pointer, int thread) {
        Context& c = *static_cast<Context*>(pointer);
        c.body(thread, [&c] {
          const Index i = c.taken.fetch_add(1, std::memory_order_relaxed);
          return i < c.count ? i : Index{-1};
        });
      },
      &context);
}

/// A call: what its threads share. S is the accumulation type's scalar.
template <class S>
struct Call {
  const SolveProblem& p;
  const Plan& plan;
  const SolveKernels& kernels;
  const InstructionSet& set;
  char* memory;
  int states;

  Sequence& sequence(Index n) const {
    return reinterpret_cast<Sequence*>(memory + plan.sequences_at)[n];
  }
  Piece* list() const { return reinterpret_cast<Piece*>(memory + plan.list_at); }
  /// Of every channel, whether the segment's start has moved since it last ran.
  unsigned char* moved(Index segment) const {
    return reinterpret_cast<unsigned char*>(memory + plan.moved_at) + segment * p.channels;
  }
  Progress& progress(Index n, Index channel) const {
    return reinterpret_cast<Progress*>(memory + plan.progress_at)[n * p.channels + channel];
  }
  bool any_moved(Index segment) const {
    return std::memchr(moved(segment), 1, static_cast<std::size_t>(p.channels)) != nullptr;
  }

  // Rows of all channels. Back in time these are adjoints, of a segment's end and of its start.
  S* start(Index segment, int s) const { return row(plan.start_at, segment, s, states); }
  S* end(Index segment, int s) const { return row(plan.end_at, segment, s, states); }
  /// The derivative of state s where a segment ends by state i where it starts; back likewise.
  S* map(Index segment, int s, int i) const {
    return row(plan.map_at, segment, s * states + i, states * states);
  }
  double* sum(Index segment, int k) const {
    return reinterpret_cast<double*>(memory + plan.sums_at) +
           (segment * plan.sums + k) * p.channels;
  }

  template <bool Load>
  void transfer(const View& v, Index element, Index steps, Index lanes, Index step, Index lane,
                void* rows, Index row_stride) const {
    if (steps <= 0 || lanes <= 0) return;
    void* array = v.at(element);
    const Transfer* by_dtype = Load ? set.load : set.store;
    by_dtype[static_cast<int>(v.dtype)]({steps, static_cast<int>(lanes), Load ? array : rows,
                                         Load ? rows : array, step, lane, row_stride, 0});
  }
  /// Row n of an array (N,D), from channel `channel` on.
  template <bool Load>
  void transfer_row(const ConstArray<2>& array, Index n, Index channel, Index lanes, S* row) const {
    const View v = view_of(array);
    transfer<Load>(v, n * v.row + channel * v.lane, 1, lanes, 0, v.lane, row, 0);
  }
  void load_row(const ConstArray<2>& array, Index n, Index channel, Index lanes, S* row) const {
    if (array) {
      transfer_row<true>(array, n, channel, lanes, row);
    } else {
      std::memset(row, 0, static_cast<std::size_t>(lanes) * sizeof(S));
    }
  }

  Index step_of(const View& v) const { return p.layout.reverse ? -v.step : v.step; }

  /// Writes zeros to the steps of a sequence's row that belong to none.
  void fill_padding(const Sequence& q, const ConstArray<3>& array) const {
    alignas(64) static const unsigned char zeros[kLaneBytes] = {};
    const View v = view_of(array);
    if (!v || !p.layout.lengths) return;
    const Index before = p.layout.reverse ? p.time - 1 - q.origin : q.origin;
    const Index after = p.time - before - q.length;
    const Index most = kLaneBytes / static_cast<Index>(sizeof(S));
    for (Index channel = 0; channel < p.channels; channel += most) {
      const auto fill = [&](Index at, Index steps) {
        transfer<false>(v, q.row * v.row + q.origin * v.step + at * step_of(v) + channel * v.lane,
                        steps, std::min(most, p.channels - channel), step_of(v), v.lane,
                        const_cast<unsigned char*>(zeros), 0);
      };
      fill(-before, before);
      fill(q.length, after);
    }
  }

  /// Calls body(sequence, n) for all of them.
  template <class Body>
  void each_sequence(const Body& body) const {
    share(plan.threads, p.sequences, [&](int, const auto& next) {
      for (Index n; (n = next()) >= 0;) body(sequence(n), n);
    });
  }

 private:
  S* row(std::size_t at, Index segment, int index, int count) const {
    return reinterpret_cast<S*>(memory + at) + (segment * count + index) * p.channels;
  }
};

/// One thread's running of pieces.
template <class S>
class Runner {
 public:
  Runner(const Call<S>& call, Task task, char* scratch)
      : c_(call),
        p_(call.p),
        task_(task),
        lanes_(call.plan.lanes),
        goes_back_(task == Task::map_back || task == Task::run_back),
        has_map_(task == Task::shoot || task == Task::map_back) {
    // Lanes of no channel are computed along; what they start from is merely not to be garbage.
    std::memset(scratch, 0, c_.plan.scratch_bytes);
    at_ = reinterpret_cast<S*>(scratch);
    const bool writes = task != Task::guess && task != Task::map_back;
    const auto bind = [&](Operand& o, const ConstArray<3>& array, Index steps) {
      if (!array || array.data == absent_input()) return;
      o.view = view_of(array);
      o.buffer = take(steps);
    };
    for (int i = 0; i < p_.type->inputs; ++i) {
      if (!is_vector(p_, i)) {
        bind(in_[i], p_.in[i], c_.plan.chunk);
        if (writes) bind(din_[i], p_.din[i], c_.plan.chunk);
      } else {
        bind(in_[i], p_.in[i], 1);
        in_[i].view.row = in_[i].view.step = 0;
      }
      if (task_ == Task::run_back && p_.sum_of(i)) {
        sum_[sums_].input = i;
        sum_[sums_].row = take(1);
        sum_[sums_++].total = reinterpret_cast<double*>(take(2));
      }
    }
    if (goes_back_) {
      bind(dy_, p_.dy, c_.plan.chunk);
      for (int s = 0; s < c_.states; ++s) bind(states_[s], p_.states[s], c_.plan.chunk + 1);
    } else if (writes) {
      bind(out_, p_.out, c_.plan.chunk);
      bind(kept_, p_.kept, c_.plan.chunk);
    }
    if (p_.layout.reset) reset_ = take(c_.plan.chunk);
    state_ = take(c_.states);
    map_ = take(c_.states * c_.states);
    zeros_ = take(1);
  }

  /// Runs pieces of `channels` channels each from their starts to their ends.
  void run(const Piece* pieces, Index count, Index channels) {
    pieces_ = pieces;
    count_ = count;
    channels_ = channels;
    // Lanes go piece by piece, or channel by channel where each fills whole registers with pieces.
    const Index vector = c_.plan.vector, pitch = round_up(count, vector);
    by_channel_ = count > 1 && pitch * channels <= lanes_;
    lane_of_piece_ = by_channel_ ? 1 : channels;
    lane_of_channel_ = by_channel_ ? pitch : 1;
    width_ = by_channel_ ? pitch * channels : round_up(count * channels, vector);
    stride_ = by_channel_ ? width_ : lanes_;
    done_ = 0;
    for (Index k = 0; k < count; ++k) enter(k);
    for (;;) {
      steps_ = c_.plan.chunk - done_ % c_.plan.chunk;
      bool any = false;
      for (Index k = 0; k < count; ++k) {
        if (!runs(k)) continue;
        steps_ = std::min(steps_, pieces[k].steps - done_);
        any = true;
      }
      if (!any) return;
      advance();
      done_ += steps_;
      // Wherever runs are cut, a piece's sums go into double precision after the same steps.
      if (done_ % kSumSteps == 0) carry_sums();
      for (Index k = 0; k < count; ++k) {
        if (pieces[k].steps == done_) leave(k);
      }
    }
  }

 private:
  struct Operand {
    View view;
    S* buffer = nullptr;
  };
  struct Sum {
    int input;
    S* row;
    double* total;
  };

  S* take(Index rows) {
    S* here = at_;
    at_ += rows * lanes_;
    return here;
  }

  bool runs(Index k) const { return pieces_[k].steps > done_; }

  // --- where a piece starts and ends -----------------------------------------------------------

  Index lane(Index k, Index channel) const {
    return k * lane_of_piece_ + channel * lane_of_channel_;
  }

  void enter(Index k) {
    const Piece& q = pieces_[k];
    const bool from_zero = task_ == Task::guess || task_ == Task::map_back;
    for (int s = 0; s < c_.states; ++s) {
      const S* from = c_.start(q.from, s) + q.channel;
      for (Index c = 0; c < channels_; ++c) {
        state_[s * lanes_ + lane(k, c)] = from_zero ? S(0) : from[c];
      }
      for (int i = 0; has_map_ && i < c_.states; ++i) {
        S* map = map_ + (s * c_.states + i) * lanes_;
        for (Index c = 0; c < channels_; ++c) map[lane(k, c)] = static_cast<S>(s == i ? 1 : 0);
      }
    }
    for (int j = 0; j < sums_; ++j) {
      for (Index c = 0; c < channels_; ++c) {
        sum_[j].row[lane(k, c)] = 0;
        sum_[j].total[lane(k, c)] = 0;
      }
    }
    if (q.steps == 0) leave(k);
  }

  void leave(Index k) const {
    const Piece& q = pieces_[k];
    for (int s = 0; s < c_.states; ++s) {
      S* to = (task_ == Task::guess ? c_.start(q.to, s) : c_.end(q.to, s)) + q.channel;
      for (Index c = 0; c < channels_; ++c) to[c] = state_[s * lanes_ + lane(k, c)];
      for (int i = 0; has_map_ && i < c_.states; ++i) {
        const S* map = map_ + (s * c_.states + i) * lanes_;
        S* row = c_.map(q.to, s, i) + q.channel;
        for (Index c = 0; c < channels_; ++c) row[c] = map[lane(k, c)];
      }
    }
    for (int j = 0; j < sums_; ++j) {
      double* to = c_.sum(q.to, j) + q.channel;
      for (Index c = 0; c < channels_; ++c) {
        to[c] = sum_[j].total[lane(k, c)] + static_cast<double>(sum_[j].row[lane(k, c)]);
      }
    }
  }

  void carry_sums() {
    for (int j = 0; j < sums_; ++j) {
      for (Index i = 0; i < width_; ++i) {
        sum_[j].total[i] += static_cast<double>(sum_[j].row[i]);
        sum_[j].row[i] = 0;
      }
    }
  }

  // --- rows --------------------------------------------------------------------------------------

  /// The first in the order of the pass of the steps that are run now.
  Index position(const Piece& q) const {
    return goes_back_ ? q.at + q.steps - done_ - steps_ : q.at + done_;
  }
  Index element(const View& v, const Piece& q, Index step) const {
    return q.row * v.row + q.origin * v.step + step * c_.step_of(v) + q.channel * v.lane;
  }

  /// Between the caller's array and rows, for all pieces: `steps` steps from `shift` after the
  /// first on. Rows follow one another as steps do in the array, whichever way the pass goes.
  template <bool Load>
  void transfer(const View& v, Index shift, Index steps, S* rows) const {
    const auto first = [&](Index k) {
      const Index last = p_.layout.reverse ? steps - 1 : 0;
      return element(v, pieces_[k], position(pieces_[k]) + shift + last);
    };
    for (Index k = 0; k < count_;) {
      if (!runs(k)) {
        ++k;
        continue;
      }
      const Index from = first(k);
      if (!by_channel_) {
        c_.template transfer<Load>(v, from, steps, channels_, v.step, v.lane, rows + lane(k, 0),
                                   stride_);
        ++k;
        continue;
      }
      // Pieces that lie evenly are the lanes of one array.
      Index next = k + 1;
      const Index apart = next < count_ && runs(next) ? first(next) - from : 0;
      while (next < count_ && runs(next) && first(next) == from + (next - k) * apart) ++next;
      if (v.lane == 1 && v.step == channels_) {
        // All channels of all steps of a piece lie side by side.
        c_.template transfer<Load>(v, from, steps * channels_, next - k, 1, apart,
                                   rows + lane(k, 0), lane_of_channel_);
      } else {
        for (Index c = 0; c < channels_; ++c) {
          c_.template transfer<Load>(v, from + c * v.lane, steps, next - k, v.step, apart,
                                     rows + lane(k, c), stride_);
        }
      }
      k = next;
    }
  }

  /// Buffered rows in the order of the pass.
  Rows buffered(S* rows) const {
    if (!p_.layout.reverse) return {rows, stride_};
    return {rows + (steps_ - 1) * stride_, -stride_};
  }

  bool is_in_place(const View& v) const {
    return count_ == 1 && channels_ == width_ && v.dtype == p_.accumulation && v.lane == 1;
  }
  Rows in_place(const View& v, Index shift) const {
    return {v.at(element(v, pieces_[0], position(pieces_[0]) + shift)), c_.step_of(v)};
  }

  ConstRows input(const Operand& o) const {
    if (!o.view) return {zeros_, 0};
    if (is_in_place(o.view)) {
      const Rows rows = in_place(o.view, 0);
      return {rows.data, rows.stride};
    }
    transfer<true>(o.view, 0, steps_, o.buffer);
    const Rows rows = buffered(o.buffer);
    return {rows.data, rows.stride};
  }
  Rows output(const Operand& o) const {
    if (!o.view) return {};
    return is_in_place(o.view) ? in_place(o.view, 0) : buffered(o.buffer);
  }
  void write_back(const Operand& o) const {
    if (o.view && !is_in_place(o.view)) transfer<false>(o.view, 0, steps_, o.buffer);
  }

  /// States before and after each step.
  void bind_states(SolveArgs& g, int s) const {
    const Operand& o = states_[s];
    if (is_in_place(o.view) && position(pieces_[0]) > 0) {
      const Rows before = in_place(o.view, -1), after = in_place(o.view, 0);
      g.before[s] = {before.data, before.stride};
      g.after[s] = {after.data, after.stride};
      return;
    }
    // One row more, of the state before the first step.
    S* rows = o.buffer + (p_.layout.reverse ? 0 : stride_);
    S* edge = o.buffer + (p_.layout.reverse ? steps_ * stride_ : 0);
    transfer<true>(o.view, 0, steps_, rows);
    for (Index k = 0; k < count_; ++k) {
      if (!runs(k)) continue;
      const Piece& q = pieces_[k];
      const Index step = position(q);
      for (Index c = 0; c < channels_; c += by_channel_ ? 1 : channels_) {
        const Index lanes = by_channel_ ? 1 : channels_;
        if (step == 0) {
          c_.load_row(p_.initial[s], q.sequence, q.channel + c, lanes, edge + lane(k, c));
        } else {
          c_.template transfer<true>(o.view, element(o.view, q, step - 1) + c * o.view.lane, 1,
                                     lanes, 0, o.view.lane, edge + lane(k, c), 0);
        }
      }
    }
    const Rows after = buffered(rows);
    g.after[s] = {after.data, after.stride};
    g.before[s] = {edge, after.stride};
  }

  ConstRows resets() const {
    if (!p_.layout.reset) return {};
    const ConstArray<2>& flags = p_.layout.reset;
    const Index stride = p_.layout.reverse ? -flags.stride[1] : flags.stride[1];
    bool any = false;
    for (Index k = 0; k < count_; ++k) {
      if (!runs(k)) continue;
      const Piece& q = pieces_[k];
      const unsigned char* flag = static_cast<const unsigned char*>(flags.data) +
                                  q.row * flags.stride[0] + q.origin * flags.stride[1] +
                                  position(q) * stride;
      for (Index t = 0; t < steps_; ++t) {
        const bool is_set = flag[t * stride] != 0;
        any = any || is_set;
        S* row = reset_ + t * stride_;
        for (Index c = 0; c < channels_; ++c) row[lane(k, c)] = static_cast<S>(is_set);
      }
    }
    return any ? ConstRows{reset_, stride_} : ConstRows{};
  }

  // --- a chunk -----------------------------------------------------------------------------------

  void advance() {
    SolveArgs g;
    g.cell = p_.cell;
    g.steps = static_cast<int>(steps_);
    g.lanes = static_cast<int>(width_);
    g.plane = lanes_;
    g.state = state_;
    g.map = map_;
    g.reset = resets();
    for (int i = 0; i < p_.type->inputs; ++i) {
      if (!is_vector(p_, i)) {
        g.in[i] = input(in_[i]);
        g.din[i] = output(din_[i]);
        continue;
      }
      if (done_ == 0 && in_[i].view) transfer<true>(in_[i].view, 0, 1, in_[i].buffer);
      g.in[i] = {in_[i].view ? in_[i].buffer : zeros_, 0};
    }
    if (goes_back_) {
      g.dy = input(dy_);
      for (int s = 0; s < c_.states; ++s) bind_states(g, s);
      for (int j = 0; j < sums_; ++j) g.sum[sum_[j].input] = sum_[j].row;
    } else {
      g.out = output(out_);
      g.kept = output(kept_);
    }
    switch (task_) {
      case Task::shoot:
        c_.kernels.run_tangent(g);
        break;
      case Task::map_back:
        c_.kernels.map_back(g);
        break;
      case Task::run_back:
        c_.kernels.run_back(g);
        break;
      default:
        c_.kernels.run(g);
    }
    write_back(out_);
    write_back(kept_);
    for (int i = 0; i < p_.type->inputs; ++i) write_back(din_[i]);
  }

  const Call<S>& c_;
  const SolveProblem& p_;
  const Task task_;
  const Index lanes_;
  const bool goes_back_, has_map_;
  S* at_ = nullptr;  // the scratch that is left

  Operand in_[kMaxNonlinearInputs], din_[kMaxNonlinearInputs];
  Operand states_[kMaxStates], out_, kept_, dy_;
  S *reset_ = nullptr, *state_ = nullptr, *map_ = nullptr, *zeros_ = nullptr;
  Sum sum_[kMaxNonlinearInputs] = {};
  int sums_ = 0;

  const Piece* pieces_ = nullptr;
  Index count_ = 0, channels_ = 0;
  bool by_channel_ = false;
  Index lane_of_piece_ = 0, lane_of_channel_ = 0;
  Index width_ = 0, stride_ = 0;  // lanes in use, and from row to row
  Index done_ = 0, steps_ = 0;    // of every piece: run, and being run
};

/// Runs pieces of `channels` channels each.
template <class S>
void run_pieces(const Call<S>& c, Task task, const Piece* pieces, Index count, Index channels) {
  if (count == 0 || channels == 0) return;
  const Index vector = c.plan.vector;
  const Index lanes = std::clamp(round_up(ceil_div(count * channels, c.plan.threads), vector),
                                 vector, c.plan.lanes);
  // What nearly fills the lanes alone needs no buffers.
  const bool fills = channels % vector == 0 && 2 * channels >= lanes;
  Index together = fills ? 1 : std::clamp<Index>(lanes / channels, 1, kTogether);
  if (together > vector) together = together / vector * vector;
  const Index block = round_up(ceil_div(channels, ceil_div(channels, lanes)), vector);
  const Index blocks = ceil_div(channels, block);
  const Index groups = ceil_div(count, together);
  share(c.plan.threads, groups * blocks, [&](int thread, const auto& next) {
    Runner<S> runner(c, task, c.memory + c.plan.scratch_bytes * static_cast<std::size_t>(thread));
    Piece group[kTogether];
    for (Index i; (i = next()) >= 0;) {
      const Index first = i / blocks * together;
      const Index channel = i % blocks * block;
      const Index here = std::min(together, count - first);
      std::copy_n(pieces + first, here, group);
      for (Index k = 0; k < here; ++k) group[k].channel += channel;
      runner.run(group, here, std::min(block, channels - channel));
    }
  });
}

template <class S>
void plan_sequences(const Call<S>& c) {
  Index first = 0;
  for (Index n = 0; n < c.p.sequences; ++n) {
    const Span span = span_of(c.p, n);
    const Index length = span.length(), segment = segment_steps(c.p, length);
    const Index segments = std::max<Index>(1, ceil_div(length, segment));
    c.sequence(n) = {span.row, c.p.layout.reverse ? span.end - 1 : span.begin,
                     length,   segment,
                     segments, first,
                     0,        segments > 1};
    first += segments;
  }
}

/// Segment j of a sequence.
Piece segment_of(const Sequence& q, Index n, Index j) {
  const Index at = j * q.segment;
  return {q.row, q.origin, n, at, std::min(q.segment, q.length - at), 0, q.first + j, q.first + j};
}

/// Lists the segments that `wanted(sequence, n, j)` gives a piece for, and runs them.
template <class S, class Wanted>
void run_segments(const Call<S>& c, Task task, const Wanted& wanted) {
  Index count = 0;
  for (Index n = 0; n < c.p.sequences; ++n) {
    const Sequence& q = c.sequence(n);
    for (Index j = 0; j < q.segments; ++j) {
      if (wanted(q, n, j)) c.list()[count++] = segment_of(q, n, j);
    }
  }
  run_pieces(c, task, c.list(), count, c.p.channels);
}

// --- forward -------------------------------------------------------------------------------------

/// What the ends of a channel's segments say of their starts.
struct Mismatch {
  Index first = -1;                   ///< the first segment whose start wants to move
  double residual = 0, estimate = 0;  ///< of those before it
  Progress progress;
};

/// Finds the increments of one channel's starts, and with `moves` adds them where they matter.
template <class S>
Mismatch correct(const Call<S>& c, const Sequence& q, Index channel, bool moves) {
  Mismatch m;
  double bound[kMaxStates];
  for (int s = 0; s < c.states; ++s) {
    bound[s] = c.p.type->bounds[s];
    if (bound[s] > 0) {
      bound[s] = std::max(bound[s], std::fabs(static_cast<double>(c.start(q.first, s)[channel])));
    }
  }
  double d[kMaxStates] = {};
  for (Index j = q.first + 1; j <= q.last(); ++j) {
    double next[kMaxStates], residual = 0, estimate = 0;
    bool stays = true, is_finite = true;
    for (int s = 0; s < c.states; ++s) {
      const S start = c.start(j, s)[channel];
      const double gap = static_cast<double>(c.end(j - 1, s)[channel]) - static_cast<double>(start);
      next[s] = gap;
      for (int i = 0; i < c.states; ++i) {
        if (d[i] != 0) next[s] += static_cast<double>(c.map(j - 1, s, i)[channel]) * d[i];
      }
      residual = std::max(residual, std::fabs(gap));
      estimate = std::max(estimate, std::fabs(next[s]));
      const double size = std::max(1.0, std::fabs(static_cast<double>(start)));
      const double small = c.p.tolerance * size;
      const double rounding = size * std::numeric_limits<S>::epsilon();
      // Where rounding takes the increment back there is nothing left to move. Where a segment
      // makes much of little, increments may vanish and boundaries stay apart. From a start that
      // overflowed, nothing is less than infinitely apart.
      stays = stays && (std::fabs(next[s]) <= small || static_cast<S>(start + next[s]) == start) &&
              std::fabs(gap) < SolveOptions::most_apart * std::max(small, rounding);
      is_finite = is_finite && std::isfinite(next[s]);
    }
    for (int s = 0; s < c.states; ++s) d[s] = next[s];
    if (stays) {
      if (m.first >= 0) continue;
      m.residual = std::max(m.residual, residual);
      m.estimate = std::max(m.estimate, estimate);
      continue;
    }
    if (m.first < 0) m.first = j - q.first;
    if (!is_finite || !moves) break;
    for (int s = 0; s < c.states; ++s) {
      double start = static_cast<double>(c.start(j, s)[channel]) + d[s];
      if (bound[s] > 0) start = std::clamp(start, -bound[s], bound[s]);
      c.start(j, s)[channel] = static_cast<S>(start);
    }
    c.moved(j)[channel] = 1;
    ++m.progress.moved;
    m.progress.furthest = std::max(m.progress.furthest, estimate);
  }
  return m;
}

/// Moves one channel's starts, and says how many; none of a channel that gets nowhere. Starts that
/// would have moved say so then.
template <class S>
Index advance(const Call<S>& c, const Sequence& q, Index n, Index channel, int pass) {
  const Progress now = correct(c, q, channel, true).progress;
  Progress& before = c.progress(n, channel);
  const bool is_hopeless = gets_nowhere(kPatience, pass, c.p.max_passes, q.segments, before, now);
  before = now;
  if (!is_hopeless) return static_cast<Index>(now.moved);
  for (Index j = q.first; j <= q.last(); ++j) {
    if (c.moved(j)[channel] == 0) continue;
    c.moved(j)[channel] = 0;
    c.start(j, 0)[channel] = std::numeric_limits<S>::quiet_NaN();
  }
  return 0;
}

/// Pieces of single channels, run whenever the list is full.
template <class S>
class Singles {
 public:
  Singles(const Call<S>& call, Task task) : c_(call), task_(task) {}
  void add(const Piece& piece) {
    if (count_ == c_.plan.listed) run();
    c_.list()[count_++] = piece;
  }
  void run() {
    run_pieces(c_, task_, c_.list(), count_, 1);
    count_ = 0;
  }

 private:
  const Call<S>& c_;
  Task task_;
  Index count_ = 0;
};

template <class S>
void shoot(const Call<S>& c) {
  const Index channels = c.p.channels;
  // The last steps of a segment, from 0, guess where the next one starts.
  Index guesses = 0;
  for (Index n = 0; n < c.p.sequences; ++n) {
    const Sequence& q = c.sequence(n);
    for (Index j = 0; j + 1 < q.segments; ++j) {
      Piece piece = segment_of(q, n, j);
      const Index burn_in = std::min(kBurnIn, piece.steps);
      piece.at += piece.steps - burn_in;
      piece.steps = burn_in;
      ++piece.to;
      c.list()[guesses++] = piece;
    }
  }
  run_pieces(c, Task::guess, c.list(), guesses, channels);

  Index moved = 0, moved_segments = 0;
  for (int pass = 1; pass == 1 || (moved > 0 && pass <= c.p.max_passes); ++pass) {
    if (pass > 1 && moved * kSingleCost < moved_segments * channels) {
      Singles<S> singles(c, Task::shoot);
      for (Index n = 0; n < c.p.sequences; ++n) {
        const Sequence& q = c.sequence(n);
        for (Index channel = 0; q.is_open && channel < channels; ++channel) {
          for (Index j = 0; j < q.segments; ++j) {
            if (c.moved(q.first + j)[channel] == 0) continue;
            Piece piece = segment_of(q, n, j);
            piece.channel = channel;
            singles.add(piece);
          }
        }
      }
      singles.run();
    } else {
      run_segments(c, Task::shoot, [&](const Sequence& q, Index, Index j) {
        return q.is_open && (pass == 1 || c.any_moved(q.first + j));
      });
    }
    std::atomic<Index> starts{0}, segments{0};
    c.each_sequence([&](Sequence& q, Index n) {
      if (!q.is_open) return;
      q.passes = pass;
      q.is_open = false;
      if (pass == c.p.max_passes) return;
      std::memset(c.moved(q.first), 0, static_cast<std::size_t>(q.segments * channels));
      Index here = 0;
      for (Index channel = 0; channel < channels; ++channel) {
        here += advance(c, q, n, channel, pass);
      }
      if (here == 0) return;
      q.is_open = true;
      starts.fetch_add(here, std::memory_order_relaxed);
      for (Index j = q.first; j <= q.last(); ++j) {
        if (c.any_moved(j)) segments.fetch_add(1, std::memory_order_relaxed);
      }
    });
    moved = starts.load();
    moved_segments = segments.load();
  }
}

/// Ends what multiple shooting has left: reports, and runs serially what hasn't converged.
template <class S>
void conclude(const Call<S>& c) {
  Singles<S> fallen(c, Task::serial);
  double* report = static_cast<double*>(c.p.report.data);
  for (Index n = 0; n < c.p.sequences; ++n) {
    const Sequence& q = c.sequence(n);
    double row[SolveReport::kColumns] = {SolveReport::kSerial, 0, 0, 0, -1, 0};
    if (q.segments > 1) {
      Index first = q.segments, serial = 0;
      double residual = 0, estimate = 0;
      for (Index channel = 0; channel < c.p.channels; ++channel) {
        const Mismatch m = correct(c, q, channel, false);
        residual = std::max(residual, m.residual);
        estimate = std::max(estimate, m.estimate);
        if (m.first < 0) continue;
        ++serial;
        first = std::min(first, m.first);
        Piece rest = segment_of(q, n, m.first);
        rest.steps = q.length - rest.at;
        rest.channel = channel;
        rest.to = q.last();
        for (int s = 0; s < c.states; ++s) {
          c.start(rest.from, s)[channel] = c.end(rest.from - 1, s)[channel];
        }
        fallen.add(rest);
      }
      row[SolveReport::kStatus] = serial > 0 ? SolveReport::kFellBack : SolveReport::kConverged;
      row[SolveReport::kPasses] = q.passes;
      row[SolveReport::kResidual] = residual;
      row[SolveReport::kErrorEstimate] = estimate;
      if (serial > 0) row[SolveReport::kFirstUnconverged] = static_cast<double>(first * q.segment);
      row[SolveReport::kSerialChannels] = static_cast<double>(serial);
    }
    if (report != nullptr) std::copy_n(row, std::size(row), report + n * SolveReport::kColumns);
  }
  fallen.run();
}

template <class S>
void forward(const Call<S>& c) {
  c.each_sequence([&](const Sequence& q, Index n) {
    for (int s = 0; s < c.states; ++s) {
      c.load_row(c.p.initial[s], n, 0, c.p.channels, c.start(q.first, s));
    }
    c.fill_padding(q, c.p.out);
    c.fill_padding(q, c.p.kept);
  });
  run_segments(c, Task::serial, [](const Sequence& q, Index, Index) { return q.segments == 1; });
  if (c.plan.shoots) shoot(c);
  if (c.plan.shoots || c.p.report) conclude(c);
  c.each_sequence([&](const Sequence& q, Index n) {
    for (int s = 0; s < c.states; ++s) {
      if (!c.p.final_state[s]) continue;
      c.template transfer_row<false>(c.p.final_state[s], n, 0, c.p.channels, c.end(q.last(), s));
    }
  });
}

// --- backward ------------------------------------------------------------------------------------

/// Runs every segment's map on what comes from later ones. (A map is a product of many gains, which
/// may overflow where the adjoint itself doesn't.)
template <class S>
void chain_adjoints(const Call<S>& c, const Sequence& q) {
  for (Index j = q.last(); j > q.first; --j) {
    for (Index channel = 0; channel < c.p.channels; ++channel) {
      for (int s = 0; s < c.states; ++s) {
        double adjoint = static_cast<double>(c.end(j, s)[channel]);
        for (int i = 0; i < c.states; ++i) {
          const double enters = static_cast<double>(c.start(j, i)[channel]);
          if (enters != 0) adjoint += static_cast<double>(c.map(j, s, i)[channel]) * enters;
        }
        c.start(j - 1, s)[channel] = static_cast<S>(adjoint);
      }
    }
  }
}

/// Runs the channels serially whose adjoints aren't finite at some segment: the maps alone may have
/// overflowed.
template <class S>
void rerun_overflowed(const Call<S>& c) {
  Singles<S> fallen(c, Task::run_back);
  for (Index n = 0; n < c.p.sequences; ++n) {
    const Sequence& q = c.sequence(n);
    for (Index channel = 0; q.segments > 1 && channel < c.p.channels; ++channel) {
      Index j = q.last() - 1;
      const auto is_finite = [&] {
        bool all = true;
        for (int s = 0; s < c.states; ++s) all = all && std::isfinite(c.start(j, s)[channel]);
        return all;
      };
      while (j >= q.first && is_finite()) --j;
      if (j < q.first) continue;
      for (int s = 0; s < c.states; ++s) c.start(j, s)[channel] = c.end(j + 1, s)[channel];
      for (Index i = q.first; i <= j; ++i) {
        for (int k = 0; k < c.plan.sums; ++k) c.sum(i, k)[channel] = 0;
      }
      Piece rest = segment_of(q, n, j - q.first);
      rest.steps += rest.at;
      rest.at = 0;
      rest.channel = channel;
      rest.to = q.first;
      fallen.add(rest);
    }
  }
  fallen.run();
}

/// Adds up the sums of gradients, segment by segment.
template <class S>
void reduce_sums(const Call<S>& c) {
  const Index block = kLaneBytes / static_cast<Index>(sizeof(S));
  int k = 0;
  for (int i = 0; i < c.p.type->inputs; ++i) {
    if (!c.p.sum_of(i)) continue;
    const View v = view_of(c.p.sum_of(i));
    share(c.plan.threads, ceil_div(c.p.channels, block), [&](int, const auto& next) {
      for (Index b; (b = next()) >= 0;) {
        const Index first = b * block, lanes = std::min(block, c.p.channels - first);
        double total[kLaneBytes / sizeof(float)] = {};
        for (Index j = 0; j < c.plan.segments; ++j) {
          const double* sum = c.sum(j, k) + first;
          for (Index lane = 0; lane < lanes; ++lane) total[lane] += sum[lane];
        }
        S rounded[kLaneBytes / sizeof(S)];
        for (Index lane = 0; lane < lanes; ++lane) rounded[lane] = static_cast<S>(total[lane]);
        c.template transfer<false>(v, first * v.lane, 1, lanes, 0, v.lane, rounded, 0);
      }
    });
    ++k;
  }
}

template <class S>
void backward(const Call<S>& c) {
  c.each_sequence([&](const Sequence& q, Index n) {
    for (int s = 0; s < c.states; ++s) {
      c.load_row(c.p.dfinal[s], n, 0, c.p.channels, c.start(q.last(), s));
    }
    for (int i = 0; i < c.p.type->inputs; ++i) {
      if (!is_vector(c.p, i)) c.fill_padding(q, c.p.din[i]);
    }
  });
  if (c.plan.shoots) {
    run_segments(c, Task::map_back, [](const Sequence&, Index, Index j) { return j > 0; });
    c.each_sequence([&](const Sequence& q, Index) { chain_adjoints(c, q); });
  }
  run_segments(c, Task::run_back, [](const Sequence&, Index, Index) { return true; });
  if (c.plan.shoots) rerun_overflowed(c);
  c.each_sequence([&](const Sequence& q, Index n) {
    for (int s = 0; s < c.states; ++s) {
      if (!c.p.dinitial[s]) continue;
      c.template transfer_row<false>(c.p.dinitial[s], n, 0, c.p.channels, c.end(q.first, s));
    }
  });
  reduce_sums(c);
}

template <class S>
void execute_as(const SolveProblem& p, const Plan& plan, const SolveKernels& kernels,
                const InstructionSet& set, char* memory) {
  const Call<S> call{p, plan, kernels, set, memory, p.type->states};
  plan_sequences(call);
  if (p.backward) {
    backward(call);
  } else {
    forward(call);
  }
}

}  // namespace

std::size_t workspace_bytes(const SolveProblem& problem, const SolveKernels& cell) {
  return bytes_of([&](int threads) { return make_plan(problem, cell, threads); });
}

void execute(const SolveProblem& problem, const SolveKernels& cell, const InstructionSet& set,
             Workspace workspace) {
  const Placed<Plan> placed_plan = placed(
      problem.call, workspace, [&](int threads) { return make_plan(problem, cell, threads); });
  const Plan& plan = placed_plan.plan;
  char* const memory = placed_plan.base;
  if (problem.accumulation == DType::f64) {
    execute_as<double>(problem, plan, cell, set, memory);
  } else {
    execute_as<float>(problem, plan, cell, set, memory);
  }
}

}  // namespace scanrnn::cpu
