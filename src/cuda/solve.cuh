// SPDX-License-Identifier: Apache-2.0
// The solver of nonlinear cells (scanrnn/solve.hpp) in one launch a direction.
//
// A thread runs one segment of one channel; a warp's lanes are channels that lie side by side.
// Blocks take units of work by ticket: first every unit of the call, then those that have to run
// again, which stand in a queue. The block that finishes the last unit of a group (a sequence's
// units that share their channels) corrects the group's starts by a scan over its segments, and
// queues what has moved. So groups don't wait for each other, nothing is launched for passes that
// nobody needs, and the host decides nothing. A block without work waits for the queue; all that it
// waits for is in the hands of blocks that run, so it doesn't matter how many fit the device.
//
// Backward is the same with one pass: segments' adjoint maps, a scan over them, and every unit once
// more with the adjoint that enters its segments.
#pragma once

#include <utility>

#include "common/solve_problem.hpp"
#include "cuda/solve_args.hpp"
#include "cuda/solve_tuning.hpp"
#include "cuda/tile.cuh"
#include "scanrnn/solve.hpp"

namespace scanrnn::cuda {

inline constexpr unsigned kNothing = ~0u;  // what clears the workspace

/// Steps that a thread reads ahead.
SCANRNN_HD constexpr int steps_ahead(int streams) {
  return streams <= 3 ? 4 : (streams <= 5 ? 2 : 1);
}

/// Steps of a group that a lone warp reads at once, and again while it runs them: as many as it has
/// registers for.
SCANRNN_HD constexpr int steps_of_group(int streams, std::size_t accumulated) {
  const int numbers = accumulated == 8 ? 16 : 32;
  return streams <= 1 ? numbers : (streams <= 2 ? numbers / 2 : numbers / 4);
}

/// What the passes over a cell read, worked out when the kernel is compiled.
template <class Cell>
struct SolvePass {
  static constexpr int inputs = Cell::inputs;
  static constexpr int states = Cell::states;
  static constexpr SCANRNN_HD bool is_vector(int k) { return (Cell::vector_inputs >> k & 1u) != 0; }
  /// Where an input that has time in it stands among those that do.
  static constexpr SCANRNN_HD int stream(int k) {
    int n = 0;
    for (int j = 0; j < k; ++j) n += is_vector(j) ? 0 : 1;
    return n;
  }
  static constexpr int streams = stream(Cell::inputs);
  static constexpr bool keeps = Cell::kept_state >= 0;
  /// Blocks of a multiprocessor that registers have to suffice for: a thousand threads where these
  /// can do with 64, as all can but the LSTM's.
  static constexpr SCANRNN_HD int blocks(std::size_t accumulated) {
    return accumulated == 8 ? 3 : (states == 1 ? 8 : 6);
  }
};

/// A number as a type.
template <int kValue>
struct Number {
  SCANRNN_HD constexpr int operator()() const { return kValue; }
  SCANRNN_HD constexpr operator int() const { return kValue; }
};
template <class F, int... kIndex>
__device__ __forceinline__ void for_each_of(std::integer_sequence<int, kIndex...>, F&& f) {
  (f(Number<kIndex>()), ...);
}
/// f(k) for every input that has time in it, k a Number.
template <class Cell, class F>
__device__ __forceinline__ void for_each_stream(F&& f) {
  using P = SolvePass<Cell>;
  for_each_of(std::make_integer_sequence<int, P::inputs>(), [&](auto index) {
    if constexpr (!P::is_vector(index())) f(index);
  });
}

// --- elements ------------------------------------------------------------------------------------

static __device__ const double kAbsent = 0;  // what absent arrays read

__device__ __forceinline__ char* address(const StepArray& s, Index row, Index position, Index d) {
  if (s.data == nullptr) return reinterpret_cast<char*>(const_cast<double*>(&kAbsent));
  return s.data + row * s.batch + position * s.time + d * s.channel;
}

// Arrays that no kernel here writes.
template <class T>
__device__ __forceinline__ T load_constant(const char* at) {
  return __ldg(reinterpret_cast<const T*>(at));
}
template <>
__device__ __forceinline__ Half load_constant<Half>(const char* at) {
  return {__ldg(reinterpret_cast<const unsigned short*>(at))};
}
template <>
__device__ __forceinline__ BFloat16 load_constant<BFloat16>(const char* at) {
  return {__ldg(reinterpret_cast<const unsigned short*>(at))};
}

template <class T>
__device__ __forceinline__ void store(char* at, const Acc<T>& v) {
  *reinterpret_cast<T*>(at) = Element<T>::narrow(v);
}

template <class Cell, class T>
__device__ __forceinline__ void load_vectors(const SolveArgs& g, Index d,
                                             Acc<T> (&vector)[Cell::inputs]) {
#pragma unroll
  for (int k = 0; k < Cell::inputs; ++k) {
    vector[k] = Constant<Acc<T>>::of(0);
    if (SolvePass<Cell>::is_vector(k)) {
      const char* at = address(g.in[k], 0, 0, d);
      vector[k] =
          g.in[k].wide ? load_constant<Acc<T>>(at) : Element<T>::widen(load_constant<T>(at));
    }
  }
}

template <class T, class Cell>
__device__ __forceinline__ void gather(const T (&values)[SolvePass<Cell>::streams],
                                       const Acc<T> (&vector)[Cell::inputs],
                                       Acc<T> (&in)[Cell::inputs], const Cell&) {
  using P = SolvePass<Cell>;
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) in[k] = vector[k];
  for_each_stream<Cell>([&](auto k) { in[k] = Element<T>::widen(values[P::stream(k())]); });
}

__device__ __forceinline__ float magnitude(float v) { return ::fabsf(v); }
__device__ __forceinline__ double magnitude(double v) { return ::fabs(v); }

template <class A>
__device__ __forceinline__ A value_of(const A& state) {
  return state;
}
template <class A, int N>
__device__ __forceinline__ A value_of(const Dual<A, N>& state) {
  return state.value;
}
template <class A>
__device__ __forceinline__ void drop(A& state) {
  state = Constant<A>::of(0);
}
template <class A, int N>
__device__ __forceinline__ void drop(Dual<A, N>& state) {
  state.value = Constant<A>::of(0);
#pragma unroll
  for (int i = 0; i < N; ++i) state.slope[i] = Constant<A>::of(0);
}

/// The place in memory, along time, of a step of the sequence.
__device__ __forceinline__ Index position_of(const SolveArgs& g, const Span& span, Index step) {
  return g.reverse ? span.end - 1 - step : span.begin + step;
}

// --- running steps -------------------------------------------------------------------------------

