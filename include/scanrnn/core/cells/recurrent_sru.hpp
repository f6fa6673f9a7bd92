// SPDX-License-Identifier: Apache-2.0
// The simple recurrent unit with its v * c terms (Lei et al. 2018, "Simple recurrent units for
// highly parallelizable recurrence", eq. 1 to 4), per channel:
//
//   f_t = sigmoid(pf_t + v_f c_{t-1} + b_f)      u, pf, pr, s as in sru.hpp
//   c_t = f_t c_{t-1} + (1 - f_t) u_t            v_f, v_r (D) recurrent weights
//   r_t = sigmoid(pr_t + v_r c_{t-1} + b_r)      b_f, b_r (D) biases, optional
//   h_t = r_t g(c_t) + (1 - r_t) s_t
//
// Backward, with C_t what later steps hand back to c_t and G = C + dh r g'(c_t):
//   du  = (1 - f) G,             dpf = f (1 - f) (c_{t-1} - u) G
//   ds  = (1 - r) dh,            dpr = r (1 - r) (g(c_t) - s) dh
//   dc_{t-1} = f G + v_f dpf + v_r dpr
// and dv_f, dv_r, db_f, db_r are the sums of dpf c_{t-1}, dpr c_{t-1}, dpf, dpr.
#pragma once

#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn {

struct RecurrentSruCell : NonlinearCellBase {
  enum Input { kU, kForget, kReset, kSkip, kWeightForget, kWeightReset, kBiasForget, kBiasReset };
  static constexpr const char* name = "recurrent_sru";
  static constexpr int inputs = 8;
  static constexpr const char* names[inputs] = {"u",   "f",   "r",      "skip",
                                                "v_f", "v_r", "bias_f", "bias_r"};
  static constexpr unsigned vector_inputs = 0b11110000;
  static constexpr unsigned optional_inputs = 1u << kSkip | 1u << kBiasForget | 1u << kBiasReset;
  static constexpr int states = 1;
  static constexpr const char* state_names[states] = {"c"};
  static constexpr int output_state = -1;
  static constexpr int kept_state = 0;
  static constexpr double bounds[states] = {0};

  Activation activation = Activation::identity;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("activation", self.activation, Activation::identity, kLast);
  }

  template <class R, class S>
  SCANRNN_HD void step(const R (&in)[inputs], S (&c)[states]) const {
    const S f = sigmoid((in[kForget] + in[kBiasForget]) + in[kWeightForget] * c[0]);
    c[0] = in[kU] + f * (c[0] - in[kU]);
  }
  template <class R>
  SCANRNN_HD R output(const R (&in)[inputs], const R (&before)[states],
                      const R (&after)[states]) const {
    const R r = sigmoid((in[kReset] + in[kBiasReset]) + in[kWeightReset] * before[0]);
    return fma(r, activate<kLast>(activation, after[0]) - in[kSkip], in[kSkip]);
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R (&before)[states],
                           const R (&after)[states], const R& dy, const R (&adjoint)[states],
                           R (&din)[inputs], R (&dbefore)[states]) const {
    const R one = Constant<R>::of(1);
    const R c = before[0];
    const R f = sigmoid((in[kForget] + in[kBiasForget]) + in[kWeightForget] * c);
    const R r = sigmoid((in[kReset] + in[kBiasReset]) + in[kWeightReset] * c);
    const Activated<R> y = activated<kLast>(activation, after[0]);
    const R g = adjoint[0] + dy * r * y.slope;
    din[kU] = (one - f) * g;
    din[kForget] = f * (one - f) * (c - in[kU]) * g;
    din[kReset] = r * (one - r) * (y.value - in[kSkip]) * dy;
    din[kSkip] = (one - r) * dy;
    din[kWeightForget] = din[kForget] * c;
    din[kWeightReset] = din[kReset] * c;
    din[kBiasForget] = din[kForget];
    din[kBiasReset] = din[kReset];
    dbefore[0] = f * g + in[kWeightForget] * din[kForget] + in[kWeightReset] * din[kReset];
  }

 private:
  static constexpr Activation kLast = Activation::relu;
};

}  // namespace scanrnn
