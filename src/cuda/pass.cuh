// SPDX-License-Identifier: Apache-2.0
// What a pass over a cell reads and writes, worked out when the kernel is compiled.
#pragma once

#include "cuda/lanes.cuh"
#include "cuda/tile.cuh"
#include "cuda/trace.cuh"

namespace scanrnn::cuda {

/// A cell's forward or backward pass. Arrays that have time in them are staged in shared memory, a
/// slot each; outputs that can't be stored straight from registers take the slots of arrays that
/// have been read.
template <class C, bool kBackwardPass>
struct Pass {
  using Cell = C;
  static constexpr bool backward = kBackwardPass;
  static constexpr int inputs = Cell::inputs;
  static constexpr unsigned all = (1u << inputs) - 1;
  static constexpr unsigned vectors = Cell::vector_inputs;
  static constexpr unsigned staged = (backward ? Cell::backward_inputs : all) & ~vectors;
  static constexpr bool reads_states = backward && Cell::state_is_output;
  static constexpr bool recomputes = backward && !Cell::state_is_output;
  /// Inputs whose gradient may be summed over time.
  static constexpr unsigned summed = Cell::vector_inputs | Cell::broadcast_inputs;

  static constexpr SCANRNN_HD int count(unsigned set) {
    int n = 0;
    for (; set != 0; set &= set - 1) ++n;
    return n;
  }
  static constexpr SCANRNN_HD int lowest(unsigned set) {
    return set == 0 ? 0 : count((set & -set) - 1);
  }
  static constexpr SCANRNN_HD unsigned highest(unsigned set) {  // of which all others are lower
    while ((set & (set - 1)) != 0) set &= set - 1;
    return set;
  }
  static constexpr SCANRNN_HD bool has(unsigned set, int input) { return (set >> input & 1u) != 0; }
  /// Inputs that nothing reads until states, or their adjoints, are known. Whole tiles take them
  /// from memory then.
  static constexpr unsigned lastly =
      Cell::step_is_input ? 0
      : reads_states      ? staged & ~(Cell::gain_inputs & Cell::map_inputs)
                          : staged & ~(Cell::map_inputs | (backward ? Cell::adjoint_inputs : 0));
  /// What the map reads comes first, those last.
  static constexpr SCANRNN_HD int slot(int input) {
    constexpr unsigned first = staged & Cell::map_inputs & ~lastly;
    constexpr unsigned then = staged & ~first & ~lastly;
    const unsigned below = (1u << input) - 1u;
    if (has(first, input)) return count(first & below);
    if (!has(lastly, input)) return count(first) + count(then & below);
    return count(first | then) + (backward ? 1 : 0) + (reads_states ? 1 : 0) +
           count(lastly & below);
  }
  static constexpr int dy_slot = count(staged & ~lastly);
  static constexpr int states_slot = dy_slot + 1;
  static constexpr int slots = count(staged) + (backward ? 1 : 0) + (reads_states ? 1 : 0);
  /// Forward runs every step twice. What the first run has computed takes the place of two inputs
  /// that nobody needs any more, where elements have as many bits as what is computed.
  static constexpr unsigned free = staged & Cell::map_inputs & ~Cell::output_inputs;
  template <class T>
  static constexpr bool keeps_steps =
      !backward && !Cell::step_is_input && sizeof(T) == sizeof(Acc<T>) && count(free) >= 2;
  /// Whether kernels have a way without tests, too. Of cells float64 hasn't: it is for checking
  /// others, and would be the largest part of a library for all architectures.
  template <class T>
  static constexpr bool has_plain = Cell::step_is_input || sizeof(T) <= sizeof(float);
  /// Gates of cells vary: only the scan's gains are carried to more digits.
  template <class T>
  using Loss = std::conditional_t<Cell::step_is_input, typename GainProduct<T>::Loss, NoLoss>;
  template <class T>
  static constexpr bool keeps_loss = !std::is_same_v<Loss<T>, NoLoss>;
  static constexpr int kept_a = slot(lowest(free)), kept_x = slot(lowest(free & (free - 1)));
  static constexpr unsigned of_gain = staged & Cell::map_inputs & Cell::gain_inputs;
  static constexpr unsigned of_input = staged & Cell::map_inputs & ~Cell::gain_inputs;
  /// Backward runs every step four times where states are recomputed: gates are opened once and
  /// take the place of the inputs that they come from.
  template <class T>
  static constexpr bool opens = recomputes && opens_gates<Cell> && sizeof(T) == sizeof(Acc<T>);
  /// Of whole tiles of 16 bits a thread holds the gains in registers.
  template <class T>
  static constexpr bool holds_gates =
      recomputes && opens_gates<Cell> && of_gain != 0 && 2 * sizeof(T) == sizeof(Acc<T>);
  template <class T>
  using Opened = std::conditional_t<opens<T>, OpenedType<Cell>, Cell>;
  /// Three inputs of 16 bits leave room for the gains of whole tiles, and for half of what steps
  /// add, of which a thread holds the other half in registers.
  template <class T>
  static constexpr bool splits_steps =
      !backward && !Cell::step_is_input && count(free) >= 3 && 2 * sizeof(T) == sizeof(Acc<T>);
  static constexpr int split_slot = slot(lowest(free & (free - 1) & ((free & (free - 1)) - 1)));
  /// Where what steps add takes exponentials, two are enough: a thread holds both halves.
  template <class T>
  static constexpr bool holds_steps = !backward && !Cell::step_is_input && Cell::is_input_costly &&
                                      count(free) == 2 && 2 * sizeof(T) == sizeof(Acc<T>);
  /// Else two leave room for the gains alone: these take the places of two inputs, of which a
  /// thread holds one that it needs again in registers, where the rest of a step is had from them.
  template <class T>
  static constexpr bool keeps_gains =
      !backward && HasInput<Cell>::value && of_gain != 0 && of_input != 0 &&
      2 * sizeof(T) == sizeof(Acc<T>) && !splits_steps<T> && !holds_steps<T>;
  /// Inputs that `output` alone reads. Where states are recomputed their gradients don't wait for
  /// the adjoint of the state, and what dy adds to that can take dy's place.
  static constexpr unsigned only_output =
      (Cell::output_inputs & Cell::map_inputs) == 0 ? Cell::output_inputs & all : 0;
  template <class T>
  static constexpr unsigned early = recomputes && sizeof(T) == sizeof(Acc<T>) ? only_output : 0;
  /// What the first run of the steps reads. Forward and recomputed states take the map, other
  /// adjoints the gain and dy.
  static constexpr unsigned first_inputs =
      staged & (backward && !recomputes ? Cell::gain_inputs & Cell::map_inputs : Cell::map_inputs);
  /// Whether the rest may arrive later. The scan has no work to do meanwhile.
  static constexpr bool has_late = !Cell::step_is_input;
  static constexpr SCANRNN_HD bool is_late(int slot_number) {
    if (!has_late) return false;
    if (backward && slot_number == dy_slot) return recomputes;
    if (reads_states && slot_number == states_slot) return true;
    for (int k = 0; k < inputs; ++k) {
      if (has(staged, k) && slot(k) == slot_number) return !has(first_inputs, k);
    }
    return false;
  }
  /// Where a gradient goes: its input's place, or that of dy.
  static constexpr SCANRNN_HD int din_slot(int input) {
    return has(staged, input) ? slot(input) : dy_slot;
  }
};

/// The array in a slot.
template <class P>
__device__ __forceinline__ const Steps& staged_array(const Args& g, int slot) {
  if constexpr (P::backward) {
    if (slot == P::dy_slot) return g.dy;
    if (P::reads_states && slot == P::states_slot) return g.states;
  }
#pragma unroll
  for (int k = 0; k < P::inputs; ++k) {
    if (P::has(P::staged, k) && P::slot(k) == slot) return g.in[k];
  }
  return g.in[0];
}

/// Row of the (rows, D) array of checkpoints that holds the state before a step, a multiple of
/// kLeafSteps.
__device__ __forceinline__ Index checkpoint_row(const Args& g, const Tile& t, Index step) {
  const Index row = g.cu_seqlens != nullptr ? t.begin / kLeafSteps + t.sequence
                                            : t.row * (g.time / kLeafSteps + 1);
  return row + step / kLeafSteps;
}

}  // namespace scanrnn::cuda
