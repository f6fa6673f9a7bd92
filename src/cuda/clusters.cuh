// SPDX-License-Identifier: Apache-2.0
// Rows (rows.cuh) by clusters of blocks that stay: for calls whose tiles are all whole, eight of
// them or a multiple in every sequence, of the scan and of some cells of the 16-bit types.
//
// A cluster takes a ticket for the eight tiles below a node of the tree, a tile a block, and asks
// for the next ticket once it knows the state that its tiles start from. Its blocks exchange their
// maps through each other's shared memory, which takes 0.3 us where a way through the L2 cache
// takes two. The last block publishes the node, the first one fetches what precedes it, works out
// the state before the cluster and tells it the others. Merges and their order are those of
// run_rows, and so are the results, bit for bit. A warp copies the rows of its next tile as soon as
// it has written what it made of the last ones.
//
// Tickets are taken in the order in which clusters are released from waiting, not earlier. As every
// tile waits for all before it, nothing costs more than a ticket in the hands of a cluster that
// can't begin: taken half a tile earlier, (1,2^20,64) has 0.70 instead of 0.90 (TUNING.md).
//
// Progress. All blocks of a cluster run, or none does. A cluster takes its first ticket once its
// blocks run, and works through its tickets in their order; so of all tickets that have been taken
// the earliest unfinished one is being worked on, and waits for nothing but earlier ones
// (tree.cuh). How many clusters run at a time, and whether a launched one starts only when others
// have ended, makes no difference: it finds that no ticket is left.
//
// Messages are asynchronous stores to another block, counted by a barrier of that block. Places of
// a round's messages are used again two rounds later, tickets' in the next one. A block sends maps
// of round i + 1 once it has the ticket of that round, which the first block sends when the last
// one has the maps of round i from all: so every block has then finished round i - 1, and all its
// warps have read what they were told in it, and the ticket of round i. Tiles of 64 channels leave
// room for the maps of one round: there the first block waits until all others say that all their
// warps have read them. (A warp that said so itself would have to release what it has read to the
// cluster, which waits for all that it has written to memory, too: complex64 at 16,8192,1024 had
// 0.92 instead of 0.94.) Nothing is sent that isn't waited for, so no message reaches a block that
// has ended.
#pragma once

#include <type_traits>

#include "cuda/rows.cuh"
#include "scanrnn/core/cells/scan.hpp"

// Compiled for the devices that are_clusters_best chooses; for others the kernel is empty.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
#define SCANRNN_HAS_CLUSTERS 1
#else
#define SCANRNN_HAS_CLUSTERS 0
#endif

namespace scanrnn::cuda {

/// Blocks of a cluster.
inline constexpr int kClusterBlocks = kRadix;

/// Whether a pass has a kernel for clusters, where a thread has registers for it: the scan's, in
/// types that three blocks have them for without a spill (complex128, and backward float64, do
/// spill); and those of cells whose options the compiler knows, in 16 bits. There not where steps
/// are held beside vectors; nor backward where states are recomputed, vectors are prepared, or less
/// than four blocks fit.
template <class Cell, class T, bool kBackward, class P = RowPass<Cell, kBackward, T, true>>
inline constexpr bool has_clusters =
    std::is_same_v<Cell, ScanCell> ? sizeof(T) <= 8 && !(kBackward && std::is_same_v<T, double>)
    : sizeof(T) != 2               ? false
    : kBackward                    ? P::reads_states && P::slots <= 3 && !Cell::is_prepared
                                   : !(P::template holds_steps<T> && P::vectors != 0);

template <class P>
struct ClusterPass {
  /// Arrays that are staged: backward, states wait in registers while the state before a tile is
  /// still unknown, and so a third block finds room. The 16-bit types have no registers for it.
  static constexpr bool holds_states = P::reads_states && P::width <= 4;
  static constexpr int slots = P::slots - (holds_states ? 1 : 0);
  static_assert(!P::reads_states || P::states_slot == P::slots - 1);
  static constexpr int staged_bytes = slots * P::slot_bytes(P::leaf);
  /// Blocks that a multiprocessor holds.
  static constexpr int blocks = P::template holds_steps<typename P::Type>
                                    ? P::blocks()
                                    : 224 * 1024 / (staged_bytes + 8 * 1024);
};

// --- between the blocks of a cluster -----------------------------------------------------------

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

#if SCANRNN_HAS_CLUSTERS
__device__ __forceinline__ int rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// Where another block has what lies at `address` here.
__device__ __forceinline__ unsigned address_in(unsigned address, int rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Counts the bytes that arrive at a block. A phase ends when as many have arrived as were
/// expected.
struct Arrivals {
  Word barrier;

  /// `count`: threads that arrive in a phase.
  __device__ __forceinline__ void init(int count = 1) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count)
                 : "memory");
  }
  /// One of those that are counted, once this thread and those that it has met are done.
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
  }
  /// Once a phase, after the one before it has ended. Some may have arrived already.
  __device__ __forceinline__ void expect(unsigned bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
        "r"(bytes)
        : "memory");
  }
  /// Until phase number `phase` has ended. No waiting thread may be two phases behind.
  __device__ __forceinline__ void await(unsigned phase) const {
    asm volatile(
        "{\n\t"
        ".reg .pred ended;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n\t"
        "@!ended bra again;\n\t"
        "}" ::"r"(shared_address(&barrier)),
        "r"(phase & 1)
        : "memory");
  }
};

