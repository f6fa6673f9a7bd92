// SPDX-License-Identifier: Apache-2.0
// The kernel for arrays whose channels lie side by side, one launch for a whole pass.
//
// A block takes a tile: all rows (steps) of `across` vectors of channels, of 16 bytes or 8. It
//   1. stages the tile's arrays in shared memory, asynchronously, a vector a thread at a time;
//   2. runs the leaves: a thread has up to sixteen steps of one vector of channels and keeps
//      their map;
//   3. merges: the maps of a warp by shuffles, those of the block through shared memory. Warp 0
//      publishes the tile's node, the others meanwhile fetch what precedes the tile, a warp a level
//      of the tree (tree.cuh);
//   4. finishes: every thread runs its leaf again from the state before it and writes the outputs.
// What the first run of a step has computed is kept in the slots for the next ones (pass.cuh).
// Several blocks share a multiprocessor, so one's loads hide another's waiting. Sequences that are
// far shorter than a tile share a block: its teams of warps take one each.
#pragma once

#include "cuda/pass.cuh"
#include "cuda/tree.cuh"

namespace scanrnn::cuda {

/// Threads that share a tile, and which of them this one is.
struct Team {
  int threads, thread, number;
  bool is_block;
  __device__ __forceinline__ Team(const Args& g, int block_log2,
                                  int of_block = static_cast<int>(threadIdx.x))
      : threads(1 << (block_log2 - g.teams_log2)),
        thread(of_block & (threads - 1)),
        number(of_block >> (block_log2 - g.teams_log2)),
        is_block(g.teams_log2 == 0) {}
};

/// kWhole: in the kernel of whole tiles. kNarrow: where a row is half a line, and all of them are
/// there; of whole tiles alone.
template <class Cell, bool kBackward, class T, bool kWhole = false, bool kNarrow = false>
struct RowPass : Pass<Cell, kBackward> {
  using Base = Pass<Cell, kBackward>;
  using Type = T;
  static constexpr RowShape shape = row_shape(sizeof(T), kBackward, Cell::step_is_input,
                                              Base::slots + Cell::left_out, Base::recomputes);
  /// Whether the kernel of whole tiles takes it for granted that there is an array of outputs.
  static constexpr bool needs_output = !kBackward && !Cell::step_is_input;
  /// Inputs that aren't staged. (Of 8 bytes it wasn't measured.)
  static constexpr bool is_direct = kWhole && sizeof(T) <= sizeof(float);
  /// Where a thread reads the states as well, float32 has registers for no more than it takes for
  /// a third block.
  static constexpr unsigned direct = !is_direct ? 0
                                     : Base::reads_states && sizeof(T) == sizeof(float)
                                         ? (Base::slots > 4 ? Base::highest(Base::lastly) : 0)
                                         : Base::lastly;
  static constexpr int slots = Base::slots - Base::count(direct);
  /// Whether recomputed states take the place of an input, which a thread holds in registers from
  /// there on, so that three blocks fit instead of two. Of options that the compiler doesn't know
  /// that would spill.
  static constexpr int swapped = Base::lowest(Base::of_input);
  static constexpr bool swaps = kWhole && Base::recomputes && std::is_same_v<T, float> &&
                                std::is_same_v<typename CasesOf<Cell>::Type, CellCases<>> &&
                                Base::of_input != 0 && !Base::has(Cell::adjoint_inputs, swapped) &&
                                slots == 4;
  /// How a row is cut into vectors.
  static constexpr int vector_bytes = shape.vector_bytes;
  static constexpr int width = vector_bytes / static_cast<int>(sizeof(T));
  static constexpr int width_log2 = width == 8 ? 3 : (width == 4 ? 2 : (width == 2 ? 1 : 0));
  using Elements = Vector<T, width>;
  /// Of a block.
  static constexpr int threads = shape.threads, warps = threads / kWarp;
  static constexpr int threads_log2 = threads == 128 ? 7 : (threads == 256 ? 8 : 9);
  /// Teams that a block may have. One has two warps at least: swizzled chunks repeat every 64.
  static constexpr int most_teams = warps / 2;
  /// Vectors of a row from which on it is a whole line. A warp's band then has four leaves, or two,
  /// and as many are merged first also where rows are wider and a warp holds fewer: results don't
  /// depend on how long the call's other sequences are.
  static constexpr bool is_narrow = kNarrow;
  static constexpr int band_log2 = row_band_log2(vector_bytes) - (is_narrow ? 1 : 0);
  static constexpr int band_vectors = 1 << band_log2;
  static constexpr int band_leaves = kWarp / band_vectors;
  /// Steps of a leaf; a device with less shared memory runs shorter ones (Args::leaf).
  static constexpr int leaf = shape.leaf, leaf_log2 = leaf == 8 ? 3 : 2;
  static constexpr SCANRNN_HD int slot_bytes(int leaf_steps) {
    return threads * leaf_steps * vector_bytes;
  }
  static constexpr SCANRNN_HD int staged_bytes(int leaf_steps) {
    return slots * slot_bytes(leaf_steps);
  }

  /// Maps that a block of `width` channels keeps in shared memory: one for each of its bands, the
  /// parts of the time axis that a warp holds; or one for each leaf.
  static constexpr SCANRNN_HD int maps(int across) {
    return (across > band_vectors ? threads / across : warps) * across * width;
  }
  /// Recomputed states, a leaf's one after the other for each thread.
  /// Before, the leaves' maps in the order of time lie there.
  static constexpr SCANRNN_HD int states_bytes(int leaf_steps) {
    return Base::recomputes && !swaps ? threads * (leaf_steps > 2 ? leaf_steps : 2) * width *
                                            static_cast<int>(sizeof(Acc<T>))
                                      : 0;
  }
  /// Parts of what precedes a tile: (levels, groups of children, channels).
  static constexpr SCANRNN_HD int parts(int across, int levels) {
    return levels * kGroups * across * width;
  }
  /// What a block is given beside its static part: slots, recomputed states, maps, parts, and the
  /// states that the pass starts from, of a block's only tile or of its teams'.
  static constexpr int shared_bytes(int across, int leaf_steps, int levels) {
    const int teams = levels > 0 || across > band_vectors ? 1 : most_teams;
    const int between = maps(across) + parts(across, levels), in_time = swaps ? threads * width : 0;
    return staged_bytes(leaf_steps) + states_bytes(leaf_steps) +
           (between > in_time ? between : in_time) * static_cast<int>(sizeof(Affine<Acc<T>>)) +
           teams * across * width * static_cast<int>(sizeof(Acc<T>));
  }
  /// Blocks that a multiprocessor is meant to hold, from which the compiler takes the registers
  /// that a thread may use.
  static constexpr int blocks() {
    // Backward, eight channels a thread take more registers than three blocks of 256 leave.
    if (width == 8 && kBackward && threads > 128) return 2;
    const int fit = 224 * 1024 / (staged_bytes(leaf) + states_bytes(leaf) + 8 * 1024);
    const int most = Base::template holds_steps<T>
                         ? 512 / threads
                         : most_row_threads(sizeof(T), Base::count(direct)) / threads;
    return fit < most || !kWhole ? fit : most;
  }
};

/// Whether there are kernels for rows of half a line: for types whose line has many channels.
template <class T>
inline constexpr bool has_narrow = sizeof(T) == 2;

template <class P>
struct RowShared {
  using A = Acc<typename P::Type>;
  static constexpr int channels = P::band_vectors * P::width;
  Tile tile[P::most_teams];
  unsigned ticket;
  bool band_cut[P::warps];
  unsigned lane_cuts[P::warps];                 // a bit a lane
  bool leaf_cut[P::threads / P::band_vectors];  // where leaves are kept one by one
  bool part_cut[kMaxLevels * kGroups];
  static constexpr bool keeps_loss = P::template keeps_loss<typename P::Type>;
  typename P::template Loss<typename P::Type> lost[keeps_loss ? P::warps : 1]
                                                  [keeps_loss ? channels : 1];  // of bands' gains
  // The states before each warp's band, read in vectors.
  alignas(kVectorBytes) A band_enter[P::warps][channels];
};

/// How a leaf is run. A plain one is nothing but full: P::leaf steps that are all there, in rows of
/// one line, without a reset. What it writes goes straight to memory, or to the
/// slots.
enum class RowMode { general, plain_direct, plain_staged };

template <RowMode kMode>
inline constexpr bool kIsPlain = kMode != RowMode::general;

/// Where a vector lies in a slot. Whole lines need no swizzling: the threads that are served at
/// once read one. Of halves they read two, of neighbouring leaves, whose rows are swapped in every
/// second leaf.
template <class P>
__device__ __forceinline__ int row_chunk(const Args& g, int row, int column) {
  const int chunk = (row << g.across_log2) + column;
  if constexpr (P::is_narrow) return chunk ^ (chunk >> P::leaf_log2 & P::band_vectors);
  return g.across_log2 == P::band_log2 ? chunk : swizzled(chunk);
}

template <class P>
__device__ __forceinline__ int row_element(const Args& g, int row, int channel) {
  return row_chunk<P>(g, row, channel / P::width) * P::vector_bytes +
         channel % P::width * static_cast<int>(sizeof(typename P::Type));
}

/// A thread's leaf: g.leaf steps of W channels. Steps are numbered in the order of the pass.
template <class P, class T, bool kWhole>
struct RowLeaf {
  using Cell = typename P::Cell;
  using A = Acc<T>;
  static constexpr int W = P::width, kLeaf = P::leaf;
  using R = Lanes<T, W>;
  using Loss = typename P::template Loss<T>;
  static constexpr bool kKeeps = P::template keeps_steps<T>;
  static constexpr bool kNeedsOutput = kWhole && P::needs_output;
  static constexpr bool kHoldsSteps = kWhole && P::template holds_steps<T>;
  static constexpr bool kSplits = kHoldsSteps || (kWhole && P::template splits_steps<T>);
  static constexpr bool kKeepsGains = kWhole && P::template keeps_gains<T>;
  static constexpr bool kHolds = kSplits || kKeepsGains;
  static constexpr bool kOpens = P::template opens<T>;
  static constexpr bool kSwaps = P::swaps;
  static constexpr bool kHoldsGates = kWhole && P::template holds_gates<T>;
  /// Whether the first run takes about all registers.
  static constexpr bool kIsFull = kHolds || (P::reads_states && P::direct != 0 && W == 8);
  using Opened = std::conditional_t<kHoldsGates, OpenedType<Cell>, typename P::template Opened<T>>;
  /// Cells unrolled would not fit into the instruction cache; what is in registers has to be.
  template <RowMode kMode>
  static constexpr int kUnrolled = kHolds || kHoldsGates || kSwaps    ? kLeaf
                                   : !kIsPlain<kMode> || P::slots > 4 ? 1
                                   : Cell::step_is_input              ? kLeaf
                                                                      : 2;