/// Steps [first, first + count) of a channel, from `state` and in place. `state` is that of plain
/// numbers or of duals. With `kWrites` the outputs are written. Inputs are read `kAhead` steps
/// ahead.
template <bool kWrites, int kAhead, class T, class Cell, class Count, class S>
__device__ __forceinline__ void run_steps(const SolveArgs& g, const Cell& cell, const Span& span,
                                          Index d, const Acc<T> (&vector)[Cell::inputs],
                                          Index first, Count count, S (&state)[Cell::states]) {
  using P = SolvePass<Cell>;
  using A = Acc<T>;
  const Index position = position_of(g, span, first);
  const char* at[P::streams];
  for_each_stream<Cell>(
      [&](auto k) { at[P::stream(k())] = address(g.in[k], span.row, position, d); });
  char* out = nullptr;
  char* kept = nullptr;
  if constexpr (kWrites) {
    out = address(g.out, span.row, position, d);
    if constexpr (P::keeps) kept = address(g.kept, span.row, position, d);
  }
  const unsigned char* reset = g.reset;
  if (reset != nullptr) reset += span.row * g.reset_batch + position * g.reset_time;

  T ahead[kAhead][P::streams];
  bool cut[kAhead];
  const auto fetch = [&](T(&values)[P::streams], bool& is_cut) {
    for_each_stream<Cell>([&](auto k) {
      constexpr int s = P::stream(k());
      values[s] = load_constant<T>(at[s]);
      at[s] += g.in[k].next;
    });
    is_cut = false;
    if (g.reset != nullptr) {
      is_cut = __ldg(reset) != 0;
      reset += g.reset_next;
    }
  };
  const auto step = [&](const A(&in)[P::inputs], bool is_cut) {
    if (is_cut) {
#pragma unroll
      for (int s = 0; s < P::states; ++s) drop(state[s]);
    }
    A before[P::states], after[P::states];
#pragma unroll
    for (int s = 0; s < P::states; ++s) before[s] = value_of(state[s]);
    cell.step(in, state);
    if constexpr (kWrites) {
#pragma unroll
      for (int s = 0; s < P::states; ++s) after[s] = value_of(state[s]);
      store<T>(out, cell.output(in, before, after));
      out += g.out.next;
      if constexpr (P::keeps) {
        if (g.kept.data != nullptr) store<T>(kept, after[Cell::kept_state]);
        kept += g.kept.next;
      }
    }
  };

  const Count bulk = count - count % kAhead;
  if (bulk > 0) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) fetch(ahead[j], cut[j]);
  }
#pragma unroll 1
  for (Count i = 0; i < bulk; i += kAhead) {
    const bool more = i + kAhead < bulk;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      A in[P::inputs];
      gather<T>(ahead[j], vector, in, cell);
      const bool is_cut = cut[j];
      if (more) fetch(ahead[j], cut[j]);
      step(in, is_cut);
    }
  }
#pragma unroll 1
  for (Count i = bulk; i < count; ++i) {
    A in[P::inputs];
    fetch(ahead[0], cut[0]);
    gather<T>(ahead[0], vector, in, cell);
    step(in, cut[0]);
  }
}

// Maps as the core has them, from the numbers of a step.
template <class A>
__device__ __forceinline__ Affine<A> map_of(const A (&gain)[1][1], const A (&offset)[1]) {
  return {gain[0][0], offset[0]};
}
template <class A>
__device__ __forceinline__ Affine2<A> map_of(const A (&gain)[2][2], const A (&offset)[2]) {
  return {gain[0][0], gain[0][1], gain[1][0], gain[1][1], offset[0], offset[1]};
}
template <class A>
__device__ __forceinline__ void apply_to(const Affine<A>& map, A (&state)[1]) {
  state[0] = apply(map, state[0]);
}
template <class A>
__device__ __forceinline__ void apply_to(const Affine2<A>& map, A (&state)[2]) {
  apply(map, state[0], state[1]);
}
template <class A>
__device__ __forceinline__ bool forgets(const Affine<A>& map) {
  return map.a == Constant<A>::of(0);
}
template <class A>
__device__ __forceinline__ bool forgets(const Affine2<A>& map) {
  const A zero = Constant<A>::of(0);
  return map.a00 == zero && map.a01 == zero && map.a10 == zero && map.a11 == zero;
}
template <class A>
__device__ __forceinline__ void offset_of(const Affine<A>& map, A (&state)[1]) {
  state[0] = map.x;
}
template <class A>
__device__ __forceinline__ void offset_of(const Affine2<A>& map, A (&state)[2]) {
  state[0] = map.x0;
  state[1] = map.x1;
}

// --- units ---------------------------------------------------------------------------------------

struct Unit {
  Index sequence;
  Span span;
  int group;         // of channels
  Index chunk;       // of the sequence
  Index chunks;      // that arrive
  Index segments;    // of the sequence, at least one
  Index first_unit;  // the sequence's first, of channel group 0; the next chunk is `groups` further
  Index first_item;  // of the sequence's segment 0
  bool is_owned;     // else it belongs to no sequence

  __device__ __forceinline__ Index length() const { return span.end - span.begin; }
};

/// A sequence's first unit, counted without groups. A packed one starts where the room for all
/// before it ends.
__device__ __forceinline__ Index first_row_of(const SolveArgs& g, Index n) {
  if (g.cu_seqlens == nullptr) return n * g.chunks;
  return read_index(g, g.cu_seqlens, n) / ((kSolveThreads >> g.across_log2) * g.segment) + n;
}