/// Stores `value` at `place` of the block `rank`, whose `arrivals` hears of it.
template <class V>
__device__ __forceinline__ void tell(int rank, V* place, const V& value, Arrivals* arrivals) {
  const unsigned to = address_in(shared_address(place), rank);
  const unsigned barrier = address_in(shared_address(&arrivals->barrier), rank);
  if constexpr (sizeof(V) == sizeof(unsigned)) {
    unsigned word;
    memcpy(&word, &value, sizeof(word));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(word), "r"(barrier)
        : "memory");
  } else {
    Word word[sizeof(V) / sizeof(Word)];
    memcpy(word, &value, sizeof(word));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(Word)); ++i) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
              to + i * static_cast<int>(sizeof(Word))),
          "l"(word[i]), "r"(barrier)
          : "memory");
    }
  }
}
#endif

// --- the kernel --------------------------------------------------------------------------------

template <class P>
struct ClusterShared {
  using A = Acc<typename P::Type>;
  static constexpr int width = P::band_vectors * P::width;  // channels of a tile
  static constexpr int most_parts = kMostClusterLevels * kGroups;
  /// Whether some warps, with one channel a lane, work out the state before each band for all: a
  /// cell leaves few registers.
  static constexpr bool for_all = !P::Cell::step_is_input;
  /// Else every warp does it, and a lane has so many of the tile's channels, side by side.
  static constexpr int own = width > kWarp && !for_all ? width / kWarp : 1;
  static_assert(own <= 2 && (!for_all || width % kWarp == 0));
  /// Places for the maps of so many rounds.
  static constexpr int halves = width > kWarp ? 1 : 2;
  static constexpr bool keeps_loss = P::template keeps_loss<typename P::Type>;
  /// Whether all warps meet once a tile has arrived: backward, as they read each other's rows, and
  /// where a thread has eight channels, which leave neither registers nor room for two places.
  static constexpr bool meets_late = P::backward || P::width > 4;
  /// Whether they meet while it is on its way: there is room for one place of losses only.
  static constexpr bool meets_early = keeps_loss && !meets_late;
  /// Where they don't meet, some may still need their bands when others have the next ones.
  static constexpr int bands = meets_late || meets_early ? 1 : 2;
  alignas(kVectorBytes) Affine<A> band[bands][P::warps][width];
  typename P::template Loss<typename P::Type> lost[keeps_loss ? P::warps : 1]
                                                  [keeps_loss ? width : 1];  // of the gains
  /// What precedes a block's tile. The first block has none before it in the cluster, but the parts
  /// of what precedes the cluster, groups of children as in run_rows.
  union {
    alignas(kVectorBytes) Affine<A> earlier[halves][kRadix - 1][width];
    alignas(kVectorBytes) Affine<A> part[most_parts][width];
  };
  alignas(kVectorBytes) A enter[2][width];  // the state before the cluster
  unsigned ticket, passed[kRadix];
  Tile tile[P::warps];  // registers are few; warps get there apart
#if SCANRNN_HAS_CLUSTERS
  Arrivals maps_arrived[halves], enter_arrived[2], ticket_arrived, passed_arrived;
  Arrivals maps_read;  // by this block's warps
#endif
};

