// SPDX-License-Identifier: Apache-2.0
// The gated impulse linear recurrence (Martin & Cundy 2018, "Parallelizing linear recurrent neural
// nets over sequence length", section 3.1), whose gates see the input alone, per channel:
//
//   p_t = sigmoid(pf_t)                          pf (B,T,D), or sigmoid(-pf_t) of an update gate
//   f_t = bound + (1 - bound) p_t                bound (D), optional: 0
//   h_t = f_t h_{t-1} + (1 - f_t) g(z_t)         z (B,T,D) candidate
//
// It serves HGRN (Qin et al. 2023, "Hierarchically gated recurrent neural network for sequence
// modeling", eq. 2-5: bound is the layer's lower bound, g silu), minGRU (Feng et al. 2024, "Were
// RNNs all we needed?", section 3.1: pf is the update gate's) and QRNN's f-pooling (g tanh).
//
// Backward, with G_t = f_{t+1} G_{t+1} + dh_t:
//   dz     = (1 - f) g'(z) G,      dpf = (1 - bound) p (1 - p) (h_{t-1} - g(z)) G  (or its
//   negative) dbound = (1 - p) (h_{t-1} - g(z)) G, summed.
//
// Where pf is infinite, f is exactly 1 (or the bound), the input exactly shut out, and dpf 0.
#pragma once

#include "scanrnn/core/activation.hpp"
#include "scanrnn/core/cell.hpp"

namespace scanrnn {

enum class Gate : int { forget = 0, update = 1 };

/// The options, where they are known: else -1.
template <int kKnownGate = -1, int kKnownActivation = -1, int kKnownBound = -1>
struct Gilr : CellBase {
  enum Input { kGate, kCandidate, kBound };
  static constexpr const char* name = "gilr";
  static constexpr int inputs = kKnownBound == 0 ? 2 : 3;
  static constexpr const char* names[] = {"f", "z", "bound"};
  static constexpr unsigned map_inputs = (1u << inputs) - 1;
  static constexpr unsigned backward_inputs = map_inputs;
  static constexpr unsigned output_inputs = 0;
  static constexpr unsigned vector_inputs = map_inputs & 1u << kBound;
  static constexpr unsigned gain_inputs = 1u << kGate | vector_inputs;
  static constexpr unsigned optional_inputs = vector_inputs;
  static constexpr unsigned state_inputs = gain_inputs;
  static constexpr bool state_is_output = true;
  /// Of tanh, keeping it gained nothing where the gate is all that takes exponentials beside it.
  static constexpr bool is_input_costly =
      is_costly(kKnownActivation) && kKnownActivation != static_cast<int>(Activation::tanh);

  Gate gate = Gate::forget;
  Activation activation = Activation::tanh;
  bool has_bound = false;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("gate", self.gate, Gate::forget, Gate::update);
    option("activation", self.activation, Activation::identity, Activation::positive);
  }

  void given(unsigned mask) { has_bound = (mask >> kBound & 1u) != 0; }

  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const R f = gain(in);
    return {f, input(in, f)};
  }
  template <class R>
  SCANRNN_HD R input(const R (&in)[inputs], const R& f) const {
    return forgotten(in, f) * activate(known_activation(), in[kCandidate]);
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R& h) const {
    return h;
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    const R p = opening(in);
    return bounded(in, p, Constant<R>::of(1) - p);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&)[inputs], const R&, const R& dh) const {
    return dh;
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& h_prev, const R&, const R&, const R& g,
                           R (&din)[inputs]) const {
    const R one = Constant<R>::of(1);
    const R p = opening(in);
    const R shut = complement(p, signed_gate(in[kGate]));
    const R f = bounded(in, p, one - p);
    const Activated<R> z = activated(known_activation(), in[kCandidate]);
    const R d_bound = rounded_product(shut * (h_prev - z.value), g);  // which is added up
    if constexpr (inputs > kBound) {
      din[kBound] = d_bound;
      din[kGate] = signed_gate((one - in[kBound]) * p) * d_bound;
    } else {
      din[kGate] = signed_gate(p) * d_bound;
    }
    din[kCandidate] = forgotten(in, f) * z.slope * g;
  }

 private:
  SCANRNN_HD Activation known_activation() const { return known_or(kKnownActivation, activation); }
  template <class R>
  SCANRNN_HD R forgotten(const R (&in)[inputs], const R& f) const {  // 1 - f
    const R& bound = in[inputs > kBound ? kBound : kGate];  // or nothing, where there is none
    return complement(f, opening(in), signed_gate(in[kGate]), known_or(kKnownBound, has_bound),
                      bound);
  }
  template <class R>
  SCANRNN_HD R signed_gate(const R& v) const {
    return known_or(kKnownGate, gate) == Gate::update ? -v : v;
  }
  template <class R>
  SCANRNN_HD R bounded(const R (&in)[inputs], const R& p, const R& shut) const {
    if constexpr (inputs > kBound) {
      if (known_or(kKnownBound, has_bound)) return fma(in[kBound], shut, p);
    }
    return p;
  }
  template <class R>
  SCANRNN_HD R opening(const R (&in)[inputs]) const {
    return sigmoid(signed_gate(in[kGate]));
  }
};

struct GilrCell : Gilr<> {
  /// GILR, minGRU and HGRN as their papers have them.
  template <Gate kGate, Activation kActivation, bool kHasBound>
  struct Case : Gilr<static_cast<int>(kGate), static_cast<int>(kActivation), kHasBound> {
    static bool suits(const GilrCell& cell) {
      return cell.gate == kGate && cell.activation == kActivation && cell.has_bound == kHasBound;
    }
  };
  using Cases = CellCases<Case<Gate::forget, Activation::tanh, false>,
                          Case<Gate::update, Activation::identity, false>,
                          Case<Gate::forget, Activation::silu, true>>;
};

}  // namespace scanrnn