__device__ __forceinline__ Unit unit_of(const SolveArgs& g, unsigned number) {
  const Index per = kSolveThreads >> g.across_log2;
  Unit u;
  const unsigned groups = static_cast<unsigned>(g.groups);
  const Index row = number / groups;  // the unit's number without its group
  u.group = static_cast<int>(number % groups);
  if (g.cu_seqlens != nullptr) {
    Index low = 0, high = g.sequences;
    while (high - low > 1) {
      const Index middle = (low + high) / 2;
      if (first_row_of(g, middle) <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    u.sequence = low;
  } else {
    u.sequence = row / g.chunks;
  }
  const Index first = first_row_of(g, u.sequence);
  u.chunk = row - first;
  u.first_unit = first * g.groups;
  u.first_item = first * per;
  u.span = span_of(g, u.sequence);
  u.segments = (u.length() + g.segment - 1) / g.segment;
  if (u.segments < 1) u.segments = 1;
  u.chunks = g.cu_seqlens != nullptr ? (u.segments + per - 1) / per : g.chunks;
  u.is_owned = u.chunk >= 0 && u.chunk < u.chunks;  // below 0 only from offsets that decrease
  return u;
}

/// A thread's place in a unit.
struct Worker {
  int lane, slot;
  Index d, segment, item;
  Index first;  // step
  int count;    // of steps
  bool is_active;
};
__device__ __forceinline__ Worker worker_of(const SolveArgs& g, const Unit& u) {
  Worker w;
  const int per = kSolveThreads >> g.across_log2;
  w.lane = static_cast<int>(threadIdx.x) & ((1 << g.across_log2) - 1);
  w.slot = static_cast<int>(threadIdx.x) >> g.across_log2;
  w.d = (static_cast<Index>(u.group) << g.across_log2) + w.lane;
  w.segment = u.chunk * per + w.slot;
  w.item = u.first_item + w.segment;
  w.first = w.segment * g.segment;
  const Index rest = u.length() - w.first;
  w.count = static_cast<int>(rest < g.segment ? (rest > 0 ? rest : 0) : g.segment);
  w.is_active = w.d < g.channels && w.segment < u.segments;
  return w;
}

/// Lets nothing that has been read from memory stay in registers: a thread's place in its unit is
/// worked out anew behind the loops over steps, which need the registers.
__device__ __forceinline__ void forget() { asm volatile("" ::: "memory"); }

/// Element (item, i) of an array of `count` numbers an item.
template <class A>
__device__ __forceinline__ A* at_item(const SolveArgs& g, char* array, Index item, int i, int count,
                                      Index d) {
  return reinterpret_cast<A*>(array) + (item * count + i) * g.pitch + d;
}

/// What a unit's share of the sequence's padding reads as.
template <class T>
__device__ __forceinline__ void clear_padding(const SolveArgs& g, const Unit& u, const Worker& w,
                                              const StepArray& s) {
  if (g.lengths == nullptr || s.data == nullptr || w.d >= g.channels) return;
  const Index count = g.time - u.length();
  const Index share = (count + g.chunks - 1) / g.chunks;
  const Index first = u.span.begin > 0 ? 0 : u.length();
  const Index begin = u.chunk * share;
  const Index end = begin + share < count ? begin + share : count;
  for (Index i = begin + w.slot; i < end; i += kSolveThreads >> g.across_log2) {
    store<T>(address(s, u.span.row, first + i, w.d), Constant<Acc<T>>::of(0));
  }
}

// --- the queue -----------------------------------------------------------------------------------

__device__ __forceinline__ unsigned peek(const unsigned* at) {
  return *static_cast<const volatile unsigned*>(at);
}

__device__ __forceinline__ void wait_a_moment() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
  __nanosleep(100);
#endif
}

struct Work {
  Unit unit;      // in shared memory, so that nobody keeps it in registers while steps run
  bool is_first;  // the unit's first run
  bool is_over;
};

/// The block's next unit. False once there will be none.
__device__ __forceinline__ bool take_unit(const SolveArgs& g, Work& shared) {
  __syncthreads();  // nobody still reads `shared`
  if (threadIdx.x == 0) {
    const unsigned ticket = atomicAdd(g.ticket, 1u);
    unsigned unit = ticket;
    shared.is_first = ticket < static_cast<unsigned>(g.units);
    if (!shared.is_first) {
      const unsigned units = static_cast<unsigned>(g.units);
      unsigned* slot = g.queue + (ticket - units) % units;
      for (;;) {
        unit = peek(slot);
        if (unit != kNothing) unit = atomicExch(slot, kNothing);
        if (unit != kNothing) break;
        // All is done once as many runs have ended as were ever due; in this order, since more
        // become due only while some are under way.
        const unsigned ended = peek(g.finished) + 1;
        __threadfence();
        if (ended == units + peek(g.queue_tail) + 1) break;
        wait_a_moment();
      }
      __threadfence();
    }
    shared.is_over = unit == kNothing;
    if (!shared.is_over) shared.unit = unit_of(g, unit);
  }
  __syncthreads();
  return !shared.is_over;
}

/// Whether the block is the last of the group's to arrive. All that the block wrote is seen by it.
__device__ __forceinline__ bool is_last_to_arrive(unsigned* counter, unsigned expected,
                                                  unsigned* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    *shared = atomicAdd(counter, 1u) + 2 == expected;  // counters start at -1
    __threadfence();
  }
  __syncthreads();
  return *shared != 0;
}

/// Queues those units of the group that `is_due(chunk)` names. False if there are none. The queue
/// is a ring with room for every unit once, and no unit is in it twice: who has to wait for a slot
/// waits for a block that has been given it.
template <class IsDue>
__device__ __forceinline__ bool queue_units(const SolveArgs& g, const Unit& u, unsigned pass,
                                            unsigned (&shared)[2], const IsDue& is_due) {
  const Index group = u.sequence * g.groups + u.group;
  if (threadIdx.x == 0) shared[0] = 0;
  __syncthreads();
  unsigned own = 0;
  for (Index c = threadIdx.x; c < u.chunks; c += kSolveThreads) own += is_due(c) ? 1 : 0;
  if (own > 0) atomicAdd(&shared[0], own);
  __syncthreads();
  const unsigned count = shared[0];
  if (count == 0) return false;
  if (threadIdx.x == 0) {
    g.expected[group] = count;
    g.pass[group] = pass;
    g.arrived[group] = kNothing;
    shared[1] = atomicAdd(g.queue_tail, count) + 1;
  }
  __threadfence();
  __syncthreads();
  for (Index c = threadIdx.x; c < u.chunks; c += kSolveThreads) {
    if (!is_due(c)) continue;
    unsigned* slot = g.queue + atomicAdd(&shared[1], 1u) % static_cast<unsigned>(g.units);
    const unsigned unit = static_cast<unsigned>(u.first_unit + c * g.groups + u.group);
    __threadfence();
    while (atomicCAS(slot, kNothing, unit) != kNothing) wait_a_moment();
  }
  return true;
}

/// A run of a unit has ended, with all that follows from it.
__device__ __forceinline__ void finish_unit(const SolveArgs& g) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(g.finished, 1u);
  }
}

/// Segments that a slot goes through in a scan over the group's.
struct Share {
  Index low, high;
};
__device__ __forceinline__ Share share_of(const SolveArgs& g, Index segments, int slot) {
  const Index per = kSolveThreads >> g.across_log2;
  const Index share = (segments + per - 1) / per;
  const Index low = slot * share, high = low + share;
  return {low < segments ? low : segments, high < segments ? high : segments};
}

// --- forward -------------------------------------------------------------------------------------

template <class A, int N>
struct ForwardShared {
  Work work;
  unsigned is_last;
  unsigned counts[2];
  typename SegmentMap<A, N>::Type map[kSolveThreads];
  A residual[kSolveThreads], error[kSolveThreads];
  A open[kSolveThreads], largest[kSolveThreads];  // a slot's segments that move, and how far
  int first[kSolveThreads];  // segment that a slot's channel is unconverged from
};

inline constexpr int kConverged = 0x7fffffff;

/// A row of the report.
__device__ __forceinline__ void write_report(bool is_serial, unsigned passes, double residual,
                                             double error, Index first, Index serial, double* to) {
  to[SolveReport::kStatus] = is_serial    ? SolveReport::kSerial
                             : serial > 0 ? SolveReport::kFellBack
                                          : SolveReport::kConverged;
  to[SolveReport::kPasses] = passes;
  to[SolveReport::kResidual] = residual;
  to[SolveReport::kErrorEstimate] = error;
  to[SolveReport::kFirstUnconverged] = static_cast<double>(first);
  to[SolveReport::kSerialChannels] = static_cast<double>(serial);
}