  const Args& g;
  const Tile& t;
  const Cell& cell;
  const Opened& opened;  // the same one
  char* slots;           // of the team
  char* kept;            // recomputed states, of the block
  int rows;              // of the tile
  int place;             // of the leaf in the tile, in the order of the pass
  int column;            // vector of the row
  int from;              // row of step 0
  int down;              // from a step's row to the next one's
  Index channel;         // [channel, channel + channels)
  int channels;
  unsigned valid = 0;   // bit i: step i is one of the sequence's
  unsigned resets = 0;  // bit i: and the state is dropped before it; backward, kEntry: after step 0
  R vector_in[P::inputs];

  // Backward.
  static constexpr unsigned kEntry = 1u << 31;
  static constexpr int kGate = P::lowest(P::of_gain);  // an input
  R entry_gain;      // what the adjoint of the row before is multiplied by
  R next_state;      // of the row after the leaf
  R c_start;         // recomputed: before the leaf in the order of time
  R sum[P::inputs];  // of gradients
  R gates[kHoldsGates ? kLeaf : 1];
  R swapped[kSwaps ? kLeaf : 1];  // an input of the steps

  // Forward.
  using Words = Raw<T, W>;  // a vector that is kept: of elements each would take a register
  static constexpr int kHeld = P::lowest(P::of_input);  // an input
  static constexpr SCANRNN_HD int gain_slot(int half) {
    if (kSplits) return half == 0 ? P::kept_a : P::kept_x;
    return P::slot(half == 0 ? P::lowest(P::of_gain) : kHeld);
  }
  Words held[kHolds ? kLeaf : 1];  // of the steps
  Words held_too[kHoldsSteps ? kLeaf : 1];
  static constexpr int kEarly = kUnrolled<RowMode::plain_direct> > 1 ? kRowsAhead : 1;
  const char* direct_at[P::inputs];  // of the next step
  Words direct[kEarly][P::inputs];