/// Backward: the states before the steps of a leaf, fetched while the adjoint that the leaf starts
/// from is still unknown.
template <class P, bool = ClusterPass<P>::holds_states>
struct LeafStates {
  template <class Leaf>
  __device__ __forceinline__ void prefetch(const Leaf&) {}
  template <class Leaf>
  __device__ __forceinline__ void load(const Leaf&) {}
  template <class Leaf, class R>
  __device__ __forceinline__ void finish(Leaf& leaf, R& state, R& leave) {
    leaf.template finish<RowMode::plain_direct>(state, leave);
  }
};
template <class P>
struct LeafStates<P, true> {
  using T = typename P::Type;
  using R = Lanes<T, P::width>;
  static constexpr int kLeaf = P::leaf, W = P::width;
  /// Those that there are registers for while the adjoint is awaited.
  static constexpr int kEarly = kLeaf - 1;
  Vector<T, W> before[kLeaf];

  /// Into the L2 cache.
  template <class Leaf>
  __device__ __forceinline__ void prefetch(const Leaf& leaf) {
    each<0, kLeaf>(leaf,
                   [](int, const char* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); });
  }
  template <class Leaf>
  __device__ __forceinline__ void load(const Leaf& leaf) {
    load_some<0, kEarly>(leaf);
  }
  /// As RowLeaf::finish.
  template <class Leaf>
  __device__ __forceinline__ void finish(const Leaf& leaf, R& state, R& leave) {
    load_some<kEarly, kLeaf>(leaf);
    R gain = leaf.entry_gain;
    char* din_at[P::inputs];
    Index din_step[P::inputs];
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      din_at[k] = leaf.address_of(leaf.g.din[k]);
      din_step[k] = opaque(leaf.step_of(leaf.g.din[k]));
    }
#pragma unroll
    for (int i = 0; i < kLeaf; ++i) {
      R in[P::inputs], dy, before_step, din[P::inputs];
      leaf.template read_inputs<RowMode::plain_direct>(P::Cell::backward_inputs, i, in);
      leaf.template read<RowMode::plain_direct>(P::dy_slot, i, dy);
      widen<T>(before[i], before_step.lane);
      leaf.advance(state, gain, dy, false);
      gain = leaf.cell.gain(in);
      leaf.cell.pullback(in, before_step, before_step, dy, state, din);
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (leaf.g.din[k].data != nullptr) store_streaming(din_at[k], narrow<T>(din[k].lane));
        din_at[k] = opaque(din_at[k] + din_step[k]);
      }
    }
    leave = product(gain, state);
  }

 private:
  /// The state before a step is the one after the next step of the pass.
  template <int kFirst, int kEnd, class Leaf, class F>
  static __device__ __forceinline__ void each(const Leaf& leaf, F&& fetch) {
    const Steps& s = leaf.g.states;
    if (s.data == nullptr) return;
    const Index step = opaque(leaf.step_of(s));
    const char* at = leaf.address_of(s) + kFirst * step;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      at = opaque(at + step);
      if (i + 1 < kLeaf || leaf.t.in_sequence(leaf.row(kLeaf))) fetch(i, at);
    }
  }
  template <int kFirst, int kEnd, class Leaf>
  __device__ __forceinline__ void load_some(const Leaf& leaf) {
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) before[i] = {};
    each<kFirst, kEnd>(leaf, [&](int i, const char* at) { before[i] = load_streaming<T, W>(at); });
    if constexpr (kFirst < kEnd && kEnd == kLeaf) {
      if (leaf.t.in_sequence(leaf.row(kLeaf))) return;
#pragma unroll
      for (int v = 0; v < W; ++v) {
        before[kLeaf - 1].element[v] =
            Element<T>::narrow(load_state<T>(leaf.g.initial, leaf.t.sequence, leaf.channel + v));
      }
    }
  }
};