template <class A, int N>
struct SolvedSegment {
  A start[N], end[N], gain[N][N];
};
template <class A, int N>
__device__ __forceinline__ SolvedSegment<A, N> load_segment(const SolveArgs& g, Index item, Index d,
                                                            bool with_start) {
  SolvedSegment<A, N> s;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (with_start) s.start[i] = *at_item<A>(g, g.start, item, i, N, d);
    s.end[i] = *at_item<A>(g, g.end, item, i, N, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      s.gain[i][j] = *at_item<A>(g, g.gain, item, i * N + j, N * N, d);
    }
  }
  return s;
}
/// The map from a start's increment to that of the next.
template <class A, int N>
__device__ __forceinline__ auto increment(const SolvedSegment<A, N>& s,
                                          const SolvedSegment<A, N>& next) {
  A mismatch[N];
#pragma unroll
  for (int i = 0; i < N; ++i) mismatch[i] = s.end[i] - next.start[i];
  return map_of(s.gain, mismatch);
}

/// How far a boundary's two sides may be apart.
template <class A>
__device__ __forceinline__ A most_apart(const SolveArgs& g, const A& state) {
  return static_cast<A>(SolveOptions::most_apart * g.tolerance) *
         maximum(magnitude(state), Constant<A>::of(1));
}

/// Whether a start has come to rest, from which the segment before ends `gap` apart, and whose
/// increment is `d`. Where a segment makes much of little, increments may vanish and boundaries
/// stay apart. From a start that overflowed, nothing is less than infinitely apart.
template <class A, int N>
__device__ __forceinline__ bool rests(const SolveArgs& g, const A (&start)[N], const A (&gap)[N],
                                      const A (&d)[N]) {
  bool rests = true;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A small = static_cast<A>(g.tolerance) * maximum(magnitude(start[i]), Constant<A>::of(1));
    rests = rests && magnitude(d[i]) <= small && magnitude(gap[i]) < most_apart(g, start[i]);
  }
  return rests;
}

/// Takes back the moves of channels that get nowhere. Their starts say so.
template <class T, class Cell>
__device__ __forceinline__ void give_up(const SolveArgs& g, const Unit& u, unsigned pass,
                                        const Share& share,
                                        const ForwardShared<Acc<T>, Cell::states>& shared) {
  using A = Acc<T>;
  const Worker w = worker_of(g, u);
  const int across = 1 << g.across_log2, per = kSolveThreads >> g.across_log2;
  const bool has_channel = w.d < g.channels;
  A* kept = reinterpret_cast<A*>(g.progress) + 2 * u.sequence * g.pitch + w.d;
  SolveProgress<A> now;
  bool is_hopeless = false;
  if (has_channel) {
    for (int slot = 0; slot < per; ++slot) {
      now.moved = now.moved + shared.open[slot * across + w.lane];
      now.furthest = maximum(now.furthest, shared.largest[slot * across + w.lane]);
    }
    if (pass > 1) {
      const SolveProgress<A> before = {kept[0], kept[g.pitch]};
      is_hopeless = gets_nowhere(patience(u.segments, g.max_passes), static_cast<int>(pass),
                                 g.max_passes, u.segments, before, now);
    }
  }
  // A warp runs its channels serially together. Where one has most of it before it, the others
  // don't make that longer, but each pass that they would take does.
  A most = is_hopeless ? now.moved : Constant<A>::of(0);
  for (int by = kWarp / 2; by > 0; by /= 2) most = maximum(most, shuffle_xor(most, by));
  is_hopeless = is_hopeless || (now.moved > 0 && 2 * most > static_cast<A>(u.segments));
  __syncthreads();
  if (w.slot == 0 && has_channel) {
    kept[0] = now.moved;
    kept[g.pitch] = now.furthest;
  }
  if (!is_hopeless) return;
  for (Index p = share.low; p < share.high; ++p) {
    const Index item = u.first_item + p;
    unsigned char& moves = g.moved[item * g.pitch + w.d];
    if (moves != 0) *at_item<A>(g, g.start, item, 0, Cell::states, w.d) = static_cast<A>(::nan(""));
    moves = 0;
  }
}

/// A group's starts, corrected by its segments' tangents: the block goes through the segments, a
/// slot of threads its share of them. Starts that move are marked, and their units queued. False if
/// the group is done.
template <class T, class Cell>
__device__ __forceinline__ bool correct(const SolveArgs& g, const Unit& u, unsigned pass,
                                        ForwardShared<Acc<T>, Cell::states>& shared) {
  using A = Acc<T>;
  constexpr int N = Cell::states;
  using Map = typename SegmentMap<A, N>::Type;
  constexpr int kBatch = 3;  // segments whose numbers are on their way at once
  const Worker w = worker_of(g, u);
  const int across = 1 << g.across_log2, per = kSolveThreads >> g.across_log2;
  const bool has_channel = w.d < g.channels;
  const unsigned most_passes = static_cast<unsigned>(g.max_passes);
  const bool leads = w.slot == 0 && has_channel;  // a thread a channel
  const Share share = share_of(g, has_channel ? u.segments : 0, w.slot);
  Map total = identity<Map>();
  SolvedSegment<A, N> before{};
  if (share.low > 0 && share.low < share.high) {
    before = load_segment<A, N>(g, u.first_item + share.low - 1, w.d, false);
  }
#pragma unroll kBatch
  for (Index p = share.low; p < share.high; ++p) {
    const SolvedSegment<A, N> here = load_segment<A, N>(g, u.first_item + p, w.d, true);
    if (p > 0) total = merge(total, increment(before, here));
    before = here;
  }
  shared.map[threadIdx.x] = total;
  __syncthreads();
  A d[N];
#pragma unroll
  for (int i = 0; i < N; ++i) d[i] = Constant<A>::of(0);
  for (int slot = 0; slot < w.slot; ++slot) apply_to(shared.map[slot * across + w.lane], d);

  A residual = Constant<A>::of(0), error = residual, open = residual, furthest = residual;
  int first = kConverged;
  A most[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    most[i] = Constant<A>::of(g.bound[i]);
    if (has_channel) {
      most[i] =
          maximum(static_cast<A>(magnitude(load_state<T>(g.initial[i], u.sequence, w.d))), most[i]);
    }
  }
  if (share.low > 0 && share.low < share.high) {
    before = load_segment<A, N>(g, u.first_item + share.low - 1, w.d, false);
  }
#pragma unroll kBatch
  for (Index p = share.low; p < share.high; ++p) {
    const SolvedSegment<A, N> here = load_segment<A, N>(g, u.first_item + p, w.d, true);
    const Index item = u.first_item + p;
    bool moves = false;
    if (p > 0) {
      A to[N];  // where the start should be
#pragma unroll
      for (int i = 0; i < N; ++i) {
        to[i] = before.end[i];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (d[j] != Constant<A>::of(0)) to[i] = fma(before.gain[i][j], d[j], to[i]);
        }
      }
      apply_to(increment(before, here), d);
      bool is_finite = true;
      A gap[N], largest = Constant<A>::of(0), apart = largest;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gap[i] = before.end[i] - here.start[i];
        is_finite = is_finite && d[i] - d[i] == Constant<A>::of(0);
        largest = maximum(largest, magnitude(d[i]));
        apart = maximum(apart, magnitude(gap[i]));
      }
      const bool stands = rests(g, here.start, gap, d);
      if (!stands && first == kConverged) first = static_cast<int>(p);
      if (first == kConverged) {
        residual = maximum(residual, apart);
        error = maximum(error, largest);
      }
      moves = !stands && is_finite && pass < most_passes;
      if (moves) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (g.bound[i] > 0) to[i] = maximum(minimum(to[i], most[i]), -most[i]);
          *at_item<A>(g, g.start, item, i, N, w.d) = to[i];
        }
        g.dirty[u.first_unit + p / per * g.groups + u.group] = pass;
        open = open + Constant<A>::of(1);
        furthest = maximum(furthest, largest);
      }
    }
    g.moved[item * g.pitch + w.d] = moves ? 1 : 0;
    before = here;
  }
  shared.residual[threadIdx.x] = residual;
  shared.error[threadIdx.x] = error;
  shared.first[threadIdx.x] = first;
  shared.open[threadIdx.x] = open;
  shared.largest[threadIdx.x] = furthest;
  __syncthreads();
  if (pass < most_passes) give_up<T, Cell>(g, u, pass, share, shared);

  const bool goes_on = queue_units(g, u, pass + 1, shared.counts, [&](Index c) {
    return g.dirty[u.first_unit + c * g.groups + u.group] == pass;
  });
  if (goes_on) return true;
  // Nothing moves. Channels whose boundaries agree are done; the others are for the serial kernel.
  if (leads) {
    for (int slot = 1; slot < per && first == kConverged; ++slot) {
      const int thread = slot * across + w.lane;
      residual = maximum(residual, shared.residual[thread]);
      error = maximum(error, shared.error[thread]);
      first = shared.first[thread];
    }
    shared.residual[threadIdx.x] = residual;
    shared.error[threadIdx.x] = error;
    g.fell_back[u.sequence * g.pitch + w.d] = first;
  }
  __syncthreads();
  return false;
}