  __device__ __forceinline__ RowLeaf(const Args& args, const Tile& tile, const Cell& the_cell,
                                     char* staged, char* states, Index channel0, int tile_rows,
                                     const Team& team)
      : g(args),
        t(tile),
        cell(the_cell),
        opened(reinterpret_cast<const Opened&>(the_cell)),
        slots(staged),
        kept(states),
        rows(tile_rows) {
    const bool ascending = P::backward == g.reverse;
    const int leaves = team.threads >> g.across_log2;
    place = team.thread >> g.across_log2;
    column = team.thread & ((1 << g.across_log2) - 1);
    from = ascending ? place * g.leaf : (leaves - place) * g.leaf - 1;
    down = ascending ? 1 : -1;
    channel = channel0 + column * W;
    const Index rest = g.channels - channel;
    channels = kWhole ? W : static_cast<int>(rest < 0 ? 0 : (rest < W ? rest : W));
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) sum[k] = Constant<R>::of(0);
    take_vectors(P::vectors);
    if constexpr (Cell::is_prepared) Cell::prepare(vector_in);
    if constexpr (kWhole) {
      valid = (1u << kLeaf) - 1;
    } else {
      const int low = t.low, high = t.high;
      valid = steps_between(ascending ? low - from : from - (high - 1),
                            ascending ? high - from : from - low + 1, g.leaf);
      if (g.reset != nullptr) {
#pragma unroll 1
        for (int i = 0; i < g.leaf; ++i) {
          if (has_step<RowMode::general>(i) && is_reset(g, t, row(i))) resets |= 1u << i;
        }
      }
    }
  }
  /// The inputs in `set`, which have one value a channel.
  __device__ __forceinline__ void take_vectors(unsigned set) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(set, k)) continue;
      vector_in[k] = Constant<R>::of(0);
      const Steps& s = g.in[k];
      if (s.data == nullptr) continue;
      if constexpr (kWhole) {
        // Of those below, each branch waits for its own load.
        load_lanes<T>(s.data, channel, s.wide, vector_in[k].lane);
      } else {
        const Index step = opaque(s.channel * static_cast<Index>(s.wide ? sizeof(A) : sizeof(T)));
        const char* at = s.data + channel * step;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          if (v < channels) vector_in[k].lane[v] = load_element<T>(at, 0, s.wide);
          at = opaque(at + step);
        }
      }
    }
  }
  /// The last step of the pass, if it is here, else -1.
  __device__ __forceinline__ int last_step() const {
    if constexpr (kIsFull) {  // less to know
      return t.is_last() && place == (P::threads >> P::band_log2) - 1 ? kLeaf - 1 : -1;
    }
    if (!t.is_last() || valid == 0) return -1;
    const int i = 31 - __clz(static_cast<int>(valid));
    return t.in_sequence(row(i + 1)) ? -1 : i;
  }

  /// Those of steps -1 and g.leaf are the neighbouring leaves' nearest.
  __device__ __forceinline__ int row(int i) const { return from + i * down; }
  __device__ __forceinline__ bool is_inside(int r) const { return r >= 0 && r < rows; }
  /// Cells would be much larger for the few calls that could use it.
  static constexpr bool kHasStaged = Cell::step_is_input;
  __device__ __forceinline__ RowMode mode() const {
    if constexpr (!P::template has_plain<T>) return RowMode::general;
    if (g.across_log2 != P::band_log2 || g.leaf != kLeaf || valid != (1u << kLeaf) - 1 ||
        resets != 0 || channels == 0 || g.has_wide) {
      return RowMode::general;
    }
    if (g.is_direct) return RowMode::plain_direct;
    return kHasStaged ? RowMode::plain_staged : RowMode::general;
  }

  __device__ __forceinline__ char* place_of(int slot, int r) const {
    return slots + slot * P::slot_bytes(g.leaf) + row_chunk<P>(g, r, column) * P::vector_bytes;
  }
  template <RowMode kMode>
  __device__ __forceinline__ char* vector_of(int slot, int i) const {
    if constexpr (kIsPlain<kMode>) {
      constexpr int kLine = P::band_vectors * P::vector_bytes;
      char* const at = slots + slot * P::slot_bytes(kLeaf) + from * kLine +
                       column * P::vector_bytes + i * (down * kLine);
      if constexpr (P::is_narrow) {  // row_chunk, from two places
        const int swap = (from >> P::leaf_log2 & 1) * ((from & 1) == 0 ? kLine : -kLine);
        return i % 2 == 0 ? at + swap : at - swap;
      }
      return at;
    } else {
      return place_of(slot, row(i));
    }
  }
  template <RowMode kMode>
  __device__ __forceinline__ void read(int slot, int i, R& to) const {
    widen<T>(load_vector<T, W>(vector_of<kMode>(slot, i)), to.lane);
  }
  /// Nothing that comes from the words is to be worked out before here, where there are registers.
  static __device__ __forceinline__ void hide(Words& words) {
    unsigned word[sizeof(words) / sizeof(unsigned)];
    memcpy(word, &words, sizeof(words));
#pragma unroll
    for (unsigned& w : word) asm volatile("" : "+r"(w));
    memcpy(&words, word, sizeof(words));
  }
  static __device__ __forceinline__ void widen_words(const Words& words, R& to) {
    Vector<T, W> elements;
    memcpy(&elements, &words, sizeof(words));
    widen<T>(elements, to.lane);
  }
  /// The halves of a vector of gains have the size of one of elements.
  template <RowMode kMode>
  __device__ __forceinline__ void keep_gains(int i, const R& gain) const {
    if constexpr (kHolds) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vector<A, W / 2> some;
#pragma unroll
        for (int v = 0; v < W / 2; ++v) some.element[v] = gain.lane[half * (W / 2) + v];
        store_vector(vector_of<kMode>(gain_slot(half), i), some);
      }
    }
  }
  template <RowMode kMode>
  __device__ __forceinline__ void read_gains(int i, R& gain) const {
    if constexpr (kHolds) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto some = load_vector<A, W / 2>(vector_of<kMode>(gain_slot(half), i));
#pragma unroll
        for (int v = 0; v < W / 2; ++v) gain.lane[half * (W / 2) + v] = some.element[v];
      }
    }
  }
  /// Two parts of a vector of numbers, each of the size of one of elements: its halves; or where
  /// they come from exponentials those of every number, which spill less (TUNING.md).
  static __device__ __forceinline__ void split(const R& x, Words& p, Words& q) {
    unsigned word[2][W / 2];
#pragma unroll
    for (int v = 0; v < W / 2; ++v) {
      if constexpr (Cell::is_input_costly) {
        const unsigned even = __float_as_uint(x.lane[2 * v]);
        const unsigned odd = __float_as_uint(x.lane[2 * v + 1]);
        word[0][v] = __byte_perm(even, odd, 0x5410);
        word[1][v] = __byte_perm(even, odd, 0x7632);
      } else {
        word[0][v] = __float_as_uint(x.lane[v]);
        word[1][v] = __float_as_uint(x.lane[W / 2 + v]);
      }
    }
    memcpy(&p, word[0], sizeof(p));
    memcpy(&q, word[1], sizeof(q));
  }
  static __device__ __forceinline__ void join(const Words& p, const Words& q, R& x) {
    unsigned word[2][W / 2];
    memcpy(word[0], &p, sizeof(p));
    memcpy(word[1], &q, sizeof(q));
#pragma unroll
    for (int v = 0; v < W / 2; ++v) {
      if constexpr (Cell::is_input_costly) {
        x.lane[2 * v] = __uint_as_float(__byte_perm(word[0][v], word[1][v], 0x5410));
        x.lane[2 * v + 1] = __uint_as_float(__byte_perm(word[0][v], word[1][v], 0x7632));
      } else {
        x.lane[v] = __uint_as_float(word[0][v]);
        x.lane[W / 2 + v] = __uint_as_float(word[1][v]);
      }
    }
  }
  /// What a step adds.
  template <RowMode kMode>
  __device__ __forceinline__ void keep_split(int i, const R& x) {
    if constexpr (kSplits) {
      Words words;
      split(x, held[i], words);
      if constexpr (kHoldsSteps) {
        held_too[i] = words;
      } else {
        *reinterpret_cast<Words*>(vector_of<kMode>(P::split_slot, i)) = words;
      }
    }
  }
  template <RowMode kMode>
  __device__ __forceinline__ void read_split(int i, R& x) const {
    if constexpr (kHoldsSteps) {
      join(held[i], held_too[i], x);
    } else if constexpr (kSplits) {
      join(held[i], *reinterpret_cast<const Words*>(vector_of<kMode>(P::split_slot, i)), x);
    }
  }
  /// Takes what isn't staged of step i, some steps before it is read.
  __device__ __forceinline__ void take_direct(int i) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(P::direct, k)) continue;
      if (i == 0) direct_at[k] = address_of(g.in[k]);
      direct[i % kEarly][k] = Words{};
      if (g.in[k].data != nullptr) {
        direct[i % kEarly][k] = __ldcs(reinterpret_cast<const Words*>(direct_at[k]));
      }
      direct_at[k] = opaque(direct_at[k] + step_of(g.in[k]));
    }
  }
  /// The first of them; and vectors that outputs alone read, which take registers from here on.
  __device__ __forceinline__ void take_first_direct() {
    if constexpr (!P::backward && !Cell::is_prepared) {
      take_vectors(P::vectors & Cell::output_inputs & ~Cell::map_inputs);
    }
#pragma unroll
    for (int i = 0; i < kEarly; ++i) take_direct(i);
  }
  /// Has the same fetched into the L2 cache: a thread a line.
  __device__ __forceinline__ void prefetch_direct() const {
    int first = 0;
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(P::direct, k)) continue;
      const int i = column - first;
      if (i >= 0 && i < kLeaf && g.in[k].data != nullptr) {
        prefetch(address_of(g.in[k]) - column * P::vector_bytes + i * step_of(g.in[k]));
      }
      first = (first + kLeaf) % P::band_vectors;
    }
  }
  template <RowMode kMode>
  __device__ __forceinline__ void keep(int slot, int i, const R& value) const {
    store_vector(vector_of<kMode>(slot, i), narrow<T>(value.lane));
  }
  /// A row beyond the tile.
  __device__ __forceinline__ void read_outside(int slot, int r, R& to) const {
    const Steps& s = staged_array<P>(g, slot);
    if constexpr (kWhole) {
      to = Constant<R>::of(0);
      if (s.data == nullptr) return;
      load_lanes<T>(s.data, t.row * s.batch + (t.position + r) * s.time + channel, false, to.lane);
    } else {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        to.lane[v] = s.data != nullptr && v < channels
                         ? load_element<T>(s.data,
                                           t.row * s.batch + (t.position + r) * s.time +
                                               (channel + v) * s.channel,
                                           false)
                         : Constant<A>::of(0);
      }
    }
  }
  /// The inputs in `set` of step i.
  template <RowMode kMode>
  __device__ __forceinline__ void read_inputs(unsigned set, int i, R (&in)[P::inputs]) const {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(set, k)) continue;
      if (P::has(P::vectors, k)) {
        in[k] = vector_in[k];
      } else if (P::has(P::direct, k)) {
        widen_words(direct[i % kEarly][k], in[k]);
      } else {
        read<kMode>(P::slot(k), i, in[k]);
      }
    }
  }
  template <RowMode kMode>
  __device__ __forceinline__ bool has_step(int i) const {
    return kIsPlain<kMode> || (valid >> i & 1u) != 0;
  }
  template <RowMode kMode>
  __device__ __forceinline__ bool resets_at(int i) const {
    return !kIsPlain<kMode> && (resets >> i & 1u) != 0;
  }
  /// The state after a step.
  static __device__ __forceinline__ void advance(R& state, const R& a, const R& x, bool reset) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      state.lane[v] = reset ? x.lane[v] : fma(a.lane[v], state.lane[v], x.lane[v]);
    }
  }

  /// Backward needs the row before the leaf, for its gain, and the state of the row after it. What
  /// lies beyond the tile comes straight from memory, what lies inside once the tile has arrived.
  __device__ __forceinline__ void take_neighbours(bool outside) {
    const int before = row(-1), after = row(g.leaf);
    if (is_inside(before) != outside && t.in_sequence(before)) {
      R in[P::inputs];
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (!P::has(P::first_inputs | P::vectors, k)) continue;
        if (P::has(P::vectors, k)) {
          in[k] = vector_in[k];
        } else if (outside) {
          read_outside(P::slot(k), before, in[k]);
        } else {
          widen<T>(load_vector<T, W>(place_of(P::slot(k), before)), in[k].lane);
        }
      }
      if constexpr (kOpens) {
        entry_gain = outside ? cell.gain(in) : opened.gain(in);
      } else {
        entry_gain = cell.gain(in);
      }
      if (is_reset(g, t, before)) resets |= kEntry;
    }
    if constexpr (P::reads_states) {
      if (!outside) return;  // take_next_state
      if (!t.in_sequence(after)) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          if (v < channels) next_state.lane[v] = load_state<T>(g.initial, t.sequence, channel + v);
        }
      } else if (!is_inside(after)) {
        read_outside(P::states_slot, after, next_state);
      }
    }
  }
  /// The same once the states have arrived.
  __device__ __forceinline__ void take_next_state() {
    const int after = row(g.leaf);
    if (is_inside(after) && t.in_sequence(after)) {
      widen<T>(load_vector<T, W>(place_of(P::states_slot, after)), next_state.lane);
    }
  }

  /// Opens the inputs in `set` of step i, for the next time too.
  template <RowMode kMode>
  __device__ __forceinline__ void open(unsigned set, int i, R (&in)[P::inputs]) const {
    R gates[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      gates[k] = P::has(set | P::vectors, k) ? in[k] : Constant<R>::of(0);
    }
    cell.open(gates);
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(Cell::opened_inputs & set, k)) continue;
      in[k] = gates[k];
      keep<kMode>(P::slot(k), i, in[k]);
    }
  }
  /// Opens inputs of step i, but for the gate that is held once it has been.
  __device__ __forceinline__ void open_held(unsigned set, int i, bool first, R (&in)[P::inputs]) {
    R opened_in[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      opened_in[k] = P::has(set | P::vectors, k) ? in[k] : Constant<R>::of(0);
    }
    cell.open(opened_in);
    if (first) gates[i] = opened_in[kGate];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(Cell::opened_inputs, k)) in[k] = k == kGate ? gates[i] : opened_in[k];
    }
  }
  /// The map of a step, in the order of time. The first time inputs are opened, where that is done.
  template <RowMode kMode, bool kOpen, class F>
  __device__ __forceinline__ void each_step_in_time(F&& take) {
#pragma unroll(kUnrolled<kMode>)
    for (int i = kLeaf - 1; i >= 0; --i) {
      if (!has_step<kMode>(i)) continue;
      R in[P::inputs];
      read_inputs<kMode>(Cell::map_inputs, i, in);
      if constexpr (kSwaps && !kOpen) swapped[i] = in[P::swapped];
      if constexpr (kOpens && kOpen) open<kMode>(Cell::map_inputs, i, in);
      if constexpr (kHoldsGates) open_held(Cell::map_inputs, i, kOpen, in);
      take(i, opened.step(in), resets_at<kMode>(i));
    }
  }
  /// The leaf's map in the order of time, which a backward pass goes against.
  template <RowMode kMode>
  __device__ __forceinline__ void map_in_time(Affine<A> (&map)[W]) {
    each_step_in_time<kMode, true>([&](int, const Affine<R>& step, bool reset) {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        map[v].x = reset ? step.x.lane[v] : fma(step.a.lane[v], map[v].x, step.x.lane[v]);
        map[v].a = product(map[v].a, step.a.lane[v]);
      }
    });
  }
  /// Where the recomputed state after step i is kept.
  __device__ __forceinline__ R* state_of(int i) const {
    if constexpr (kSwaps) {
      return reinterpret_cast<R*>(vector_of<RowMode::plain_direct>(P::slot(P::swapped), i));
    }
    return reinterpret_cast<R*>(kept) + (i * P::threads + static_cast<int>(threadIdx.x));
  }
  /// From c_start on.
  template <RowMode kMode>
  __device__ __forceinline__ void recompute_states() {
    R run = c_start;
    each_step_in_time<kMode, false>([&](int i, const Affine<R>& step, bool reset) {
      advance(run, step.a, step.x, reset);
      *state_of(i) = run;
    });
  }
  template <RowMode kMode>
  __device__ __forceinline__ void states_after(int i, R& to) const {
    if constexpr (P::recomputes) {
      to = *state_of(i);
    } else if constexpr (P::reads_states) {
      read<kMode>(P::states_slot, i, to);
    }
  }

  /// The leaf's map in the order of the pass, and whether it forgets what comes before it.
  template <RowMode kMode>
  __device__ __forceinline__ void map_in_pass(Affine<A> (&map)[W], Loss (&loss)[W], bool& cut) {
    R gain;
    GainProduct<T> products[W];
    bool reset = !kIsPlain<kMode> && (resets & kEntry) != 0;
    if constexpr (P::backward) gain = entry_gain;
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; ++i) {
      if (!has_step<kMode>(i)) continue;
      R in[P::inputs];
      Affine<R> step;
      if constexpr (P::backward) {
        R dy, after;
        // Where an array has the states, the adjoint's map is the gain and dy.
        read_inputs<kMode>(
            P::recomputes ? Cell::backward_inputs & ~P::lastly : P::first_inputs | P::vectors, i,
            in);
        read<kMode>(P::dy_slot, i, dy);
        if constexpr (P::recomputes) states_after<kMode>(i, after);
        if constexpr (kOpens) {
          open<kMode>(Cell::backward_inputs & ~Cell::map_inputs & ~P::lastly, i, in);
        }
        if constexpr (kHoldsGates) {
          open_held(Cell::backward_inputs & ~P::lastly, i, false, in);
        }
        step = {gain, opened.output_adjoint(in, after, dy)};
        gain = opened.gain(in);
      } else {
        reset = resets_at<kMode>(i);
        read_inputs<kMode>(Cell::map_inputs, i, in);
        step = cell.step(in);
        if constexpr (kKeeps) {
          keep<kMode>(P::kept_a, i, step.a);
          keep<kMode>(P::kept_x, i, step.x);
        }
        if constexpr (kSplits) {
          keep_split<kMode>(i, step.x);
          keep_gains<kMode>(i, step.a);
        }
        if constexpr (kKeepsGains) {
          held[i] = *reinterpret_cast<const Words*>(vector_of<kMode>(P::slot(kHeld), i));
          keep_gains<kMode>(i, step.a);
        }
      }
      cut = cut || reset;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        map[v].x = reset ? step.x.lane[v] : fma(step.a.lane[v], map[v].x, step.x.lane[v]);
        products[v].times(step.a.lane[v]);
      }
      if constexpr (P::backward) reset = resets_at<kMode>(i);
    }