/// Of this thread in its block. kAnew: the compiler is not to keep it, nor what comes from it.
template <bool kAnew>
__device__ __forceinline__ int thread_number() {
  if constexpr (!kAnew) return static_cast<int>(threadIdx.x);
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Args as for run_rows<..., kWhole>, but a ticket is a cluster's: fan_log2 is kRadixLog2, nodes
/// are those of clusters, (tile_items / kRadix, groups, lanes), and levels those above them, none
/// if a sequence is one cluster's.
template <class Cell, class T, bool kBackward, bool kNarrow = false>
__global__ void __launch_bounds__((RowPass<Cell, kBackward, T, true, kNarrow>::threads),
                                  (ClusterPass<RowPass<Cell, kBackward, T, true, kNarrow>>::blocks))
    run_clusters(const __grid_constant__ Args args, const __grid_constant__ Cell cell) {
#if SCANRNN_HAS_CLUSTERS
  using P = RowPass<Cell, kBackward, T, true, kNarrow>;
  static_assert(!P::recomputes);
  const Args& g = known<P, true>(args);
  using A = Acc<T>;
  constexpr int W = P::width;
  using R = Lanes<T, W>;
  constexpr int width = ClusterShared<P>::width, across = P::band_vectors;
  constexpr int kOwn = ClusterShared<P>::own;
  constexpr bool kForAll = ClusterShared<P>::for_all;
  constexpr bool kAnew = kForAll || (kBackward && sizeof(T) == 8);  // else complex64 spills
  constexpr int kHalves = ClusterShared<P>::halves;
  constexpr bool kMeetsLate = ClusterShared<P>::meets_late;
  constexpr bool kMeetsEarly = ClusterShared<P>::meets_early;
  struct Own {  // a lane's channels
    A of[kOwn];
  };
  constexpr int rows = P::threads / across * P::leaf;
  constexpr Index kWords = Node<A>::words;

  extern __shared__ __align__(128) char slots[];
  __shared__ ClusterShared<P> shared;

  const int rank = rank_in_cluster();
  constexpr int kLast = kClusterBlocks - 1;
  // Where warps share channels out instead, one a lane, these warps begin.
  constexpr int kParts = (width + kWarp - 1) / kWarp;
  const unsigned tickets =
      static_cast<unsigned>(g.tile_items / kClusterBlocks) * static_cast<unsigned>(g.groups);
  const bool ascending = kBackward == g.reverse;

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) shared.enter_arrived[i].init();
    for (int i = 0; i < kHalves; ++i) shared.maps_arrived[i].init();
    shared.ticket_arrived.init();
    shared.passed_arrived.init();
    shared.maps_read.init(kForAll ? kParts : P::warps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    shared.ticket_arrived.expect(sizeof(shared.ticket));
  }
  sync_cluster();
  await_clearing();
  const auto tell_ticket = [&](unsigned ticket) {
#pragma unroll
    for (int to = 0; to < kClusterBlocks; ++to) {
      tell(to, &shared.ticket, ticket, &shared.ticket_arrived);
    }
  };
  const auto stage = [&](const Tile& t, int thread) {
    const int warp = thread / kWarp;
    const int first_row = (ascending ? warp : P::warps - 1 - warp) * P::band_leaves * P::leaf +
                          thread % kWarp / P::band_vectors;
#pragma unroll
    for (int s = 0; s < ClusterPass<P>::slots; ++s) {
      stage_whole<P, P::band_leaves>(staged_array<P>(g, s), g, t, t.group * width, first_row,
                                     slots + s * P::slot_bytes(P::leaf));
    }
    end_copies();
  };

  if (rank == 0 && threadIdx.x == P::threads - kWarp) tell_ticket(atomicAdd(g.ticket, 1u));
  shared.ticket_arrived.await(0);
  unsigned ticket = shared.ticket;
  const auto begin = [&] {
    const Tile next = whole_tile_of<kBackward>(g, ticket, rows, rank);
    const int thread = thread_number<kAnew>();
    stage(next, thread);
    if (thread % kWarp == 0) shared.tile[thread / kWarp] = next;
    __syncwarp();
  };
  if (ticket < tickets) begin();
  for (unsigned round = 0; ticket < tickets; ++round) {
    const unsigned half = round % 2, phase = round / 2;
    const Team team(g, P::threads_log2, thread_number<kAnew>());
    const int lane = team.thread % kWarp, warp = team.thread / kWarp;
    const int channel = kForAll ? team.thread : lane * kOwn;  // this thread's first one of the tile
    const bool has_channel = channel < width;
    const Tile& t = shared.tile[warp];
    if (team.thread == 0) {
      shared.ticket_arrived.expect(sizeof(shared.ticket));
      if (rank == 0) {
        shared.passed_arrived.expect((kHalves == 1 ? kLast : 1) * sizeof(shared.passed[0]));
      } else {
        shared.maps_arrived[round % kHalves].expect(rank * sizeof(shared.earlier[0][0]));
        shared.enter_arrived[half].expect(sizeof(shared.enter[0]));
      }
    }
    if constexpr (kMeetsEarly) __syncthreads();
    const Index channel0 = t.group * width;
    Own run{};
    if (rank == 0 && has_channel) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        run.of[k] = load_state<T>(g.enter, t.sequence, channel0 + channel + k);
      }
    }
    RowLeaf<P, T, true> leaf(g, t, cell, slots, nullptr, channel0, rows, team);
    leaf.valid = (1u << P::leaf) - 1;
    leaf.channels = W;
    if constexpr (kBackward) {
      leaf.entry_gain = Constant<R>::of(1);
      leaf.take_neighbours(true);
    }
    await_groups<0>();
    if constexpr (kMeetsLate) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    // Which reads neighbours' rows, and only until the next barrier.
    if constexpr (kBackward) leaf.take_neighbours(false);
    if constexpr (P::reads_states && !ClusterPass<P>::holds_states) leaf.take_next_state();

    // --- the maps of leaves, bands, the tile ---
    Affine<A> map[W];
    typename P::template Loss<T> loss[W];
    bool cut = false;
