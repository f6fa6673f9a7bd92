// SPDX-License-Identifier: Apache-2.0
// The simple recurrent unit without the v * c term (Lei et al. 2018, "Simple recurrent units for
// highly parallelizable recurrence", section 3, v_f = v_r = 0), per channel:
//
//   f_t = sigmoid(pf_t + bf)            pf = W_f x   forget gate
//   r_t = sigmoid(pr_t + br)            pr = W_r x   reset gate
//   c_t = f_t c_{t-1} + (1 - f_t) u_t   u  = W x     candidate
//   h_t = r_t g(c_t) + (1 - r_t) s_t    s  = x or a projection of it (the highway connection)
//
// Backward, with G_t the whole gradient of c_t:
//   G_t  = f_{t+1} G_{t+1} + dh_t r_t g'(c_t)
//   du   = (1 - f) G,            dpf = f (1 - f) (c_{t-1} - u) G
//   ds   = (1 - r) dh,           dpr = r (1 - r) (g(c) - s) dh
// and the biases' gradients are those of pf and pr, summed.
#pragma once

#include "scanrnn/core/activation.hpp"
#include "scanrnn/core/cell.hpp"

namespace scanrnn {

/// Opened, in[kForget] and in[kReset] are the gates. kKnown: the activation, or -1.
template <bool kOpened, int kKnown = -1>
struct Sru : CellBase {
  // Each (B,T,D); the biases (D), broadcast over batch and time.
  enum Input { kU, kForget, kReset, kSkip, kBiasForget, kBiasReset };
  static constexpr const char* name = "sru";
  static constexpr const char* state = "c";
  static constexpr int inputs = 6;
  static constexpr const char* names[inputs] = {"u", "f", "r", "skip", "bias_f", "bias_r"};
  static constexpr unsigned map_inputs = 1u << kU | 1u << kForget | 1u << kBiasForget;
  static constexpr unsigned backward_inputs = (1u << inputs) - 1;
  static constexpr unsigned output_inputs = 1u << kReset | 1u << kSkip | 1u << kBiasReset;
  static constexpr unsigned adjoint_inputs = 1u << kReset | 1u << kBiasReset;
  static constexpr unsigned gain_inputs = 1u << kForget | 1u << kBiasForget;
  static constexpr unsigned vector_inputs = 1u << kBiasForget | 1u << kBiasReset;
  static constexpr unsigned optional_inputs = vector_inputs | 1u << kSkip;
  static constexpr unsigned opened_inputs = 1u << kForget | 1u << kReset;
  static constexpr bool state_is_output = false;

  Activation activation = Activation::identity;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("activation", self.activation, Activation::identity, kLast);
  }

  template <class R>
  SCANRNN_HD void open(R (&in)[inputs]) const {
    in[kForget] = gain(in);
    in[kReset] = reset(in);
  }
  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const R f = gain(in);
    return {f, input(in, f)};
  }
  template <class R>
  SCANRNN_HD R input(const R (&in)[inputs], const R& f) const {
    return forgotten(in, f) * in[kU];
  }
  template <class R>
  SCANRNN_HD R output(const R (&in)[inputs], const R& c) const {
    const R r = reset(in);
    return fma(r, activate<kLast>(known_or(kKnown, activation), c) - in[kSkip], in[kSkip]);
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    if constexpr (kOpened) return in[kForget];
    return sigmoid(in[kForget], in[kBiasForget]);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&in)[inputs], const R& c, const R& dh) const {
    return dh * reset(in) * activated<kLast>(known_or(kKnown, activation), c).slope;
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& c_prev, const R& c, const R& dh,
                           const R& g, R (&din)[inputs]) const {
    const R one = Constant<R>::of(1);
    const R f = gain(in);
    const R r = reset(in);
    const R pass = one - r;
    din[kU] = (one - f) * g;  // with `forgotten` backward took 7% longer on the CPU
    din[kSkip] = pass * dh;
    din[kForget] = f * (c_prev - in[kU]) * din[kU];
    din[kReset] = r * (activate<kLast>(known_or(kKnown, activation), c) - in[kSkip]) * din[kSkip];
    din[kBiasForget] = din[kForget];
    din[kBiasReset] = din[kReset];
  }

 private:
  static constexpr Activation kLast = Activation::relu;

  template <class R>
  SCANRNN_HD R forgotten(const R (&in)[inputs], const R& f) const {  // 1 - f
    if constexpr (kOpened) return Constant<R>::of(1) - f;
    return complement(f, in[kForget] + in[kBiasForget]);
  }
  template <class R>
  SCANRNN_HD R reset(const R (&in)[inputs]) const {
    if constexpr (kOpened) return in[kReset];
    return sigmoid(in[kReset], in[kBiasReset]);
  }
};

struct SruCell : Sru<false> {
  using Opened = Sru<true>;
  struct Plain : Sru<false, 0> {
    using Opened = Sru<true, 0>;
    static bool suits(const SruCell& cell) { return cell.activation == Activation::identity; }
  };
  using Cases = CellCases<Plain>;
};

}  // namespace scanrnn