#pragma unroll
    for (int v = 0; v < W; ++v) {
      map[v].a = products[v].value();
      if constexpr (P::template keeps_loss<T>) loss[v] = products[v].loss();
    }
  }

  /// Where step 0 of the leaf lies in an output.
  __device__ __forceinline__ char* address_of(const Steps& s) const {
    return s.data + (t.row * s.batch + (t.position + from) * s.time + channel * s.channel) *
                        static_cast<Index>(s.wide ? sizeof(A) : sizeof(T));
  }
  /// `at` is where step i lies in the output.
  template <RowMode kMode>
  __device__ __forceinline__ void write(const Steps& s, char* at, int slot, int i,
                                        const R& value) const {
    if (!(kNeedsOutput && !P::backward) && s.data == nullptr) return;
    if constexpr (kMode == RowMode::plain_direct) {
      store_streaming(at, narrow<T>(value.lane));
    } else if constexpr (kMode == RowMode::plain_staged) {
      store_vector(vector_of<kMode>(slot, i), narrow<T>(value.lane));
    } else if (s.wide) {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        if (v < channels) store_element<T>(at, v * s.channel, true, value.lane[v]);
      }
    } else if (!g.is_direct) {
      store_vector(vector_of<kMode>(slot, i), narrow<T>(value.lane));
    } else if (channels > 0) {
      store_streaming(at, narrow<T>(value.lane));
    }
  }
  /// Forward: `state` is the one before the leaf, in a tile of `tile_rows`.
  __device__ __forceinline__ void keep_checkpoint(int tile_rows, const R& state) const {
    const Index step0 = t.step_of(from, tile_rows, g.reverse);
    if (g.checkpoints == nullptr || (valid & 1u) == 0 || step0 % kLeafSteps != 0) return;
    const Index at = checkpoint_row(g, t, step0) * g.channels + channel;
#pragma unroll
    for (int v = 0; v < W; ++v) {
      if (v < channels) reinterpret_cast<A*>(g.checkpoints)[at + v] = state.lane[v];
    }
  }
  __device__ __forceinline__ Index step_of(const Steps& s) const {
    return down * s.time * static_cast<Index>(s.wide ? sizeof(A) : sizeof(T));
  }

  /// Runs the leaf from `state` on and writes what the pass writes. `leave` is where the pass ends.
  template <RowMode kMode>
  __device__ __forceinline__ void finish(R& state, R& leave) {
    if constexpr (P::backward) {
      finish_backward<kMode>(state, leave);
    } else {
      finish_forward<kMode>(state, leave);
    }
  }

 private:
  template <RowMode kMode>
  __device__ __forceinline__ void finish_forward(R& state, R& leave) {
    const int last = kIsPlain<kMode> ? -1 : last_step();
    char* out_at = address_of(g.out);
    const Index out_step = opaque(step_of(g.out));
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; ++i) {
      if (!has_step<kMode>(i)) continue;
      R in[P::inputs];
      Affine<R> step;
      if constexpr (kKeeps) {
        read<kMode>(P::kept_a, i, step.a);
        read<kMode>(P::kept_x, i, step.x);
        read_inputs<kMode>(P::all & Cell::output_inputs, i, in);
      } else if constexpr (kSplits) {
        read_inputs<kMode>(P::all & Cell::output_inputs, i, in);
        read_gains<kMode>(i, step.a);
        read_split<kMode>(i, step.x);
      } else if constexpr (kKeepsGains) {
        read_inputs<kMode>((P::all & Cell::output_inputs & ~P::of_gain) | P::of_input | P::vectors,
                           i, in);
        hide(held[i]);
        widen_words(held[i], in[kHeld]);
        read_gains<kMode>(i, step.a);
        step.x = cell.input(in, step.a);
      } else {
        read_inputs<kMode>(P::all, i, in);
        step = cell.step(in);
      }
      if (P::direct != 0 && i + kEarly < kLeaf) take_direct(i + kEarly);
      advance(state, step.a, step.x, resets_at<kMode>(i));
      if (!kIsPlain<kMode> && i == last) leave = state;
      write<kMode>(g.out, kIsPlain<kMode> ? out_at : out_at + i * out_step, 0, i,
                   cell.output(in, state));
      if (kIsPlain<kMode>) out_at = opaque(out_at + out_step);
    }
    if constexpr (kIsPlain<kMode>) leave = state;
  }

  template <RowMode kMode>
  __device__ __forceinline__ void finish_backward(R& state, R& leave) {
    const R zero = Constant<R>::of(0);
    const int last = kIsPlain<kMode> ? -1 : last_step();
    R gain = entry_gain, after;
    bool reset = !kIsPlain<kMode> && (resets & kEntry) != 0;
    char* din_at[P::inputs];
    Index din_step[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      din_at[k] = address_of(g.din[k]);
      din_step[k] = opaque(step_of(g.din[k]));
    }
    if constexpr (kIsPlain<kMode>) states_after<kMode>(0, after);
#pragma unroll(kUnrolled<kMode>)
    for (int i = 0; i < kLeaf; ++i) {
      if (!has_step<kMode>(i)) continue;
      const bool is_last = !kIsPlain<kMode> && i == last, reset_here = resets_at<kMode>(i);
      R in[P::inputs], dy, before, din[P::inputs];
      read_inputs<kMode>(Cell::backward_inputs, i, in);
      if constexpr (kSwaps) in[P::swapped] = swapped[i];
      if (P::direct != 0 && i + kEarly < kLeaf) take_direct(i + kEarly);
      if constexpr (kHoldsGates) open_held(Cell::backward_inputs, i, false, in);
      read<kMode>(P::dy_slot, i, dy);
      if constexpr (!kIsPlain<kMode>) states_after<kMode>(i, after);
      // The state before a step is the one after the next step of the pass.
      const bool has_next = i + 1 < (kIsPlain<kMode> ? kLeaf : g.leaf);
      if (is_last) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          before.lane[v] =
              v < channels ? load_state<T>(g.initial, t.sequence, channel + v) : Constant<A>::of(0);
        }
      } else if (has_next) {
        states_after<kMode>(i + 1, before);
      } else if constexpr (P::recomputes) {
        before = c_start;
      } else {
        before = next_state;
      }
      advance(state, gain, opened.output_adjoint(in, after, dy), reset);
      gain = opened.gain(in);
      opened.pullback(in, select(reset_here, zero, before), after, dy, state, din);
      if (is_last) leave = select(reset_here, zero, product(gain, state));
      reset = reset_here;
      if constexpr (kIsPlain<kMode>) after = before;
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
          sum[k] = sum[k] + din[k];
        } else if (!P::has(P::vectors, k)) {
          write<kMode>(g.din[k], kIsPlain<kMode> ? din_at[k] : din_at[k] + i * din_step[k],
                       P::din_slot(k), i, din[k]);
          if (kIsPlain<kMode>) din_at[k] = opaque(din_at[k] + din_step[k]);
        }
      }
    }
    if constexpr (kIsPlain<kMode>) leave = product(gain, state);
  }
};

