// SPDX-License-Identifier: Apache-2.0
// The real-gated linear recurrent unit (De et al. 2024, "Griffin: mixing gated linear recurrences
// with local attention for efficient language models", section 2.4), per channel:
//
//   r_t = sigmoid(pr_t),  i_t = sigmoid(pi_t)    pr, pi (B,T,D) gates
//   log a_t = -c softplus(lambda) r_t            lambda (D), c = 8 in the paper
//   h_t = a_t h_{t-1} + s_t i_t x_t,  s_t = sqrt(1 - a_t^2)      x (B,T,D)
//
// With e = exp(log a) - 1, which has full relative accuracy however close a is to 1,
// 1 - a^2 = -e (2 + e).
//
// Backward, with G_t = a_{t+1} G_{t+1} + dh_t and L = log a:
//   dx  = s i G,        dpi = s i (1 - i) x G
//   dL  = (a h_{t-1} + ds/dL i x) G,             ds/dL = -2 a^2 r(1 - a^2)
//   dpr = L (1 - r) dL,   dlambda = -c r sigmoid(lambda) dL, summed
//
// r(q) is the square root's derivative, 1 / (2 sqrt(q)), which has no bound as a goes to 1. It is
// taken as 1000 where it is more, that is where 1 - a^2 < 2.5e-7, as in the authors' own code: a
// single element of that kind would else outweigh the whole gradient, and at a = 1 itself turn it
// into NaN.
#pragma once

#include "scanrnn/core/cell.hpp"

namespace scanrnn {

/// Prepared, in[kLambda] is softplus(lambda).
template <bool kPrepared>
struct RgLru : CellBase {
  enum Input { kX, kGate, kInput, kLambda };
  static constexpr const char* name = "rg_lru";
  static constexpr int inputs = 4;
  static constexpr const char* names[inputs] = {"x", "r", "i", "lam"};
  static constexpr unsigned map_inputs = 0b1111;
  static constexpr unsigned backward_inputs = 0b1111;
  static constexpr unsigned output_inputs = 0;
  static constexpr unsigned gain_inputs = 1u << kGate | 1u << kLambda;
  static constexpr unsigned vector_inputs = 1u << kLambda;
  static constexpr unsigned state_inputs = 1u << kGate | 1u << kLambda;
  static constexpr bool state_is_output = true;
  static constexpr bool is_prepared = kPrepared;

  static constexpr double steepest_root = 1000;  ///< the bound on r

  double c = 8;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("c", self.c, 0.0, 1e6);
  }

  template <class R>
  SCANRNN_HD static void prepare(R (&in)[inputs]) {
    in[kLambda] = softplus(in[kLambda]);
  }
  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    const Decay<R> decay(*this, in);
    return {decay.a, gated_root(decay.rest, in[kInput]) * in[kX]};
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R& h) const {
    return h;
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    return Decay<R>(*this, in).a;
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&)[inputs], const R&, const R& dh) const {
    return dh;
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& h_prev, const R&, const R&, const R& g,
                           R (&din)[inputs]) const {
    const R one = Constant<R>::of(1);
    const Decay<R> decay(*this, in);
    const auto [root, inverse] = roots(decay.rest);
    const R i = sigmoid(in[kInput]);
    const R input = i * in[kX];
    const R root_slope =
        Constant<R>::of(0.5) * minimum(inverse, Constant<R>::of(2 * steepest_root));
    const R twice = decay.a + decay.a;
    const R d_log = decay.a * fma(-(twice * root_slope), input, h_prev) * g;
    din[kX] = root * i * g;
    din[kInput] = root * input * (one - i) * g;
    din[kGate] = decay.log_a * (one - decay.r) * d_log;
    din[kLambda] = Constant<R>::of(-c) * decay.r * softplus_slope(in[kLambda]) * d_log;
  }

 private:
  template <class R>
  struct Decay {
    R r, log_a, a, rest;  // rest: 1 - a^2

    SCANRNN_HD Decay(const RgLru& cell, const R (&in)[inputs]) {
      r = sigmoid(in[kGate]);
      const R rate = kPrepared ? in[kLambda] : softplus(in[kLambda]);
      log_a = Constant<R>::of(-cell.c) * rate * r;
      const Decayed<R> decay = decayed(log_a);
      a = decay.exp;
      rest = decay.rest;
    }
  };

  template <class R>
  SCANRNN_HD static R softplus_slope(const R& lambda) {
    return kPrepared ? -exponential(-lambda).minus_one : sigmoid(lambda);
  }
};

struct RgLruCell : RgLru<false> {
  using Prepared = RgLru<true>;
};

}  // namespace scanrnn
