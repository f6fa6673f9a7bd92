// SPDX-License-Identifier: Apache-2.0
// The plain way: one thread runs one channel of one sequence from its first step to its last. It is
// the reference for the others, and what they must never be slower than.
#pragma once

#include "cuda/pass.cuh"

namespace scanrnn::cuda {

template <class Cell, class T, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    run_serial(const __grid_constant__ Args g, const __grid_constant__ Cell cell) {
  using P = Pass<Cell, kBackward>;
  using A = Acc<T>;
  using R = Lanes<T, 1>;
  constexpr int kAhead = 8;  // steps whose inputs are on their way at once
  const A zero = Constant<A>::of(0), one = Constant<A>::of(1);

  const Index worker = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  const Index n = worker / g.channels, d = worker % g.channels;
  if (n >= g.sequences) return;
  const Span span = span_of(g, n);
  const Index length = span.end - span.begin;

  // Steps of the pass, [0, length), to places along time.
  const bool ascending = kBackward == g.reverse;
  const Index from = ascending ? span.begin : span.end - 1;
  const Index down = ascending ? 1 : -1;
  const auto read = [&](const Steps& s, Index i) -> A {
    if (s.data == nullptr) return zero;
    return load_element<T>(s.data, span.row * s.batch + (from + i * down) * s.time + d * s.channel,
                           s.wide);
  };
  const auto write = [&](const Steps& s, Index i, const A& value) {
    if (s.data == nullptr) return;
    store_element<T>(s.data, span.row * s.batch + (from + i * down) * s.time + d * s.channel,
                     s.wide, value);
  };
  const auto is_reset = [&](Index i) {
    return g.reset != nullptr &&
           g.reset[span.row * g.reset_batch + (from + i * down) * g.reset_time] != 0;
  };
  Tile tile;  // only for checkpoint_row
  tile.begin = span.begin;
  tile.sequence = n;
  tile.row = span.row;

  R vector_in[P::inputs];
  A sum[P::inputs];
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
    sum[k] = zero;
    vector_in[k] = {zero};
    if (P::has(P::vectors, k) && g.in[k].data != nullptr) {
      vector_in[k] = {load_element<T>(g.in[k].data, d * g.in[k].channel, g.in[k].wide)};
    }
  }
  if constexpr (Cell::is_prepared) Cell::prepare(vector_in);
  const auto read_inputs = [&](unsigned set, Index i, R* in) {
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(P::vectors, k)) {
        in[k] = vector_in[k];
      } else if (P::has(set, k)) {
        in[k] = {read(g.in[k], i)};
      }
    }
  };
  const auto after_step = [](const Affine<R>& step, A before, bool reset) {
    return reset ? step.x.lane[0] : fma(step.a.lane[0], before, step.x.lane[0]);
  };

  A state = load_state<T>(g.enter, n, d);
  if constexpr (!kBackward) {
    for (Index i0 = 0; i0 < length; i0 += kAhead) {
      R in[kAhead][P::inputs];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (i0 + j < length) read_inputs(P::all, i0 + j, in[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const Index i = i0 + j;
        if (i >= length) break;
        if (!Cell::state_is_output && g.checkpoints != nullptr && i % kLeafSteps == 0) {
          reinterpret_cast<A*>(g.checkpoints)[checkpoint_row(g, tile, i) * g.channels + d] = state;
        }
        state = after_step(cell.step(in[j]), state, is_reset(i));
        write(g.out, i, cell.output(in[j], R{state}).lane[0]);
      }
    }
    store_state<T>(g.leave, n, d, state);
  } else {
    const A first = load_state<T>(g.initial, n, d);  // the state before the sequence
    A gain = one;
    bool reset = false;
    A own_states[P::recomputes ? kLeafSteps + 1 : 1];
    for (Index i0 = 0; i0 < length;) {
      // Up to the next checkpoint, where states are recomputed from one.
      Index end = i0 + kAhead < length ? i0 + kAhead : length;
      if constexpr (P::recomputes) {
        const Index last_step = length - 1 - i0;  // in the order of time
        const Index leaf_step = last_step - last_step % kLeafSteps;
        end = length - leaf_step;
        A run = reinterpret_cast<const A*>(
            g.checkpoints)[checkpoint_row(g, tile, leaf_step) * g.channels + d];
        own_states[0] = run;
        for (Index i = end - 1; i >= i0; --i) {
          R in[P::inputs];
          read_inputs(Cell::map_inputs, i, in);
          run = after_step(cell.step(in), run, is_reset(i));
          own_states[end - i] = run;
        }
      }
      A after = zero;
      if constexpr (P::reads_states) after = read(g.states, i0);
      for (Index i = i0; i < end; ++i) {
        R in[P::inputs], din[P::inputs];
        read_inputs(Cell::backward_inputs, i, in);
        const R dy{read(g.dy, i)};
        const bool reset_here = is_reset(i);
        A before;
        if constexpr (P::recomputes) {
          after = own_states[end - i];
          before = own_states[end - 1 - i];
        } else {
          before = i + 1 < length ? read(g.states, i + 1) : first;
        }
        if (i + 1 == length) before = first;
        const R x = cell.output_adjoint(in, R{after}, dy);
        state = after_step({R{gain}, x}, state, reset);
        gain = cell.gain(in).lane[0];
        cell.pullback(in, R{reset_here ? zero : before}, R{after}, dy, R{state}, din);
        reset = reset_here;
        if constexpr (P::reads_states) after = before;
#pragma unroll
        for (int k = 0; k < P::inputs; ++k) {
          if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
            sum[k] = sum[k] + din[k].lane[0];
          } else if (!P::has(P::vectors, k)) {
            write(g.din[k], i, din[k].lane[0]);
          }
        }
      }
      i0 = end;
    }
    const A leave = length == 0 ? state : (reset ? zero : product(gain, state));
    store_state<T>(g.leave, n, d, leave);
#pragma unroll
    for (int k = 0; k < P::inputs; ++k) {
      if (P::has(P::summed, k) && g.sum_slot[k] >= 0) {
        reinterpret_cast<A*>(g.sums)[(g.sum_slot[k] * g.sequences + n) * g.channels + d] = sum[k];
      }
    }
  }

  if (g.lengths != nullptr) {
    const Index pad_begin = span.begin > 0 ? 0 : length;
    const auto pad = [&](const Steps& s) {
      if (s.data == nullptr) return;
      for (Index i = pad_begin; i < pad_begin + g.time - length; ++i) {
        store_element<T>(s.data, span.row * s.batch + i * s.time + d * s.channel, s.wide, zero);
      }
    };
    if constexpr (kBackward) {
#pragma unroll
      for (int k = 0; k < P::inputs; ++k) {
        if (!P::has(P::vectors, k) && g.sum_slot[k] < 0) pad(g.din[k]);
      }
    } else {
      pad(g.out);
    }
  }
}

}  // namespace scanrnn::cuda