#pragma unroll
    for (int v = 0; v < W; ++v) map[v] = identity<Affine<A>>();
    leaf.template map_in_pass<RowMode::plain_direct>(map, loss, cut);
    scan_lanes(map, loss, cut, lane, across, kWarp, false);
    auto& band = shared.band[round % ClusterShared<P>::bands];
#pragma unroll
    for (int v = 0; v < W; ++v) {
      if (lane + across >= kWarp) {
        band[warp][leaf.column * W + v] = map[v];
        if constexpr (P::template keeps_loss<T>) shared.lost[warp][leaf.column * W + v] = loss[v];
      }
      map[v] = shuffle_up(map[v], across);
      if (lane < across) map[v] = identity<Affine<A>>();
    }
    __syncthreads();

    LeafStates<P> states;
    states.prefetch(leaf);
    if constexpr (P::direct != 0) leaf.prefetch_direct();

    // --- between tiles: the last block publishes, the first one fetches ---
    const int cluster = static_cast<int>(t.number / kClusterBlocks);
    const Index stride = g.groups * width * kWords;
    Word* const nodes =
        g.nodes + ((t.first_item / kClusterBlocks * g.groups + t.group) * width + lane) * kWords;
    const auto part_nodes = [&](int part) { return nodes + part * (kWarp * kWords); };
    auto& earlier = shared.earlier[round % kHalves];
    Arrivals& maps_arrived = shared.maps_arrived[round % kHalves];
    const auto tell_passed = [&] { tell(0, &shared.passed[rank], 0u, &shared.passed_arrived); };
    /// The product of the maps of tiles [first, end) of the cluster.
    const auto product_of = [&](int first, int end, int ch) {
      Affine<A> all = earlier[first][ch];
#pragma unroll
      for (int i = 1; i < kAhead; ++i) {
        if (first + i < end) all = merge(all, earlier[first + i][ch]);
      }
      return all;
    };
    if (const int ch = team.thread; ch < width) {
      Affine<A> own[P::warps];
      typename P::template Loss<T> lost[P::warps];
#pragma unroll
      for (int b = 0; b < P::warps; ++b) {
        own[b] = band[b][ch];
        if constexpr (P::template keeps_loss<T>) lost[b] = shared.lost[b][ch];
      }
#pragma unroll
      for (int by = 1; by < P::warps; by *= 2) {
#pragma unroll
        for (int b = 0; b < P::warps; b += 2 * by) {
          lost[b] = lost[b + by].after(lost[b], own[b].a, own[b + by].a);
          own[b] = merge(own[b], own[b + by]);
        }
      }
      own[0].a = lost[0].corrected(own[0].a);
#pragma unroll
      for (int to = 1; to < kClusterBlocks; ++to) {
        if (to > rank) tell(to, &earlier[rank][ch], own[0], &maps_arrived);
      }
      if (rank == kLast) maps_arrived.await(round / kHalves);
      if (rank == kLast && g.levels > 0) {
        Segment<A> node{
            merge(merge(product_of(0, kAhead, ch), product_of(kAhead, kLast, ch)), own[0]), false};
        for (int level = 0; digit_of(cluster, level) == kRadix - 1; ++level) {
          node = merge(await_level<A, false>(part_nodes(warp), stride, cluster, level), node);
        }
        Node<A>::publish(part_nodes(warp) + cluster * stride, node);
      }
      if (kHalves > 1 && rank == kLast && lane == 0) tell_passed();
    }
    if (rank == 0) {
      if (g.levels > 0 && cluster > 0) {
        // The warps that send maps fetch last, if at all.
        for (int i = P::warps - 1 - warp; i < g.levels * kGroups * kParts; i += P::warps) {
          const int part = i / kParts, ch = i % kParts * kWarp + lane;
          const int level = part / kGroups, first = part % kGroups * kAhead;
          if (digit_of(cluster, level) <= first || ch >= width) continue;
          shared.part[part][ch] =
              await_group<A, false>(part_nodes(i % kParts), stride, cluster, level, first).map;
        }
        __syncthreads();
        for (int level = g.levels - 1; level >= 0; --level) {
          const int digit = digit_of(cluster, level);
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            if (digit <= group * kAhead || !has_channel) break;
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
              run.of[k] = apply(shared.part[level * kGroups + group][channel + k], run.of[k]);
            }
          }
        }
      }
      const bool asks = warp == P::warps - 1 && lane == 0;
      unsigned next = 0;
      if (asks) next = atomicAdd(g.ticket, 1u);
      for (int to = kForAll ? 1 : warp; to < kClusterBlocks; to += kForAll ? 1 : P::warps) {
        if (to > 0 && has_channel) {
          tell(to, reinterpret_cast<Own*>(&shared.enter[half][channel]), run,
               &shared.enter_arrived[half]);
        }
      }
      if (asks) {
        shared.passed_arrived.await(round);
        tell_ticket(next);
      }
      __syncwarp();
      states.load(leaf);
    } else {
      const bool has_part = !kForAll || has_channel;
      const int here = has_channel ? channel : 0;
      Affine<A> before[kGroups][kOwn];
      if (has_part) {
        maps_arrived.await(round / kHalves);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int k = 0; k < kOwn; ++k) {
            if (rank > group * kAhead) {
              before[group][k] = product_of(group * kAhead, rank, here + k);
            }
          }
        }
      }
      if constexpr (kHalves == 1) {
        __syncwarp();
        if (has_part && lane == 0) shared.maps_read.arrive();
        if (warp == P::warps - 1) {
          shared.maps_read.await(round);
          if (lane == 0) tell_passed();
        }
      }
      states.load(leaf);
      if (has_part) {
        shared.enter_arrived[half].await(phase);
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          run.of[k] = shared.enter[half][here + k];
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            if (rank > group * kAhead) run.of[k] = apply(before[group][k], run.of[k]);
          }
        }
      }
    }

    // --- finish ---
    R state;
    if constexpr (kForAll) {
      // In the place of a band's map, the state before it.
#pragma unroll
      for (int b = 0; b < P::warps; ++b) {
        if (!has_channel) break;
        const A enter = run.of[0];
        run.of[0] = apply(band[b][channel], enter);
        band[b][channel].x = enter;
      }
      __syncthreads();
#pragma unroll
      for (int v = 0; v < W; ++v) {
        state.lane[v] = apply(map[v], band[warp][leaf.column * W + v].x);
      }
    } else {
      for (int b = 0; b < warp; ++b) {
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          if (has_channel) run.of[k] = apply(band[b][channel + k], run.of[k]);
        }
      }
#pragma unroll
      for (int v = 0; v < W; ++v) {
        state.lane[v] = apply(map[v], shuffle(run.of[v % kOwn], (leaf.column * W + v) / kOwn));
      }
    }
    if constexpr (!kBackward && !Cell::state_is_output) leaf.keep_checkpoint(rows, state);
    if constexpr (P::direct != 0) leaf.take_first_direct();
    R leave;
    states.finish(leaf, state, leave);
    if (t.is_last() && leaf.place == P::threads / across - 1) {
#pragma unroll
      for (int v = 0; v < W; ++v) {
        store_state<T>(g.leave, t.sequence, leaf.channel + v, leave.lane[v]);
      }
    }

    if constexpr (kBackward && P::vectors != 0) {
      A* const parts = reinterpret_cast<A*>(&band[0][0]);
      sum_over_tile<P>(g, t, leaf, team, parts, parts + P::warps * width);
    }

    // --- the next tile ---
    shared.ticket_arrived.await(round + 1);
    ticket = shared.ticket;
    __syncwarp();
    if (ticket < tickets) begin();
  }
#endif
}

}  // namespace scanrnn::cuda