/// Final states, and the report.
template <class T, class Cell>
__device__ __forceinline__ void finish_group(const SolveArgs& g, const Unit& u, unsigned pass,
                                             ForwardShared<Acc<T>, Cell::states>& shared) {
  using A = Acc<T>;
  constexpr int N = Cell::states;
  const Worker w = worker_of(g, u);
  if (w.slot == 0 && w.d < g.channels && g.fell_back[u.sequence * g.pitch + w.d] == kConverged) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      store_state<T>(g.leave[i], u.sequence, w.d,
                     *at_item<A>(g, g.end, u.first_item + u.segments - 1, i, N, w.d));
    }
  }
  if (g.report == nullptr) return;
  if (threadIdx.x == 0) {
    double residual = 0, error = 0;
    Index serial = 0;
    int earliest = kConverged;
    for (int lane = 0; lane < 1 << g.across_log2; ++lane) {
      const Index d = (static_cast<Index>(u.group) << g.across_log2) + lane;
      if (d >= g.channels) break;
      residual = maximum(residual, static_cast<double>(shared.residual[lane]));
      error = maximum(error, static_cast<double>(shared.error[lane]));
      const int first = g.fell_back[u.sequence * g.pitch + d];
      serial += first != kConverged ? 1 : 0;
      earliest = first < earliest ? first : earliest;
    }
    write_report(u.segments <= 1, u.segments <= 1 ? 0 : pass, residual, error,
                 earliest != kConverged ? earliest * g.segment : -1, serial,
                 g.partial + (u.sequence * g.groups + u.group) * SolveReport::kColumns);
  }
  if (is_last_to_arrive(g.groups_done + u.sequence, static_cast<unsigned>(g.groups),
                        &shared.is_last) &&
      threadIdx.x < SolveReport::kColumns) {
    // The worst of the groups: the largest, but of first steps the least.
    const int column = static_cast<int>(threadIdx.x);
    const double* from = g.partial + u.sequence * g.groups * SolveReport::kColumns + column;
    double worst = column == SolveReport::kFirstUnconverged ? -1 : 0;
    for (int i = 0; i < g.groups; ++i) {
      const double value = from[i * SolveReport::kColumns];
      if (column == SolveReport::kSerialChannels) {
        worst += value;
      } else if (column == SolveReport::kFirstUnconverged) {
        if (value >= 0 && (worst < 0 || value < worst)) worst = value;
      } else if (value > worst) {
        worst = value;
      }
    }
    g.report[u.sequence * SolveReport::kColumns + column] = worst;
  }
}

template <class Cell, class T>
__global__ void __launch_bounds__(kSolveThreads, SolvePass<Cell>::blocks(sizeof(Acc<T>)))
    solve_forward(const __grid_constant__ SolveArgs g, const __grid_constant__ Cell cell) {
  using A = Acc<T>;
  constexpr int N = Cell::states;
  constexpr int kAhead = steps_ahead(SolvePass<Cell>::streams);
  __shared__ ForwardShared<A, N> shared;
  await_clearing();
  for (;;) {
    if (!take_unit(g, shared.work)) return;
    const Work& work = shared.work;
    const Unit& u = work.unit;
    if (!u.is_owned) {
      finish_unit(g);
      continue;
    }
    const Worker w = worker_of(g, u);
    if (w.is_active && (work.is_first || g.moved[w.item * g.pitch + w.d] != 0)) {
      A vector[Cell::inputs];
      load_vectors<Cell, T>(g, w.d, vector);
      A start[N];
      if (!work.is_first) {
#pragma unroll
        for (int i = 0; i < N; ++i) start[i] = *at_item<A>(g, g.start, w.item, i, N, w.d);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          start[i] =
              w.segment == 0 ? load_state<T>(g.initial[i], u.sequence, w.d) : Constant<A>::of(0);
        }
        if (w.segment > 0) {
          run_steps<false, kAhead, T>(g, cell, u.span, w.d, vector, w.first - g.burn_in, g.burn_in,
                                      start);
        }
        forget();
        const Worker now = worker_of(g, u);
#pragma unroll
        for (int i = 0; i < N; ++i) *at_item<A>(g, g.start, now.item, i, N, now.d) = start[i];
      }
      forget();
      const Worker now = worker_of(g, u);
      Dual<A, N> state[N];
      independent(start, state);
      run_steps<true, kAhead, T>(g, cell, u.span, now.d, vector, now.first, now.count, state);
      forget();
      const Worker then = worker_of(g, u);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        *at_item<A>(g, g.end, then.item, i, N, then.d) = state[i].value;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          *at_item<A>(g, g.gain, then.item, i * N + j, N * N, then.d) = state[i].slope[j];
        }
      }
    }
    forget();
    if (work.is_first) {
      clear_padding<T>(g, u, worker_of(g, u), g.out);
      if constexpr (SolvePass<Cell>::keeps) clear_padding<T>(g, u, worker_of(g, u), g.kept);
    }
    const Index group = u.sequence * g.groups + u.group;
    const unsigned expected = work.is_first ? static_cast<unsigned>(u.chunks) : g.expected[group];
    if (is_last_to_arrive(g.arrived + group, expected, &shared.is_last)) {
      const unsigned pass = work.is_first ? 1 : g.pass[group];
      if (!correct<T, Cell>(g, u, pass, shared)) finish_group<T, Cell>(g, u, pass, shared);
    }
    finish_unit(g);
  }
}

