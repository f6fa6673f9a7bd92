// SPDX-License-Identifier: Apache-2.0
// The quasi-recurrent network's fo- and ifo-pooling (Bradbury et al. 2017, "Quasi-recurrent neural
// networks", eq. 4 and 5), per channel:
//
//   f_t = sigmoid(pf_t),  o_t = sigmoid(po_t)    pf, po (B,T,D) gates
//   i_t = sigmoid(pi_t), or 1 - f_t              pi (B,T,D), optional
//   c_t = f_t c_{t-1} + i_t g(z_t)               z (B,T,D) candidate, g tanh in the paper
//   h_t = o_t c_t
//
// Its f-pooling is gilr.hpp's cell. Zoneout keeps c_{t-1}, which is pf = +inf (and pi = -inf): then
// f is exactly 1, the input exactly shut out, and both gates' gradients 0.
//
// Backward, with G_t = f_{t+1} G_{t+1} + o_t dh_t:
//   dz  = i g'(z) G,               dpo = o (1 - o) c dh
//   dpf = f (1 - f) c_{t-1} G,     dpi = i (1 - i) g(z) G
// and without pi dpf = f (1 - f) (c_{t-1} - g(z)) G.
#pragma once

#include "scanrnn/core/activation.hpp"
#include "scanrnn/core/cell.hpp"

namespace scanrnn {

/// Opened, gates and candidate are in the place of the inputs that they come from; but for a
/// candidate whose activation's slope can't be told from its value.
/// The options, where they are known: else -1.
template <bool kOpened, int kKnownActivation = -1, int kKnownInput = -1>
struct Qrnn : CellBase {
  enum Input { kCandidate, kForget, kOutput, kInput };
  static constexpr const char* name = "qrnn";
  static constexpr const char* state = "c";
  static constexpr int inputs = kKnownInput == 0 ? 3 : 4;
  static constexpr int left_out = 4 - inputs;
  static constexpr const char* names[] = {"z", "f", "o", "i"};
  static constexpr unsigned backward_inputs = (1u << inputs) - 1;
  static constexpr unsigned map_inputs = backward_inputs & ~(1u << kOutput);
  static constexpr unsigned output_inputs = 1u << kOutput;
  static constexpr unsigned adjoint_inputs = 1u << kOutput;
  static constexpr unsigned gain_inputs = 1u << kForget;
  static constexpr unsigned optional_inputs = map_inputs & 1u << kInput;
  static constexpr unsigned opened_inputs = backward_inputs;
  static constexpr bool state_is_output = false;
  static constexpr bool is_input_costly = is_costly(kKnownActivation);

  Activation activation = Activation::tanh;
  bool has_input_gate = false;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("activation", self.activation, Activation::identity, Activation::positive);
  }
  void given(unsigned mask) { has_input_gate = (mask >> kInput & 1u) != 0; }

  template <class R>
  SCANRNN_HD void open(R (&in)[inputs]) const {
    in[kForget] = gain(in);
    in[kOutput] = output_gate(in);
    if constexpr (inputs > kInput) {
      if (has_gate()) in[kInput] = sigmoid(in[kInput]);
    }
    in[kCandidate] = open_activation(known_activation(), in[kCandidate]);
  }
  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const R f = gain(in);
    return {f, input(in, f)};
  }
  template <class R>
  SCANRNN_HD R input(const R (&in)[inputs], const R& f) const {
    return input_gate(in, f) * candidate(in).value;
  }
  template <class R>
  SCANRNN_HD R output(const R (&in)[inputs], const R& c) const {
    return output_gate(in) * c;
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    if constexpr (kOpened) return in[kForget];
    return sigmoid(in[kForget]);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&in)[inputs], const R&, const R& dh) const {
    return dh * output_gate(in);
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& c_prev, const R& c, const R& dh,
                           const R& g, R (&din)[inputs]) const {
    const R one = Constant<R>::of(1), zero = Constant<R>::of(0);
    const R f = gain(in);
    const R i = input_gate(in, f);
    const R o = output_gate(in);
    const Activated<R> z = candidate(in);
    din[kCandidate] = i * z.slope * g;
    din[kForget] = f * forgotten(in, f) * (has_gate() ? c_prev : c_prev - z.value) * g;
    din[kOutput] = o * (one - o) * c * dh;
    if constexpr (inputs > kInput) din[kInput] = has_gate() ? i * (one - i) * z.value * g : zero;
  }

 private:
  SCANRNN_HD Activation known_activation() const { return known_or(kKnownActivation, activation); }
  SCANRNN_HD bool has_gate() const { return known_or(kKnownInput, has_input_gate); }
  template <class R>
  SCANRNN_HD R forgotten(const R (&in)[inputs], const R& f) const {  // 1 - f
    if constexpr (kOpened) return Constant<R>::of(1) - f;
    return complement(f, in[kForget]);
  }
  template <class R>
  SCANRNN_HD R input_gate(const R (&in)[inputs], const R& f) const {
    if constexpr (inputs > kInput) {
      if (has_gate()) return kOpened ? in[kInput] : sigmoid(in[kInput]);
    }
    return forgotten(in, f);
  }
  template <class R>
  SCANRNN_HD R output_gate(const R (&in)[inputs]) const {
    if constexpr (kOpened) return in[kOutput];
    return sigmoid(in[kOutput]);
  }
  template <class R>
  SCANRNN_HD Activated<R> candidate(const R (&in)[inputs]) const {
    if constexpr (kOpened) return opened_activation(known_activation(), in[kCandidate]);
    return activated(known_activation(), in[kCandidate]);
  }
};

struct QrnnCell : Qrnn<false> {
  using Opened = Qrnn<true>;
  /// As the paper has it, with an input gate and without.
  template <bool kHasInput>
  struct Case : Qrnn<false, static_cast<int>(Activation::tanh), kHasInput> {
    using Opened = Qrnn<true, static_cast<int>(Activation::tanh), kHasInput>;
    static bool suits(const QrnnCell& cell) {
      return cell.activation == Activation::tanh && cell.has_input_gate == kHasInput;
    }
  };
  using Cases = CellCases<Case<false>, Case<true>>;
};

}  // namespace scanrnn
