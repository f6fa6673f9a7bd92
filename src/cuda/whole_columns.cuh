// SPDX-License-Identifier: Apache-2.0
// Columns (columns.cuh) of calls that are regular: every sequence is a number of whole tiles, of
// arrays that allow vectors, without lengths, a reset or a sum over time but those of vector
// inputs. A warp has one channel's tile, or so many channels that lie one behind the other. Nothing
// is tested but the direction.
//
// Blocks whose tiles are the children of one node stay: they take the ticket for the next ones as
// soon as they know the state that theirs start from, and it arrives while they finish. A ticket in
// the hands of a block that can't begin would hold up all behind it (clusters.cuh, TUNING.md).
// Progress is that of tree.cuh: a block works through its tickets in their order, so of all that
// have been taken the earliest unfinished one is being worked on, and waits for nothing but earlier
// ones. How many blocks run at a time makes no difference.
#pragma once

#include "cuda/columns.cuh"

namespace scanrnn::cuda {

/// What the compiler then knows of a call.
template <class P>
__device__ __forceinline__ Args known_columns(const Args& args) {
  Args g = args;
  g.cu_seqlens = g.lengths = nullptr;
  g.reset = nullptr;
  g.has_wide = false;
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
    if (!P::has(P::vectors, k)) {
      g.sum_slot[k] = -1;
      g.in[k].time = 1;
    }
    g.din[k].wide = false;
  }
  g.states.time = g.dy.time = 1;
  g.out.wide = false;
  return g;
}

/// Calls `chunk(memory, shared)` for a tile's vectors, byte offsets both, as a lane has them.
template <class P, class T, class Chunk>
__device__ __forceinline__ void each_chunk(int lane, Chunk&& chunk) {
  // Lanes and multiples of kWarp have no bit in common, and swizzling is linear in bits.
  const int even = swizzled(lane), odd = even ^ swizzled(kWarp) ^ kWarp;
#pragma unroll
  for (int i = 0; i < P::slot_bytes / (kWarp * kVectorBytes); ++i) {
    chunk((lane + i * kWarp) * kVectorBytes,
          ((i % 2 == 0 ? even : odd) + i * kWarp) * kVectorBytes);
  }
}

/// What a block keeps from one ticket to the next.
template <class A>
struct WholeShared {
  SharedNode<A> node;
  unsigned ticket;
};

