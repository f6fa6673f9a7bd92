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

#include "scanrnn/core/cell.hpp"

namespace scanrnn {

enum class Activation : int { identity = 0, tanh = 1, relu = 2 };

struct SruCell {
  // Each (B,T,D); the biases (D), broadcast over batch and time.
  enum Input { kU, kForget, kReset, kSkip, kBiasForget, kBiasReset };
  static constexpr int inputs = 6;
  static constexpr unsigned map_inputs = 1u << kU | 1u << kForget | 1u << kBiasForget;
  static constexpr unsigned backward_inputs = (1u << inputs) - 1;
  static constexpr unsigned vector_inputs = 1u << kBiasForget | 1u << kBiasReset;
  static constexpr unsigned broadcast_inputs = 0;
  static constexpr bool state_is_output = false;

  Activation activation = Activation::identity;

  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const R f = gain(in);
    return {f, (Constant<R>::of(1) - f) * in[kU]};
  }
  template <class R>
  SCANRNN_HD R output(const R (&in)[inputs], const R& c) const {
    const R r = reset(in);
    return fma(r, activate(c) - in[kSkip], in[kSkip]);
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    return sigmoid(in[kForget] + in[kBiasForget]);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&in)[inputs], const R& c, const R& dh) const {
    const R through = dh * reset(in);
    switch (activation) {
      case Activation::tanh: {
        const R y = tanh(c);
        return through * (Constant<R>::of(1) - y * y);
      }
      case Activation::relu:
        return through * is_positive(c);
      default:
        return through;
    }
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& c_prev, const R& c, const R& dh,
                           const R& g, R (&din)[inputs]) const {
    const R one = Constant<R>::of(1);
    const R f = gain(in);
    const R r = reset(in);
    const R keep = one - f;
    const R pass = one - r;
    din[kU] = keep * g;
    din[kForget] = f * keep * (c_prev - in[kU]) * g;
    din[kReset] = r * pass * (activate(c) - in[kSkip]) * dh;
    din[kSkip] = pass * dh;
    din[kBiasForget] = din[kForget];
    din[kBiasReset] = din[kReset];
  }

 private:
  template <class R>
  SCANRNN_HD R reset(const R (&in)[inputs]) const {
    return sigmoid(in[kReset] + in[kBiasReset]);
  }
  template <class R>
  SCANRNN_HD R activate(const R& c) const {
    switch (activation) {
      case Activation::tanh:
        return tanh(c);
      case Activation::relu:
        return positive_part(c);
      default:
        return c;
    }
  }
};

}  // namespace scanrnn
