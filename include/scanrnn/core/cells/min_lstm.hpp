// SPDX-License-Identifier: Apache-2.0
// The minimal LSTM (Feng et al. 2024, "Were RNNs all we needed?", section 3.2), with gates that add
// up to 1, per channel:
//
//   f = sigmoid(pf_t),  i = sigmoid(pi_t)        pf, pi (B,T,D) gates
//   f'_t = f / (f + i),  i'_t = i / (f + i)
//   h_t = f'_t h_{t-1} + i'_t g(z_t)             z (B,T,D) candidate
//
// In plain space, so that states may have any sign. Both sigmoids may underflow; the ratios don't:
// with f = 1 / (1 + exp(-pf)) they are
//
//   f' = a / (a + b),  i' = b / (a + b),  a = 1 + exp(-pi),  b = 1 + exp(-pf),
//
// and a and b are scaled, so that neither overflows nor both underflow. Infinite gates count as
// very large ones: of two that are -inf, each has half.
//
// Backward, with G_t = f'_{t+1} G_{t+1} + dh_t:
//   dz  = i' g'(z) G
//   dpf =  f' i' (1 - f) (h_{t-1} - g(z)) G,     i' (1 - f) = exp(-pf) / (a + b)
//   dpi = -f' i' (1 - i) (h_{t-1} - g(z)) G,     f' (1 - i) = exp(-pi) / (a + b)
#pragma once

#include "scanrnn/core/activation.hpp"
#include "scanrnn/core/cell.hpp"

namespace scanrnn {

/// kKnown: the activation, or -1.
template <int kKnown = -1>
struct MinLstm : CellBase {
  enum Input { kForget, kInput, kCandidate };
  static constexpr const char* name = "min_lstm";
  static constexpr int inputs = 3;
  static constexpr const char* names[inputs] = {"f", "i", "z"};
  static constexpr unsigned map_inputs = 0b111;
  static constexpr unsigned backward_inputs = 0b111;
  static constexpr unsigned output_inputs = 0;
  static constexpr unsigned gain_inputs = 1u << kForget | 1u << kInput;
  static constexpr unsigned state_inputs = 1u << kForget | 1u << kInput;
  static constexpr bool state_is_output = true;

  Activation activation = Activation::identity;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("activation", self.activation, Activation::identity, Activation::positive);
  }

  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const Gates<R> gates(in);
    return {gates.f, gates.i * activate(known_or(kKnown, activation), in[kCandidate])};
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R& h) const {
    return h;
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    return Gates<R>(in).f;
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&)[inputs], const R&, const R& dh) const {
    return dh;
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& h_prev, const R&, const R&, const R& g,
                           R (&din)[inputs]) const {
    const Gates<R> gates(in);
    const Activated<R> z = activated(known_or(kKnown, activation), in[kCandidate]);
    const R change = (h_prev - z.value) * g;
    din[kForget] = gates.f * gates.shut_f * change;
    din[kInput] = -(gates.i * gates.shut_i) * change;
    din[kCandidate] = gates.i * z.slope * g;
  }

 private:
  template <class R>
  struct Gates {
    R f, i;
    R shut_f, shut_i;  // i' (1 - f), f' (1 - i)

    SCANRNN_HD explicit Gates(const R (&in)[inputs]) {
      const ScaledExponentials<R> e = scaled_exponentials(in[kForget], in[kInput]);
      const R a = e.unit + e.q, b = e.unit + e.p;
      const R share = reciprocal(a + b);
      f = a * share;
      i = b * share;
      shut_f = e.p * share;
      shut_i = e.q * share;
    }
  };
};

struct MinLstmCell : MinLstm<> {
  struct Plain : MinLstm<0> {
    static bool suits(const MinLstmCell& cell) { return cell.activation == Activation::identity; }
  };
  using Cases = CellCases<Plain>;
};

}  // namespace scanrnn