/// Whether a block's elements that are a block apart are swizzled alike.
template <class P>
__device__ __forceinline__ bool is_periodic(const Args& g, const Team& team) {
  if (!team.is_block) return false;
  return g.across_log2 == P::band_log2 ||
         P::threads * sizeof(typename P::Type) % (64 * P::vector_bytes) == 0;
}

/// Copies an array's part of a tile into a slot where all is regular (Args::is_regular): a vector
/// of a row a thread, row r first and every kRows-th one from there on.
template <class P, int kRows>
__device__ __forceinline__ void stage_whole(const Steps& s, const Args& g, const Tile& t,
                                            Index channel0, int r, char* slot) {
  using T = typename P::Type;
  constexpr int kBytes = P::vector_bytes;
  const int c = static_cast<int>(threadIdx.x) & (P::band_vectors - 1);
  constexpr int kStride = kRows * P::band_vectors * kBytes;
  static_assert(!P::is_narrow || kRows % P::leaf == 0);
  char* const to = slot + row_chunk<P>(g, r, c) * kBytes;
  char* const to_next = slot + row_chunk<P>(g, r + kRows, c) * kBytes - kStride;
  const auto place_of = [&](int i) { return (i % 2 == 0 ? to : to_next) + i * kStride; };
  if (s.data == nullptr) {
#pragma unroll
    for (int i = 0; i < P::leaf; ++i) store_vector(place_of(i), typename P::Elements{});
    return;
  }
  const char* from =
      s.data +
      (t.row * s.batch + (t.position + r) * s.time + channel0) * static_cast<Index>(sizeof(T)) +
      c * kBytes;
  const Index step_bytes = opaque(s.time * static_cast<Index>(kRows * sizeof(T)));
#pragma unroll
  for (int i = 0; i < P::leaf; ++i) {
    copy_async<kBytes>(place_of(i), from);
    from = opaque(from + step_bytes);
  }
}

/// Copies an array's part of the tile into a slot. Rows that aren't the sequence's and channels
/// that aren't there are left as they are; an array that isn't there is zero.
template <class P>
__device__ __forceinline__ void stage_rows(const Steps& s, const Args& g, const Tile& t,
                                           Index channel0, int rows, char* slot, const Team& team) {
  using T = typename P::Type;
  if (s.data == nullptr) {
    for (int e = team.thread; e < rows << g.across_log2; e += team.threads) {
      reinterpret_cast<typename P::Elements*>(slot)[e] = {};
    }
    return;
  }
  const Index row_bytes = s.time * static_cast<Index>(sizeof(T));
  const char* base = s.data + t.position * row_bytes +
                     (t.row * s.batch + channel0 * s.channel) * static_cast<Index>(sizeof(T));
  const Index rest = g.channels - channel0;
  const int low = t.low, high = t.high;
  if (s.vector) {
    const int c = static_cast<int>(threadIdx.x) & ((1 << g.across_log2) - 1);
    if (c * P::width >= rest) return;
    int r = team.thread >> g.across_log2;
    const int step = team.threads >> g.across_log2;
    const char* from = base + c * P::vector_bytes + r * row_bytes;
    // The swizzle of a chunk is that of the chunk `step` rows on: a team has a multiple of 64
    // threads.
    char* to = slot + row_chunk<P>(g, r, c) * P::vector_bytes;
    const Index step_bytes = opaque(step * row_bytes);
    for (; r < rows; r += step) {
      if (r >= low && r < high) copy_async<P::vector_bytes>(to, from);
      from += step_bytes;
      to += team.threads * P::vector_bytes;
    }
    return;
  }
  // A row, or as much of it as there are threads, at a time.
  constexpr int kBytes = static_cast<int>(sizeof(T));
  const int wide_log2 = g.across_log2 + P::width_log2;
  const int taken = min(team.threads, 1 << wide_log2);
  const int step = team.threads / taken;
  for (int c = team.thread & (taken - 1); c < 1 << wide_log2; c += taken) {
    if (c >= rest) break;
    int r = team.thread / taken;
    const char* from = base + r * row_bytes + c * s.channel * kBytes;
    if (low == 0 && high == rows && taken == 1 << wide_log2 && is_periodic<P>(g, team)) {
      char* to = slot + row_element<P>(g, r, c);
      const Index step_bytes = opaque(step * row_bytes);
      const int count = g.leaf << P::width_log2;
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        copy_async<kBytes>(to, from);
        from = opaque(from + step_bytes);
        to += P::threads * kBytes;
      }
      return;
    }
#pragma unroll 1
    for (; r < rows; r += step) {
      if (r >= low && r < high) {
        copy_async<kBytes>(slot + row_element<P>(g, r, c), from);
      }
      from += step * row_bytes;
    }
  }
}