/// Makes a number no less than another; both are 0 or more.
__device__ __forceinline__ void raise(double* number, double least) {
  atomicMax(reinterpret_cast<unsigned long long*>(number),
            static_cast<unsigned long long>(__double_as_longlong(least)));
}

/// Steps [first, first + count) of a channel, from `state` and in place, and their outputs, for
/// warps that are alone. Inputs are read in groups, a group while the one before runs: a warp can
/// wait for all that it has asked for, but hardly for some of it.
template <class T, class Cell>
__device__ __forceinline__ void run_alone(const SolveArgs& g, const Cell& cell, const Span& span,
                                          Index d, const Acc<T> (&vector)[Cell::inputs],
                                          Index first, Index count, Acc<T> (&state)[Cell::states]) {
  using P = SolvePass<Cell>;
  using A = Acc<T>;
  constexpr int kGroup = steps_of_group(P::streams, sizeof(A));
  const Index position = position_of(g, span, first);
  const char* at[P::streams];
  for_each_stream<Cell>(
      [&](auto k) { at[P::stream(k())] = address(g.in[k], span.row, position, d); });
  char* out = address(g.out, span.row, position, d);
  char* kept = nullptr;
  if constexpr (P::keeps) kept = address(g.kept, span.row, position, d);
  const unsigned char* reset = g.reset;
  if (reset != nullptr) reset += span.row * g.reset_batch + position * g.reset_time;

  T next[kGroup][P::streams];
  unsigned next_cuts = 0;
  const auto fetch = [&](int steps) {
    next_cuts = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j < steps) {
        for_each_stream<Cell>([&](auto k) {
          constexpr int s = P::stream(k());
          next[j][s] = load_constant<T>(at[s]);
          at[s] += g.in[k].next;
        });
      }
    }
    if (g.reset != nullptr) {
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if (j < steps) {
          next_cuts |= (__ldg(reset) != 0 ? 1u : 0u) << j;
          reset += g.reset_next;
        }
      }
    }
  };
  const auto run = [&](int steps) {
    T now[kGroup][P::streams];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
#pragma unroll
      for (int s = 0; s < P::streams; ++s) now[j][s] = next[j][s];
    }
    const unsigned cuts = next_cuts;
    count -= steps;
    fetch(count < kGroup ? static_cast<int>(count) : kGroup);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j >= steps) break;
      A in[P::inputs], before[P::states];
      gather<T>(now[j], vector, in, cell);
      if ((cuts >> j & 1u) != 0) {
#pragma unroll
        for (int s = 0; s < P::states; ++s) drop(state[s]);
      }
#pragma unroll
      for (int s = 0; s < P::states; ++s) before[s] = state[s];
      cell.step(in, state);
      store<T>(out, cell.output(in, before, state));
      out += g.out.next;
      if constexpr (P::keeps) {
        if (g.kept.data != nullptr) store<T>(kept, state[Cell::kept_state]);
        kept += g.kept.next;
      }
    }
  };
  fetch(count < kGroup ? static_cast<int>(count) : kGroup);
#pragma unroll 1
  while (count >= kGroup) run(kGroup);
  if (count > 0) run(static_cast<int>(count));
}

/// The recurrence as it stands, a thread a channel: of what is too short to be cut, or, behind
/// solve_forward, of channels that haven't converged, from their first start that hasn't. Of these,
/// segments stand whose starts rest by what correct() asks of them; increments are carried from one
/// to the next. A warp's channels go through the segments together, so that they read side by side.
template <class Cell, class T>
__global__ void __launch_bounds__(kSerialThreads)
    solve_serial(const __grid_constant__ SolveArgs g, const __grid_constant__ Cell cell) {
  using A = Acc<T>;
  constexpr int N = Cell::states;
  const Index number = static_cast<Index>(blockIdx.x) * kSerialThreads + threadIdx.x;
  const Index n = number / g.channels, d = number % g.channels;
  const bool is_whole = g.fell_back == nullptr;
  int first = kConverged;
  if (n < g.sequences) first = is_whole ? 0 : g.fell_back[n * g.pitch + d];
  int begin = first;
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const int other = shuffle_xor(begin, by);
    begin = other < begin ? other : begin;
  }
  if (first == kConverged) return;
  const Span span = span_of(g, n);
  const Index length = span.end - span.begin;
  const Index segment = is_whole ? length : g.segment;
  const Index segments = is_whole ? 1 : (length + g.segment - 1) / g.segment;
  const Index first_item = is_whole ? 0 : first_row_of(g, n) * (kSolveThreads >> g.across_log2);
  A vector[Cell::inputs], state[N], carried[N];
  load_vectors<Cell, T>(g, d, vector);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    state[i] = load_state<T>(g.initial[i], n, d);
    carried[i] = Constant<A>::of(0);
  }
  A residual = Constant<A>::of(0), error = residual;
  for (Index p = begin; p < segments; ++p) {
    if (!is_whole) {
      if (p < first) continue;
      const SolvedSegment<A, N> before = load_segment<A, N>(g, first_item + p - 1, d, false);
      A start[N], gap[N], moves[N], corrects[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        start[i] = *at_item<A>(g, g.start, first_item + p, i, N, d);
        gap[i] = before.end[i] - start[i];
        A jump = Constant<A>::of(0);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (carried[j] != Constant<A>::of(0)) jump = fma(before.gain[i][j], carried[j], jump);
        }
        moves[i] = gap[i] + jump;
        // A large one is more than a tangent knows of.
        corrects[i] = Constant<A>::of(0);
        if (magnitude(jump) <= most_apart(g, before.end[i])) corrects[i] = jump;
        state[i] = before.end[i] + corrects[i];
      }
      const bool stands = rests(g, start, gap, moves);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        carried[i] = stands ? moves[i] : Constant<A>::of(0);
        error = maximum(error, magnitude(carried[i]));
        residual = maximum(residual, magnitude(stands ? gap[i] : corrects[i]));
      }
      if (stands) continue;
    }
    const Index at = p * segment;
    run_alone<T>(g, cell, span, d, vector, at, length - at < segment ? length - at : segment,
                 state);
    if (!is_whole) {
#pragma unroll
      for (int i = 0; i < N; ++i) *at_item<A>(g, g.end, first_item + p, i, N, d) = state[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (!is_whole) state[i] = *at_item<A>(g, g.end, first_item + segments - 1, i, N, d);
    store_state<T>(g.leave[i], n, d, state[i]);
  }
  if (!is_whole) {
    if (g.report == nullptr) return;
    double* report = g.report + n * SolveReport::kColumns;
    raise(report + SolveReport::kResidual, residual);
    raise(report + SolveReport::kErrorEstimate, error);
    return;
  }
  if (g.lengths != nullptr) {
    const Index padding = span.begin > 0 ? 0 : length;
    for (Index i = padding; i < padding + g.time - length; ++i) {
      store<T>(address(g.out, span.row, i, d), Constant<A>::of(0));
      if constexpr (SolvePass<Cell>::keeps) {
        if (g.kept.data != nullptr) {
          store<T>(address(g.kept, span.row, i, d), Constant<A>::of(0));
        }
      }
    }
  }
  if (g.report != nullptr && d == 0) {
    write_report(true, 0, 0, 0, -1, 0, g.report + n * SolveReport::kColumns);
  }
}

