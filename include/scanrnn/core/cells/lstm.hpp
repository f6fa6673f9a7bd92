// SPDX-License-Identifier: Apache-2.0
// The long short-term memory with diagonal recurrent weights (Hochreiter and Schmidhuber 1997;
// peepholes: Gers et al. 2002, "Learning precise timing with LSTM recurrent networks"; coupled
// gates: Greff et al. 2017, "LSTM: a search space odyssey", section IV), per channel:
//
//   f_t = sigmoid(pf_t + u_f h_{t-1} + w_f c_{t-1})    pf, pg, po, pi (B,T,D)
//   i_t = sigmoid(pi_t + u_i h_{t-1} + w_i c_{t-1})    u (D) recurrent weights
//   g_t = tanh(pg_t + u_g h_{t-1})                     w (D) peepholes, optional
//   c_t = f_t c_{t-1} + i_t g_t
//   o_t = sigmoid(po_t + u_o h_{t-1} + w_o c_t)
//   h_t = o_t tanh(c_t)
//
// Without pi the gates are coupled: i_t = 1 - f_t.
//
// Backward, with H_t and C_t what later steps hand back to h_t and c_t, dh = dy + H, t = tanh(c_t):
//   dpo = dh t o (1 - o),    dc = C + dh o (1 - t^2) + w_o dpo
//   dpf = dc c_{t-1} f (1 - f),   dpi = dc g i (1 - i),   dpg = dc i (1 - g^2)
//   dh_{t-1} = u_f dpf + u_i dpi + u_g dpg + u_o dpo,   dc_{t-1} = dc f + w_f dpf + w_i dpi
// and with coupled gates dpf = dc (c_{t-1} - g) f (1 - f).
#pragma once

#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn {

struct DiagonalLstmCell : NonlinearCellBase {
  enum Input {
    kForget,
    kCandidate,
    kOutput,
    kInput,
    kWeightForget,
    kWeightCandidate,
    kWeightOutput,
    kWeightInput,
    kPeepForget,
    kPeepOutput,
    kPeepInput
  };
  static constexpr const char* name = "diagonal_lstm";
  static constexpr int inputs = 11;
  static constexpr const char* names[inputs] = {"f",   "g",   "o",   "i",   "u_f", "u_g",
                                                "u_o", "u_i", "w_f", "w_o", "w_i"};
  static constexpr unsigned vector_inputs = 0b11111110000;
  static constexpr unsigned optional_inputs =
      1u << kInput | 1u << kWeightInput | 1u << kPeepForget | 1u << kPeepOutput | 1u << kPeepInput;
  static constexpr int states = 2;
  static constexpr const char* state_names[states] = {"h", "c"};
  static constexpr int kept_state = 1;
  static constexpr double bounds[states] = {1, 0};

  bool is_coupled = false;
  void given(unsigned mask) { is_coupled = (mask >> kInput & 1u) == 0; }

  template <class R, class S>
  SCANRNN_HD void step(const R (&in)[inputs], S (&state)[states]) const {
    const S h = state[0], c = state[1];
    const S f = sigmoid((in[kForget] + in[kWeightForget] * h) + in[kPeepForget] * c);
    const S g = tanh(in[kCandidate] + in[kWeightCandidate] * h);
    if (is_coupled) {
      state[1] = g + f * (c - g);
    } else {
      state[1] = f * c + sigmoid((in[kInput] + in[kWeightInput] * h) + in[kPeepInput] * c) * g;
    }
    state[0] = sigmoid((in[kOutput] + in[kWeightOutput] * h) + in[kPeepOutput] * state[1]) *
               tanh(state[1]);
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R (&)[states], const R (&after)[states]) const {
    return after[0];
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R (&before)[states],
                           const R (&after)[states], const R& dy, const R (&adjoint)[states],
                           R (&din)[inputs], R (&dbefore)[states]) const {
    const R one = Constant<R>::of(1), zero = Constant<R>::of(0);
    const R h = before[0], c = before[1];
    const R f = sigmoid((in[kForget] + in[kWeightForget] * h) + in[kPeepForget] * c);
    const R g = tanh(in[kCandidate] + in[kWeightCandidate] * h);
    const R o = sigmoid((in[kOutput] + in[kWeightOutput] * h) + in[kPeepOutput] * after[1]);
    const R t = tanh(after[1]);
    const R dh = dy + adjoint[0];
    din[kOutput] = dh * t * o * (one - o);
    const R dc = adjoint[1] + dh * o * (one - t * t) + in[kPeepOutput] * din[kOutput];
    R i = one - f, change = c - g;
    din[kInput] = zero;
    if (!is_coupled) {
      i = sigmoid((in[kInput] + in[kWeightInput] * h) + in[kPeepInput] * c);
      change = c;
      din[kInput] = dc * g * i * (one - i);
    }
    din[kForget] = dc * change * f * (one - f);
    din[kCandidate] = dc * i * (one - g * g);
    din[kWeightForget] = din[kForget] * h;
    din[kWeightCandidate] = din[kCandidate] * h;
    din[kWeightOutput] = din[kOutput] * h;
    din[kWeightInput] = din[kInput] * h;
    din[kPeepForget] = din[kForget] * c;
    din[kPeepOutput] = din[kOutput] * after[1];
    din[kPeepInput] = din[kInput] * c;
    dbefore[0] = in[kWeightForget] * din[kForget] + in[kWeightCandidate] * din[kCandidate] +
                 in[kWeightOutput] * din[kOutput] + in[kWeightInput] * din[kInput];
    dbefore[1] = dc * f + in[kPeepForget] * din[kForget] + in[kPeepInput] * din[kInput];
  }
};

}  // namespace scanrnn