/// Writes a slot's part of the tile to an output.
template <class P>
__device__ __forceinline__ void write_rows(const Steps& s, const Args& g, const Tile& t,
                                           Index channel0, int rows, const char* slot,
                                           const Team& team) {
  using T = typename P::Type;
  const Index row_bytes = s.time * static_cast<Index>(sizeof(T));
  char* base = s.data + t.position * row_bytes +
               (t.row * s.batch + channel0 * s.channel) * static_cast<Index>(sizeof(T));
  const Index rest = g.channels - channel0;
  const int low = t.low, high = t.high;
  if (s.vector) {
    for (int e = team.thread; e < rows << g.across_log2; e += team.threads) {
      const int r = e >> g.across_log2, c = e & ((1 << g.across_log2) - 1);
      if (r >= low && r < high && c * P::width < rest) {
        const char* from = slot + row_chunk<P>(g, r, c) * P::vector_bytes;
        store_streaming(base + r * row_bytes + c * P::vector_bytes, load_vector<T, P::width>(from));
      }
    }
    return;
  }
  constexpr int kBytes = static_cast<int>(sizeof(T));
  const int wide_log2 = g.across_log2 + P::width_log2;
  const int taken = min(team.threads, 1 << wide_log2);
  const int step = team.threads / taken;
  for (int c = team.thread & (taken - 1); c < 1 << wide_log2; c += taken) {
    if (c >= rest) break;
    int r = team.thread / taken;
    char* to = base + r * row_bytes + c * s.channel * kBytes;
    if (low == 0 && high == rows && taken == 1 << wide_log2 && is_periodic<P>(g, team)) {
      const char* from = slot + row_element<P>(g, r, c);
      const Index step_bytes = opaque(step * row_bytes);
      const int count = g.leaf << P::width_log2;
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
        from += P::threads * kBytes;
        to += step_bytes;
      }
      return;
    }
#pragma unroll 1
    for (; r < rows; r += step) {
      if (r >= low && r < high) {
        *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(slot + row_element<P>(g, r, c));
      }
      to += step * row_bytes;
    }
  }
}

/// Zeros in the padding of the tile's channels.
template <class T>
__device__ __forceinline__ void pad_rows(const Steps& s, const Args& g, const Tile& t,
                                         Index channel0, int channels, const Team& team) {
  if (s.data == nullptr) return;
  const Padding p = padding_of(g, t);
  const Index count = (p.end - p.begin) * channels;
  for (Index e = team.thread; e < count; e += team.threads) {
    const Index r = e / channels, c = e % channels;
    store_element<T>(s.data, t.row * s.batch + (p.begin + r) * s.time + (channel0 + c) * s.channel,
                     s.wide, Constant<Acc<T>>::of(0));
  }
}

/// Sums what a tile's leaves have of the gradients that are summed over time, for each channel;
/// into `parts`, of a tile's maps, twice, go those of bands or leaves.
template <class P, class Leaf, class A>
__device__ __forceinline__ void sum_over_tile(const Args& g, const Tile& t, Leaf& leaf,
                                              const Team& team, A* parts, A* more_parts) {
  constexpr int W = P::width;
  const int across = 1 << g.across_log2, width = across * W, leaves = team.threads >> g.across_log2;
  const int lane = team.thread % kWarp, team_warps = team.threads / kWarp;
  const int first_warp = team.number * team_warps, block_warp = first_warp + team.thread / kWarp;
  const bool is_wide = across > P::band_vectors;
  // Two at a time: there is room for the parts of two.
#pragma unroll
  for (int round = 0; 2 * round < P::count(P::summed); ++round) {
    const auto is_next = [&](int k) {
      return P::has(P::summed, k) && P::count(P::summed & ((1u << k) - 1u)) / 2 == round &&
             g.sum_slot[k] >= 0;
    };
    const auto parts_of = [&](int k) {
      return P::count(P::summed & ((1u << k) - 1u)) % 2 == 0 ? parts : more_parts;
    };
    __syncthreads();
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!is_next(k)) continue;
      // The leaves of a band in a fixed tree, then bands in order.
      for (int by = across; by < kWarp && !is_wide; by *= 2) {
#pragma unroll
        for (int v = 0; v < W; ++v) {
          leaf.sum[k].lane[v] = leaf.sum[k].lane[v] + shuffle_xor(leaf.sum[k].lane[v], by);
        }
      }
      if (is_wide || lane < across) {
        const int part = is_wide ? leaf.place : block_warp;
#pragma unroll
        for (int v = 0; v < W; ++v) {
          parts_of(k)[part * width + leaf.column * W + v] = leaf.sum[k].lane[v];
        }
      }
    }
    __syncthreads();
    if (t.group >= g.groups) continue;
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!is_next(k)) continue;
      A* to = reinterpret_cast<A*>(g.sums) +
              ((g.sum_slot[k] * g.tile_items + t.item) * g.groups + t.group) * width;
      for (int ch = team.thread; ch < width; ch += team.threads) {
        A all = Constant<A>::of(0);
        const auto at = [&](int part) { return parts_of(k)[part * width + ch]; };
        if (is_wide) {
          for (int p = 0; p < leaves; p += P::band_leaves) {
            A band = at(p) + at(p + 1);
            if constexpr (P::band_leaves == 4) band = band + (at(p + 2) + at(p + 3));
            all = all + band;
          }
        } else {
          for (int b = first_warp; b < first_warp + team_warps; ++b) all = all + at(b);
        }
        to[ch] = all;
      }
    }
  }
}

/// What a kernel is told. Where every tile is whole and everything regular, the compiler hears of
/// it and leaves out what it would have to test.
template <class P, bool kWhole>
__device__ __forceinline__ decltype(auto) known(const Args& args) {
  if constexpr (kWhole) {
    Args g = args;
    g.cu_seqlens = g.lengths = nullptr;
    g.reset = nullptr;
    g.across_log2 = P::band_log2;
    g.leaf = P::leaf;
    g.teams_log2 = 0;
    g.is_direct = g.is_regular = true;
    g.has_wide = false;
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (!P::has(P::vectors, k)) g.sum_slot[k] = -1;
      g.din[k].wide = false;
    }
    g.out.wide = false;
    return g;
  } else {
    return (args);
  }
}