// --- backward ------------------------------------------------------------------------------------

/// A worker's steps, from the last to the first. Without `kFinish`,
/// `adjoint` is left alone and `gain` and `offset` become the map from what enters the segment to
/// what leaves it; with it `adjoint`, what enters, becomes what leaves, gradients are written, and
/// added to `sum`.
template <bool kFinish, class T, class Cell>
__device__ __forceinline__ void run_adjoint(const SolveArgs& g, const Cell& cell, const Unit& u,
                                            const Worker& w, const Acc<T> (&vector)[Cell::inputs],
                                            Acc<T> (&gain)[Cell::states][Cell::states],
                                            Acc<T> (&adjoint)[Cell::states],
                                            Acc<T> (&sum)[Cell::inputs]) {
  using P = SolvePass<Cell>;
  using A = Acc<T>;
  constexpr int kReads = P::streams + P::states + 1;
  constexpr int kAhead = steps_ahead(kReads);
  const A zero = Constant<A>::of(0), one = Constant<A>::of(1);
  if constexpr (!kFinish) {
#pragma unroll
    for (int s = 0; s < P::states; ++s) {
      adjoint[s] = zero;
#pragma unroll
      for (int j = 0; j < P::states; ++j) gain[s][j] = s == j ? one : zero;
    }
  }
  const Index d = w.d;
  const int count = w.count;
  if (count <= 0) return;
  const Span span = u.span;

  // Inputs and dy of a step, and the states before it.
  const Index position = position_of(g, span, w.first + count - 1);
  const char* at[kReads];
  char* to[P::streams];
  A after[P::states];
  for_each_stream<Cell>([&](auto k) {
    at[P::stream(k())] = address(g.in[k], span.row, position, d);
    if constexpr (kFinish) to[P::stream(k())] = address(g.din[k], span.row, position, d);
  });
#pragma unroll
  for (int s = 0; s < P::states; ++s) {
    const char* state = address(g.states[s], span.row, position, d);
    after[s] = Element<T>::widen(load_constant<T>(state));
    at[P::streams + s] = state + g.states[s].next;
  }
  at[P::streams + P::states] = address(g.dy, span.row, position, d);
  const unsigned char* reset = g.reset;
  if (reset != nullptr) reset += span.row * g.reset_batch + position * g.reset_time;

  const auto fetch = [&](T(&values)[kReads], bool& is_cut, bool has_before) {
    for_each_stream<Cell>([&](auto k) {
      constexpr int s = P::stream(k());
      values[s] = load_constant<T>(at[s]);
      at[s] += g.in[k].next;
    });
#pragma unroll
    for (int s = 0; s < P::states; ++s) {
      if (has_before) values[P::streams + s] = load_constant<T>(at[P::streams + s]);
      at[P::streams + s] += g.states[s].next;
    }
    values[kReads - 1] = load_constant<T>(at[kReads - 1]);
    at[kReads - 1] += g.dy.next;
    is_cut = false;
    if (g.reset != nullptr) {
      is_cut = __ldg(reset) != 0;
      reset += g.reset_next;
    }
  };
  const auto step = [&](const A(&in)[P::inputs], const A(&from)[P::states], const A& dy,
                        bool is_cut) {
    A before[P::states], leaves[P::states];
#pragma unroll
    for (int s = 0; s < P::states; ++s) before[s] = is_cut ? zero : from[s];
    if constexpr (kFinish) {
      A din[P::inputs];
      cell.pullback(in, before, after, dy, adjoint, din, leaves);
      for_each_stream<Cell>([&](auto k) {
        constexpr int s = P::stream(k());
        if (g.din[k].data != nullptr) store<T>(to[s], din[k]);
        to[s] += g.din[k].next;
      });
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) sum[k] = sum[k] + din[k];
#pragma unroll
      for (int s = 0; s < P::states; ++s) adjoint[s] = is_cut ? zero : leaves[s];
    } else {
      A by[P::states][P::states];
      adjoint_map(cell, in, before, after, dy, by, leaves);
      A next[P::states][P::states], offset[P::states];
#pragma unroll
      for (int s = 0; s < P::states; ++s) {
        offset[s] = leaves[s];
#pragma unroll
        for (int j = 0; j < P::states; ++j) offset[s] = fma(by[s][j], adjoint[j], offset[s]);
#pragma unroll
        for (int e = 0; e < P::states; ++e) {
          next[s][e] = by[s][0] * gain[0][e];
#pragma unroll
          for (int j = 1; j < P::states; ++j) next[s][e] = fma(by[s][j], gain[j][e], next[s][e]);
        }
      }
#pragma unroll
      for (int s = 0; s < P::states; ++s) {
        adjoint[s] = is_cut ? zero : offset[s];
#pragma unroll
        for (int j = 0; j < P::states; ++j) gain[s][j] = is_cut ? zero : next[s][j];
      }
    }
#pragma unroll
    for (int s = 0; s < P::states; ++s) after[s] = from[s];
  };
  const auto run = [&](const T(&values)[kReads], bool is_cut, const A(&from)[P::states]) {
    T streams[P::streams];
#pragma unroll
    for (int k = 0; k < P::streams; ++k) streams[k] = values[k];
    A in[P::inputs];
    gather<T>(streams, vector, in, cell);
    step(in, from, Element<T>::widen(values[kReads - 1]), is_cut);
  };

  // Of the sequence's first step the state before it isn't in the arrays.
  const bool has_all_before = w.first > 0;
  const int whole = has_all_before ? count : count - 1;
  const int bulk = whole - whole % kAhead;
  T ahead[kAhead][kReads];
  bool cut[kAhead];
  if (bulk > 0) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) fetch(ahead[j], cut[j], true);
  }