template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__((ColumnPass<Cell, kBackward, T>::warps * kWarp),
                                  (ColumnPass<Cell, kBackward, T>::blocks))
    run_whole_columns(const __grid_constant__ Args args, const __grid_constant__ Cell cell) {
  if constexpr (!kHasWholeTiles<Cell>) return;
  using P = ColumnPass<Cell, kBackward, T>;
  using A = Acc<T>;
  using Leaf = ColumnLeaf<P, T, true>;
  const Args g = known_columns<P>(args);
  constexpr int kLeaf = P::leaf;
  constexpr Index kWords = column_node_words(Node<A>::words, sizeof(T));

  extern __shared__ __align__(128) char slots_of_block[];
  __shared__ WholeShared<A> shared;
  SharedNode<A>& node = shared.node;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned warps = blockDim.x / kWarp;
  char* const slots = slots_of_block + warp * P::warp_bytes;
  const int each = kWarp >> g.across_log2, rows = each * kLeaf;
  const bool shares_node = g.fan_log2 > 0, stays = g.fan_log2 == kRadixLog2 && g.levels > 0;
  const bool looks_back = g.levels > 0 && (!stays || warp == kRadix - 1);

  unsigned ticket = blockIdx.x;
  if (g.levels > 0) {
    await_clearing();
    if (threadIdx.x == 0) shared.ticket = atomicAdd(g.ticket, 1u);
    __syncthreads();
    ticket = shared.ticket;
  }
  for (;;) {
    const unsigned item = ticket * warps + warp;
    if (item >= g.tile_items * g.groups) return;
    const Tile t =
        whole_tile_of<kBackward>(g, item >> g.fan_log2, rows, warp & ((1 << g.fan_log2) - 1));
    const auto place_of = [&](const Steps& s) {
      return s.data + (t.row * s.batch + t.position + (t.group << g.across_log2) * s.channel) *
                          static_cast<Index>(sizeof(T));
    };

    // --- stage ---------------------------------------------------------------------------------
#pragma unroll
    for (int s = 0; s < P::slots; ++s) {
      const Steps& array = staged_array<P>(g, s);
      char* const slot = slots + s * P::slot_bytes;
      const char* const from = place_of(array);
      if (Leaf::kHasAll || array.data != nullptr) {
        each_chunk<P, T>(lane, [&](int in_memory, int in_slot) {
          copy_async<kVectorBytes>(slot + in_slot, from + in_memory);
        });
      } else {
        each_chunk<P, T>(
            lane, [&](int, int in_slot) { store_vector(slot + in_slot, Vector<T, kWidth<T>>{}); });
      }
    }
    Leaf leaf(g, t, cell, slots, lane);
    const int place = leaf.place;
    const ColumnMode mode = leaf.mode();
    A state = load_state<T>(g.enter, t.sequence, leaf.channel);
    if constexpr (kBackward) leaf.take_neighbours(true);
    await_copies();
    __syncwarp();
    if constexpr (kBackward) leaf.take_neighbours(false);
    if constexpr (P::template opens<T>) __syncwarp();
    if constexpr (P::recomputes) leaf.recompute(mode, lane);

    // --- the maps of leaves and the tile ---------------------------------------------------------
    Affine<A> map[1] = {identity<Affine<A>>()};
    typename P::template Loss<T> loss[1];
    bool cut = false;
    in_mode<true>(
        mode, [&](auto m) { leaf.template map_in_pass<decltype(m)::value>(map[0], loss[0], cut); });
    Tracer<Cell, A, 1> tracer(cell, g, t, Division{kLeaf, each, each, 1}, place, leaf.channel);
    tracer.leaf(map, false);
    cut = false;
    scan_lanes(map, loss, cut, place, 1, kWarp, false, tracer);
    Segment<A> own{shuffle(map[0], kWarp - 1), false};
    own.map.a = shuffle(loss[0], kWarp - 1).corrected(own.map.a);
    Affine<A> before = shuffle_up(map[0], 1);
    if (place == 0) before = identity<Affine<A>>();

    // --- between tiles ---------------------------------------------------------------------------
    const auto hear = [&](int level, const Segment<A>& was, const Segment<A>& merged) {
      if (lane == 0) tracer.tiles(level, leaf.channel, was.map.x, merged);
    };
    const Index stride = g.groups * kWords;
    Segment<A> prefix{identity<Affine<A>>(), false};
    unsigned next = 0;
    if (shares_node) {
      if (lane == 0) node.tile[warp] = own;
      __syncthreads();
      prefix = node.template product_before<false>(warp, g.fan_log2, lane);
      if (g.fan_log2 == kRadixLog2 && warp == kRadix - 1) {
        const Segment<A> was = own;
        own = merge(prefix, own);
        hear(0, was, own);
      }
    }
    if (looks_back) {
      const int base = stays ? 1 : 0;
      const int log2 = base * kRadixLog2;
      look_back<A, false>(g, t.first_item >> log2, t.number >> log2, t.group, stride, kWords, false,
                          own, lane, base, hear, [&](int level, const Segment<A>& product) {
                            if (!stays) {
                              prefix = merge(product, prefix);
                            } else if (lane == 0) {
                              node.level[level] = product;
                            }
                          });
      if (stays && lane == 0) next = atomicAdd(g.ticket, 1u);
    }
    if (stays) {
      __syncthreads();
      const Index number = t.number >> kRadixLog2;
      for (int l = 0; number >> (kRadixLog2 * l) != 0; ++l) {
        Segment<A> product = node.level[l];
        product.cut = false;
        prefix = merge(product, prefix);
      }
    }
    if (t.number > 0) state = apply(prefix.map, state);
    state = apply(before, state);

    // --- finish ----------------------------------------------------------------------------------
    __syncwarp();  // outputs take the place of what neighbouring lanes have read
    if constexpr (!kBackward && !Cell::state_is_output) {
      const Index step0 = t.step_of(leaf.from, rows, g.reverse);
      if (g.checkpoints != nullptr && step0 % kLeafSteps == 0) {
        reinterpret_cast<A*>(
            g.checkpoints)[checkpoint_row(g, t, step0) * g.channels + leaf.channel] = state;
      }
    }
    A leave = state;
    in_mode<true>(mode, [&](auto m) { leaf.template finish<decltype(m)::value>(state, leave); });
    const A ends[1] = {state};
    tracer.finish(ends);
    if (leaf.last >= 0) store_state<T>(g.leave, t.sequence, leaf.channel, leave);
    if (stays) {
      if (warp == kRadix - 1 && lane == 0) shared.ticket = next;
      __syncthreads();
      ticket = shared.ticket;
    } else {
      __syncwarp();
    }
    const auto write_out = [&](const Steps& s, int slot_number) {
      if (s.data == nullptr) return;
      const char* const slot = slots + slot_number * P::slot_bytes;
      char* const to = place_of(s);
      each_chunk<P, T>(lane, [&](int in_memory, int in_slot) {
        store_streaming(to + in_memory, load_vector<T>(slot + in_slot));
      });
    };
    if constexpr (kBackward) {
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (!P::has(P::vectors, k)) {
          write_out(g.din[k], P::din_slot(k));
        } else if (g.sum_slot[k] >= 0) {
          for (int by = 1; by < each; by *= 2) {
            leaf.sum[k] = leaf.sum[k] + shuffle_xor(leaf.sum[k], by);
          }
          const int held = 1 << g.across_log2;
          const Index at = (g.sum_slot[k] * g.tile_items + t.item) * g.groups + t.group;
          if (place == 0) {
            reinterpret_cast<A*>(g.sums)[at * held + (lane >> (5 - g.across_log2))] = leaf.sum[k];
          }
        }
      }
    } else {
      write_out(g.out, 0);
    }
    if (!stays) return;
    __syncwarp();  // before the slots are filled anew
  }
}

}  // namespace scanrnn::cuda