/// kWhole: for calls that are regular and direct, without a reset or a sum over time but those of
/// vector inputs, where tiles divide all rows' steps and channels. kNarrow: of those, where a row
/// is half a line.
template <class Cell, class T, bool kBackward, bool kWhole = false, bool kNarrow = false>
__global__ void __launch_bounds__((RowPass<Cell, kBackward, T, kWhole, kNarrow>::threads),
                                  (RowPass<Cell, kBackward, T, kWhole, kNarrow>::blocks()))
    run_rows(const __grid_constant__ Args args, const __grid_constant__ Cell cell) {
  static_assert(kWhole || !kNarrow);
  if constexpr (kWhole && !kHasWholeTiles<Cell>) return;
  using P = RowPass<Cell, kBackward, T, kWhole, kNarrow>;
  const Args& g = known<P, kWhole>(args);
  using A = Acc<T>;
  constexpr int W = P::width;
  using R = Lanes<T, W>;
  const A zero = Constant<A>::of(0);
  /// Whether a warp needs no rows but those of its leaves.
  constexpr bool kAlone = kWhole && !kBackward;

  extern __shared__ __align__(128) char slots[];
  __shared__ RowShared<P> shared;

  const Team team(g, P::threads_log2);
  const int across = 1 << g.across_log2;
  const int leaves = team.threads >> g.across_log2;
  const int rows = leaves * g.leaf;
  const int lane = threadIdx.x % kWarp, block_warp = threadIdx.x / kWarp;
  const int team_warps = team.threads / kWarp;
  const int first_warp = team.number * team_warps, warp = block_warp - first_warp;

  await_clearing();
  if (team.thread == 0) {
    const unsigned ticket = g.levels > 0
                                ? atomicAdd(g.ticket, 1u)
                                : (blockIdx.x << g.teams_log2) + static_cast<unsigned>(team.number);
    if constexpr (kWhole) {
      shared.ticket = ticket;
    } else if (ticket < g.tile_items * g.groups) {
      shared.tile[team.number] = tile_of<kBackward>(g, ticket, rows);
    } else {
      Tile& tile = shared.tile[team.number];
      tile = {};
      tile.group = g.groups;  // which has no channels
    }
  }
  __syncthreads();
  // No copies of shared ones, which would take 26 registers. Of whole tiles little has to be known.
  Tile whole;
  if constexpr (kWhole) whole = tile_of<kBackward>(g, shared.ticket, rows);
  const Tile& t = kWhole ? whole : shared.tile[team.number];
  const int width = across * W;  // channels of the tile
  const Index channel0 = t.group * width;
  char* const kept = slots + P::staged_bytes(g.leaf);
  A* const in_time_a = reinterpret_cast<A*>(kept);
  A* const in_time_x = in_time_a + P::threads * W;
  A* const maps_a = reinterpret_cast<A*>(kept + P::states_bytes(g.leaf));
  A* const maps_x = maps_a + P::maps(across);
  A* const part_a = maps_x + P::maps(across);
  A* const part_x = part_a + P::parts(across, g.levels);
  A* const enter = (P::swaps && 2 * P::threads * W > part_x + P::parts(across, g.levels) - in_time_a
                        ? in_time_a + 2 * P::threads * W
                        : part_x + P::parts(across, g.levels)) +
                   team.number * width;
  char* const own_slots = slots + team.number * team.threads * g.leaf * P::vector_bytes;

  // --- stage -----------------------------------------------------------------------------------
  // What the first run of the leaves reads goes first. Of whole tiles a warp copies the rows of its
  // own leaves where nobody else reads them.
  const bool is_whole =
      kWhole || (g.is_regular && t.low == 0 && t.high == rows && channel0 + width <= g.channels);
  constexpr int kRows = kAlone ? P::band_leaves : P::threads / P::band_vectors;
  const int band = g.reverse ? P::warps - 1 - block_warp : block_warp;
  const int first_row = kAlone ? band * P::band_leaves * P::leaf + lane / P::band_vectors
                               : static_cast<int>(threadIdx.x) / P::band_vectors;
  const auto stage = [&](bool late) {
    if (is_whole) {
#pragma unroll
      for (int s = 0; s < P::slots; ++s) {
        if (P::is_late(s) != late) continue;
        stage_whole<P, kRows>(staged_array<P>(g, s), g, t, channel0, first_row,
                              slots + s * P::slot_bytes(P::leaf));
      }
    } else {
#pragma unroll 1
      for (int s = 0; s < P::slots; ++s) {
        if (P::is_late(s) != late) continue;
        stage_rows<P>(staged_array<P>(g, s), g, t, channel0, rows,
                      own_slots + s * P::slot_bytes(g.leaf), team);
      }
    }
    end_copies();
  };
  stage(false);
  stage(true);
  for (int ch = team.thread; ch < width; ch += team.threads) {
    enter[ch] = kWhole || channel0 + ch < g.channels
                    ? load_state<T>(g.enter, t.sequence, channel0 + ch)
                    : zero;
  }
  RowLeaf<P, T, kWhole> leaf(g, t, cell, own_slots, kept, channel0, rows, team);
  const int column = leaf.column, channels = leaf.channels;
  if constexpr (kBackward) {
    leaf.entry_gain = Constant<R>::of(1);
    leaf.next_state = Constant<R>::of(0);
    leaf.take_neighbours(true);
  }
  // Recomputed states start from the one before the leaf's earliest step, or from a checkpoint
  // before it.
  int since_checkpoint = 0;  // leaves
  if constexpr (P::recomputes) {
    const Index step0 = t.step_of(leaf.row(g.leaf - 1), rows, g.reverse);
    since_checkpoint = static_cast<int>(step0 % kLeafSteps) >> (31 - __clz(g.leaf));
    const bool has_steps = leaf.valid != 0 && channels > 0;
    const Index at = has_steps ? checkpoint_row(g, t, step0) * g.channels + leaf.channel : 0;
    if constexpr (kWhole) {
      load_lanes<T>(g.checkpoints, at, true, leaf.c_start.lane);
    } else {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        leaf.c_start.lane[v] =
            has_steps && v < channels ? reinterpret_cast<const A*>(g.checkpoints)[at + v] : zero;
      }
    }
  }
  await_groups<1>();
  if constexpr (kAlone) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  // Opened inputs are taken once they all are.
  if constexpr (kBackward && !P::template opens<T>) leaf.take_neighbours(false);
  if constexpr (P::reads_states && !P::has_late) leaf.take_next_state();
  RowMode mode = kWhole ? RowMode::plain_direct : leaf.mode();

  // --- states of before, where no array has them -------------------------------------------------
  if constexpr (P::recomputes) {
    Affine<A> map[W];
#pragma unroll
    for (int v = 0; v < W; ++v) map[v] = identity<Affine<A>>();
    if (mode != RowMode::general) {
      leaf.template map_in_time<RowMode::plain_direct>(map);
    } else {
      leaf.template map_in_time<RowMode::general>(map);
    }
#pragma unroll
    for (int v = 0; v < W; ++v) {
      in_time_a[threadIdx.x * W + v] = map[v].a;
      in_time_x[threadIdx.x * W + v] = map[v].x;
    }
    const unsigned cuts = __ballot_sync(kAllLanes, (leaf.resets & ~leaf.kEntry) != 0);
    if (lane == 0) shared.lane_cuts[block_warp] = cuts;
    await_groups<0>();
    __syncthreads();
    if constexpr (P::template opens<T>) {
      leaf.take_neighbours(false);
      mode = kWhole ? RowMode::plain_direct : leaf.mode();
    }
    // The leaves since the checkpoint: what is b earlier in time is b later in the pass.
    for (int b = since_checkpoint; b > 0; --b) {
      const int thread = static_cast<int>(threadIdx.x) + (b << g.across_log2);
      const bool cut = (shared.lane_cuts[thread / kWarp] >> (thread % kWarp) & 1u) != 0;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        leaf.c_start.lane[v] =
            apply(Segment<A>{{in_time_a[thread * W + v], in_time_x[thread * W + v]}, cut},
                  leaf.c_start.lane[v]);
      }
    }
    __syncthreads();  // states take the maps' place
    if (mode != RowMode::general) {
      leaf.template recompute_states<RowMode::plain_direct>();
    } else {
      leaf.template recompute_states<RowMode::general>();
    }
  }

  // --- leaves ----------------------------------------------------------------------------------
  Affine<A> map[W];
  typename P::template Loss<T> loss[W];
  bool cut = false;