#pragma unroll 1
  for (int i = 0; i < bulk; i += kAhead) {
    const bool more = i + kAhead < bulk;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      T values[kReads];
#pragma unroll
      for (int k = 0; k < kReads; ++k) values[k] = ahead[j][k];
      const bool is_cut = cut[j];
      if (more) fetch(ahead[j], cut[j], true);
      A from[P::states];
#pragma unroll
      for (int s = 0; s < P::states; ++s) from[s] = Element<T>::widen(values[P::streams + s]);
      run(values, is_cut, from);
    }
  }
#pragma unroll 1
  for (int i = bulk; i < count; ++i) {
    const bool has_before = has_all_before || i + 1 < count;
    fetch(ahead[0], cut[0], has_before);
    A from[P::states];
#pragma unroll
    for (int s = 0; s < P::states; ++s) from[s] = Element<T>::widen(ahead[0][P::streams + s]);
    if (!has_before) {
      forget();
#pragma unroll
      for (int s = 0; s < P::states; ++s) {
        from[s] = load_state<T>(g.initial[s], u.sequence, worker_of(g, u).d);
      }
    }
    run(ahead[0], cut[0], from);
  }
}

template <class A, int N>
struct BackwardShared {
  Work work;
  unsigned is_last;
  unsigned counts[2];
  typename SegmentMap<A, N>::Type map[kSolveThreads];
};

/// What enters every segment of the group, from the maps of those behind it. A map without gain
/// (a reset) forgets what enters it, NaN too.
template <class T, class Cell>
__device__ __forceinline__ void scan_adjoint(const SolveArgs& g, const Unit& u,
                                             BackwardShared<Acc<T>, Cell::states>& shared) {
  using A = Acc<T>;
  constexpr int N = Cell::states;
  using Map = typename SegmentMap<A, N>::Type;
  constexpr int kBatch = 3;  // segments whose numbers are on their way at once
  const Worker w = worker_of(g, u);
  const int across = 1 << g.across_log2;
  const bool has_channel = w.d < g.channels;
  const Share share = share_of(g, has_channel ? u.segments : 0, w.slot);
  const auto load = [&](Index number) {
    const Index item = u.first_item + u.segments - 1 - number;
    A gain[N][N], offset[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      offset[i] = *at_item<A>(g, g.start, item, i, N, w.d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        gain[i][j] = *at_item<A>(g, g.gain, item, i * N + j, N * N, w.d);
      }
    }
    return map_of(gain, offset);
  };
  const auto pass_through = [&](const Map& map, A(&adjoint)[N]) {
    if (forgets(map)) {
      offset_of(map, adjoint);
    } else {
      apply_to(map, adjoint);
    }
  };
  Map total = identity<Map>();
#pragma unroll kBatch
  for (Index p = share.low; p < share.high; ++p) {
    const Map map = load(p);
    total = forgets(map) ? map : merge(total, map);
  }
  shared.map[threadIdx.x] = total;
  __syncthreads();
  A adjoint[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    adjoint[i] = has_channel ? load_state<T>(g.enter[i], u.sequence, w.d) : Constant<A>::of(0);
  }
  for (int slot = 0; slot < w.slot; ++slot) {
    pass_through(shared.map[slot * across + w.lane], adjoint);
  }
#pragma unroll kBatch
  for (Index p = share.low; p < share.high; ++p) {
    const Map map = load(p);
    const Index item = u.first_item + u.segments - 1 - p;
#pragma unroll
    for (int i = 0; i < N; ++i) *at_item<A>(g, g.start, item, i, N, w.d) = adjoint[i];
    pass_through(map, adjoint);
  }
  __syncthreads();
  queue_units(g, u, 2, shared.counts, [](Index) { return true; });
}

template <class Cell, class T>
__global__ void __launch_bounds__(kSolveThreads, SolvePass<Cell>::blocks(sizeof(Acc<T>)))
    solve_backward(const __grid_constant__ SolveArgs g, const __grid_constant__ Cell cell) {
  using P = SolvePass<Cell>;
  using A = Acc<T>;
  constexpr int N = Cell::states;
  __shared__ BackwardShared<A, N> shared;
  await_clearing();
  for (;;) {
    if (!take_unit(g, shared.work)) return;
    const Work& work = shared.work;
    const Unit& u = work.unit;
    const Worker w = worker_of(g, u);
    // A single segment needs no scan, and finishes at once.
    const auto finishes = [&] { return !work.is_first || (u.segments <= 1 && u.chunk == 0); };
    if (work.is_first && u.is_owned) {
      for_each_stream<Cell>([&](auto k) { clear_padding<T>(g, u, w, g.din[k]); });
    }
    A sum[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) sum[k] = Constant<A>::of(0);
    if (w.is_active && u.is_owned) {
      A vector[P::inputs];
      load_vectors<Cell, T>(g, w.d, vector);
      A gain[N][N], adjoint[N];
      if (!finishes()) {
        run_adjoint<false, T>(g, cell, u, w, vector, gain, adjoint, sum);
        forget();
        const Worker then = worker_of(g, u);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          *at_item<A>(g, g.start, then.item, i, N, then.d) = adjoint[i];
#pragma unroll
          for (int j = 0; j < N; ++j) {
            *at_item<A>(g, g.gain, then.item, i * N + j, N * N, then.d) = gain[i][j];
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          adjoint[i] = work.is_first ? load_state<T>(g.enter[i], u.sequence, w.d)
                                     : *at_item<A>(g, g.start, w.item, i, N, w.d);
        }
        run_adjoint<true, T>(g, cell, u, w, vector, gain, adjoint, sum);
        forget();
        const Worker then = worker_of(g, u);
        if (then.segment == 0) {
#pragma unroll
          for (int i = 0; i < N; ++i) store_state<T>(g.leave[i], u.sequence, then.d, adjoint[i]);
        }
      }
    }
    // Items without steps have sums too: of nothing.
    forget();
    const Worker then = worker_of(g, u);
    if (then.d < g.channels && (finishes() || !u.is_owned || !then.is_active)) {
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (g.sum_slot[k] < 0) continue;
        reinterpret_cast<A*>(g.sums)[(g.sum_slot[k] * g.items + then.item) * g.pitch + then.d] =
            sum[k];
      }
    }
    if (work.is_first && u.is_owned && u.segments > 1 &&
        is_last_to_arrive(g.arrived + u.sequence * g.groups + u.group,
                          static_cast<unsigned>(u.chunks), &shared.is_last)) {
      scan_adjoint<T, Cell>(g, u, shared);
    }
    finish_unit(g);
  }
}

}  // namespace scanrnn::cuda
