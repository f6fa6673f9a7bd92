// SPDX-License-Identifier: Apache-2.0
// The gated recurrent unit (Cho et al. 2014, "Learning phrase representations using RNN
// encoder-decoder", in the form that has the reset gate behind the recurrent weights) with diagonal
// recurrent weights, per channel:
//
//   r_t = sigmoid(pr_t + u_r h_{t-1})               pr, pz, pn (B,T,D)
//   z_t = sigmoid(pz_t + u_z h_{t-1})               u_r, u_z, u_n (D) recurrent weights
//   n_t = tanh(pn_t + r_t (u_n h_{t-1} + b_n))      b_n (D) bias, optional
//   h_t = (1 - z_t) n_t + z_t h_{t-1}
//
// Backward, with G_t the whole gradient of h_t:
//   dpn = G (1 - z) (1 - n^2),    dpr = dpn (u_n h_{t-1} + b_n) r (1 - r)
//   dpz = G (h_{t-1} - n) z (1 - z)
//   dh_{t-1} = G z + u_r dpr + u_z dpz + u_n r dpn
// and du_r, du_z, du_n, db_n are the sums of dpr h_{t-1}, dpz h_{t-1}, dpn r h_{t-1}, dpn r.
#pragma once

#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn {

struct DiagonalGruCell : NonlinearCellBase {
  enum Input { kReset, kUpdate, kNew, kWeightReset, kWeightUpdate, kWeightNew, kBiasNew };
  static constexpr const char* name = "diagonal_gru";
  static constexpr int inputs = 7;
  static constexpr const char* names[inputs] = {"r", "z", "n", "u_r", "u_z", "u_n", "b_n"};
  static constexpr unsigned vector_inputs = 0b1111000;
  static constexpr unsigned optional_inputs = 1u << kBiasNew;
  static constexpr int states = 1;
  static constexpr const char* state_names[states] = {"h"};
  static constexpr double bounds[states] = {1};

  template <class R, class S>
  SCANRNN_HD void step(const R (&in)[inputs], S (&h)[states]) const {
    const S r = sigmoid(in[kReset] + in[kWeightReset] * h[0]);
    const S z = sigmoid(in[kUpdate] + in[kWeightUpdate] * h[0]);
    const S n = tanh(in[kNew] + r * (in[kWeightNew] * h[0] + in[kBiasNew]));
    h[0] = n + z * (h[0] - n);
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R (&)[states], const R (&after)[states]) const {
    return after[0];
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R (&before)[states], const R (&)[states],
                           const R& dy, const R (&adjoint)[states], R (&din)[inputs],
                           R (&dbefore)[states]) const {
    const R one = Constant<R>::of(1);
    const R h = before[0];
    const R r = sigmoid(in[kReset] + in[kWeightReset] * h);
    const R z = sigmoid(in[kUpdate] + in[kWeightUpdate] * h);
    const R recurrent = in[kWeightNew] * h + in[kBiasNew];
    const R n = tanh(in[kNew] + r * recurrent);
    const R g = adjoint[0] + dy;
    din[kNew] = g * (one - z) * (one - n * n);
    din[kReset] = din[kNew] * recurrent * r * (one - r);
    din[kUpdate] = g * (h - n) * z * (one - z);
    din[kBiasNew] = din[kNew] * r;
    din[kWeightReset] = din[kReset] * h;
    din[kWeightUpdate] = din[kUpdate] * h;
    din[kWeightNew] = din[kBiasNew] * h;
    dbefore[0] = g * z + in[kWeightReset] * din[kReset] + in[kWeightUpdate] * din[kUpdate] +
                 in[kWeightNew] * din[kBiasNew];
  }
};

}  // namespace scanrnn
