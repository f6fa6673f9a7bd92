// SPDX-License-Identifier: Apache-2.0
// The diagonal linear recurrence itself: h_t = a_t h_{t-1} + x_t, real or complex.
// Backward: g_t = dh_t + conj(a_{t+1}) g_{t+1},  da_t = g_t conj(h_{t-1}),  dx_t = g_t
// (Martin & Cundy 2018, "Parallelizing linear recurrent neural nets over sequence length", eq.
// 9-11).
#pragma once

#include "scanrnn/core/cell.hpp"

namespace scanrnn {

struct ScanCell : CellBase {
  enum Input { kA, kX };
  static constexpr const char* name = "scan";
  static constexpr int inputs = 2;
  static constexpr const char* names[inputs] = {"a", "x"};
  static constexpr unsigned map_inputs = 1u << kA | 1u << kX;
  static constexpr unsigned backward_inputs = 1u << kA;
  static constexpr unsigned output_inputs = 0;
  static constexpr bool step_is_input = true;
  static constexpr unsigned broadcast_inputs = 1u << kA;
  static constexpr unsigned state_inputs = 1u << kA;
  static constexpr bool state_is_output = true;

  /// Complex gradients by the conjugated (Wirtinger) convention, or by the plain transposed one.
  bool conjugate = true;

  template <class R>
  SCANRNN_HD Affine<R> step(const R (&in)[inputs]) const {
    return {in[kA], in[kX]};
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R& c) const {
    return c;
  }
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    return conj_if(conjugate, in[kA]);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&)[inputs], const R&, const R& dy) const {
    return dy;
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&)[inputs], const R& c_prev, const R&, const R&, const R& g,
                           R (&din)[inputs]) const {
    din[kA] = product(g, conj_if(conjugate, c_prev));
    din[kX] = g;
  }
};

}  // namespace scanrnn