#pragma unroll
  for (int v = 0; v < W; ++v) map[v] = identity<Affine<A>>();
  if (mode != RowMode::general) {
    leaf.template map_in_pass<RowMode::plain_direct>(map, loss, cut);
  } else {
    leaf.template map_in_pass<RowMode::general>(map, loss, cut);
  }
  if constexpr (P::direct != 0) {
    if constexpr (decltype(leaf)::kSplits) __syncwarp();  // addresses wait for registers
    leaf.prefetch_direct();
  }

  // --- merge -----------------------------------------------------------------------------------
  // Neighbours in time are `across` threads apart.
  const bool is_wide = across > P::band_vectors;
  const Division division{g.leaf, leaves, is_wide ? P::band_leaves : kWarp / across,
                          g.levels > 0 ? P::warps : 1};
  Tracer<Cell, A, W> tracer(cell, g, t, division, leaf.place, leaf.channel);
  tracer.leaf(map, cut);
  if (is_wide) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      maps_a[leaf.place * width + column * W + v] = map[v].a;
      maps_x[leaf.place * width + column * W + v] = map[v].x;
    }
    if (column == 0) shared.leaf_cut[leaf.place] = cut;
  } else {
    scan_lanes(map, loss, cut, lane, across, kWarp, g.reset != nullptr, tracer);
    if (lane + across >= kWarp) {  // the band's last leaf
#pragma unroll
      for (int v = 0; v < W; ++v) {
        maps_a[block_warp * width + column * W + v] = map[v].a;
        maps_x[block_warp * width + column * W + v] = map[v].x;
        if constexpr (P::template keeps_loss<T>) {
          shared.lost[block_warp][column * W + v] = loss[v];
        }
      }
      shared.band_cut[block_warp] = cut;
    }
    // From here on: what precedes the leaf in its band.
#pragma unroll
    for (int v = 0; v < W; ++v) {
      map[v] = shuffle_up(map[v], across);
      if (lane < across) map[v] = identity<Affine<A>>();
    }
    cut = __shfl_up_sync(kAllLanes, static_cast<int>(cut), across) != 0 && lane >= across;
  }
  await_groups<0>();
  __syncthreads();
  // Worked out anew: the leaves have taken all registers.
  if constexpr (decltype(leaf)::kIsFull) whole = tile_of<kBackward>(g, shared.ticket, rows);

  // --- the tree between tiles ------------------------------------------------------------------
  const auto total = [&](int b, int ch) -> Segment<A> {
    return {{maps_a[b * width + ch], maps_x[b * width + ch]}, !kWhole && shared.band_cut[b]};
  };
  const bool is_idle = !kWhole && t.low >= t.high;
  /// Warps that publish the tile's node, 32 channels each. The others start to ask for what
  /// precedes it at once, those behind.
  constexpr int kWidth = P::band_vectors * W;  // of whole tiles
  constexpr int kPublishers = kWhole && kWidth > kWarp && !Cell::step_is_input ? kWidth / kWarp : 1;
  if (g.levels > 0) {
    constexpr Index kWords = Node<A>::words;
    const Index stride = g.groups * width * kWords;
    const auto nodes_of = [&](int ch) {
      return g.nodes + ((t.first_item * g.groups + t.group) * width + ch) * kWords;
    };
    const auto publish = [&](int first_channel) {
      for (int ch = first_channel; ch < width; ch += kPublishers * kWarp) {
        Segment<A> band[P::warps];  // merged in pairs: the others wait for this
        typename P::template Loss<T> lost[P::warps];
#pragma unroll
        for (int b = 0; b < P::warps; ++b) {
          band[b] = total(b, ch);
          if constexpr (P::template keeps_loss<T>) lost[b] = shared.lost[b][ch];
        }
#pragma unroll
        for (int by = 1; by < P::warps; by *= 2) {
#pragma unroll
          for (int b = 0; b < P::warps; b += 2 * by) {
            lost[b] = lost[b + by].after(lost[b], band[b].map.a, band[b + by].map.a);
            band[b] = merge(band[b], band[b + by]);
            tracer.warps(by, b, channel0 + ch, band[b + by].map.x, band[b]);
          }
        }
        Segment<A> own = band[0];
        own.map.a = lost[0].corrected(own.map.a);
        for (int level = 0; !is_idle && digit_of(t.number, level) == kRadix - 1; ++level) {
          const A before = own.map.x;
          own = merge(await_level<A, !kWhole>(nodes_of(ch), stride, t.number, level), own);
          tracer.tiles(level, channel0 + ch, before, own);
        }
        Node<A>::publish(g.nodes + ((t.item * g.groups + t.group) * width + ch) * kWords, own);
      }
    };
    const auto ask = [&](int first_unit, int by) {
      for (int unit = first_unit; unit < g.levels * kGroups * kPublishers; unit += by) {
        const int part = unit / kPublishers;
        const int level = part / kGroups, first = part % kGroups * kAhead;
        if (digit_of(t.number, level) <= first) continue;
        for (int ch = lane + unit % kPublishers * kWarp; ch < width; ch += kPublishers * kWarp) {
          const Segment<A> before =
              await_group<A, !kWhole>(nodes_of(ch), stride, t.number, level, first);
          part_a[part * width + ch] = before.map.a;
          part_x[part * width + ch] = before.map.x;
          if (ch == 0) shared.part_cut[part] = before.cut;
        }
      }
    };
    if constexpr (kPublishers > 1) {
      if (warp < kPublishers) publish(lane + warp * kWarp);
      ask((warp + P::warps - kPublishers) % P::warps, P::warps);
    } else if (warp == 0) {
      publish(lane);
    } else if (!is_idle) {
      ask(warp - 1, P::warps - 1);
    }
    __syncthreads();
  }

  // --- the state before the leaf -----------------------------------------------------------------
  if constexpr (P::direct != 0) leaf.take_first_direct();
  R state;
  if (is_wide) {
    // Bands of leaves, in the brackets that scan_lanes has.
    const auto of_leaf = [&](int place, int v) -> Segment<A> {
      const int at = place * width + column * W + v;
      return {{maps_a[at], maps_x[at]}, shared.leaf_cut[place]};
    };
    tracer.band(of_leaf);
    const int within = leaf.place % P::band_leaves, first = leaf.place - within;
#pragma unroll
    for (int v = 0; v < W; ++v) {
      A run = enter[column * W + v];
      for (int p = 0; p < first; p += P::band_leaves) {
        Segment<A> band = merge(of_leaf(p, v), of_leaf(p + 1, v));
        if constexpr (P::band_leaves == 4) {
          band = merge(band, merge(of_leaf(p + 2, v), of_leaf(p + 3, v)));
        }
        run = apply(band, run);
      }
      Segment<A> before{identity<Affine<A>>(), false};
      if (within > 1)
        before = merge(of_leaf(first + within - 2, v), of_leaf(first + within - 1, v));
      if (within == 1) before = of_leaf(first, v);
      if (within == 3) before = merge(of_leaf(first, v), before);
      state.lane[v] = apply(before, run);
    }
  } else {
    // Before the warp's band, a lane a channel; then before its own leaf. Where there are more
    // channels than lanes, some warps do it for all of them.
    const auto before_tile = [&](int ch) {
      A run = enter[ch];
      // The highest level has the earliest nodes.
      for (int level = is_idle ? -1 : g.levels - 1; level >= 0; --level) {
        const int digit = digit_of(t.number, level);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          if (digit <= group * kAhead) break;
          const int part = level * kGroups + group;
          run = apply(Segment<A>{{part_a[part * width + ch], part_x[part * width + ch]},
                                 !kWhole && shared.part_cut[part]},
                      run);
        }
      }
      return run;
    };
    if constexpr (kPublishers > 1) {
      const int ch = static_cast<int>(threadIdx.x);
      if (ch < kWidth) {
        A run = before_tile(ch);
#pragma unroll
        for (int b = 0; b < P::warps; ++b) {
          shared.band_enter[b][ch] = run;
          if (b + 1 < P::warps) run = apply(total(b, ch), run);
        }
      }
      __syncthreads();
    } else {
      for (int ch = lane; ch < width; ch += kWarp) {
        A run = before_tile(ch);
        for (int b = first_warp; b < block_warp; ++b) run = apply(total(b, ch), run);
        shared.band_enter[block_warp][ch] = run;
      }
      __syncwarp();
    }
#pragma unroll
    for (int v = 0; v < W; ++v) {
      state.lane[v] = apply(Segment<A>{map[v], cut}, shared.band_enter[block_warp][column * W + v]);
    }
  }

  // --- finish ----------------------------------------------------------------------------------
  if constexpr (!kBackward && !Cell::state_is_output) leaf.keep_checkpoint(rows, state);
  if constexpr (P::reads_states && P::has_late) leaf.take_next_state();
  R leave = Constant<R>::of(0);
  if (mode == RowMode::plain_direct) {
    leaf.template finish<RowMode::plain_direct>(state, leave);
  } else if (decltype(leaf)::kHasStaged && mode == RowMode::plain_staged) {
    leaf.template finish<RowMode::plain_staged>(state, leave);
  } else {
    leaf.template finish<RowMode::general>(state, leave);
  }
  tracer.finish(state.lane);
  const bool is_end = leaf.last_step() >= 0;
  // A sequence without steps ends as it began.
  if (is_end || (t.length == 0 && t.number == 0 && leaf.place == 0)) {
#pragma unroll
    for (int v = 0; v < W; ++v) {
      const A end = is_end ? leave.lane[v] : state.lane[v];
      if (v < channels) store_state<T>(g.leave, t.sequence, leaf.channel + v, end);
    }
  }

  // --- what went through the slots, padding, sums ----------------------------------------------
  const auto is_staged = [&](const Steps& s) {
    return s.data != nullptr && !s.wide && !g.is_direct;
  };
  const auto pad = [&](const Steps& s) {
    pad_rows<T>(s, g, t, channel0,
                static_cast<int>(min(static_cast<Index>(width), g.channels - channel0)), team);
  };
  if constexpr (kWhole && !(kBackward && P::vectors != 0)) return;
  if constexpr (kBackward) {
    if (!g.is_direct) __syncthreads();
#pragma unroll 1
    for (int k = 0; k < P::inputs; ++k) {
      if (kWhole || P::has(P::vectors, k) || g.sum_slot[k] >= 0) continue;
      if (is_staged(g.din[k])) {
        write_rows<P>(g.din[k], g, t, channel0, rows,
                      own_slots + P::din_slot(k) * P::slot_bytes(g.leaf), team);
      }
      if (g.lengths != nullptr) pad(g.din[k]);
    }
    sum_over_tile<P>(g, t, leaf, team, maps_a, maps_x);
  } else {
    if (is_staged(g.out)) {
      __syncthreads();
      write_rows<P>(g.out, g, t, channel0, rows, own_slots, team);
    }
    if (g.lengths != nullptr) pad(g.out);
  }
}

}  // namespace scanrnn::cuda
