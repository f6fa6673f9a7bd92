// SPDX-License-Identifier: Apache-2.0
// The independently recurrent network (Li et al. 2018, "Independently recurrent neural network
// (IndRNN): building a longer and deeper RNN", eq. 2), per channel:
//
//   h_t = g(p_t + u h_{t-1})      p (B,T,D) pre-activation, u (D) recurrent weight, g relu or tanh
//
// Backward, with G_t the whole gradient of h_t:  dp = G g'(p + u h_{t-1}),  dh_{t-1} = u dp,  and
// du is the sum of dp h_{t-1}.
#pragma once

#include "scanrnn/core/nonlinear_cell.hpp"

namespace scanrnn {

struct IndRnnCell : NonlinearCellBase {
  enum Input { kInput, kWeight };
  static constexpr const char* name = "indrnn";
  static constexpr int inputs = 2;
  static constexpr const char* names[inputs] = {"p", "u"};
  static constexpr unsigned vector_inputs = 1u << kWeight;
  static constexpr int states = 1;
  static constexpr const char* state_names[states] = {"h"};
  static constexpr double bounds[states] = {0};

  Activation activation = Activation::relu;

  template <class Self, class Option>
  static void options(Self& self, Option&& option) {
    option("activation", self.activation, Activation::identity, kLast);
  }

  template <class R, class S>
  SCANRNN_HD void step(const R (&in)[inputs], S (&h)[states]) const {
    h[0] = activate<kLast>(activation, in[kInput] + in[kWeight] * h[0]);
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R (&)[states], const R (&after)[states]) const {
    return after[0];
  }
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R (&before)[states], const R (&)[states],
                           const R& dy, const R (&adjoint)[states], R (&din)[inputs],
                           R (&dbefore)[states]) const {
    const R slope = activated<kLast>(activation, in[kInput] + in[kWeight] * before[0]).slope;
    din[kInput] = (adjoint[0] + dy) * slope;
    din[kWeight] = din[kInput] * before[0];
    dbefore[0] = din[kInput] * in[kWeight];
  }

 private:
  static constexpr Activation kLast = Activation::relu;
};

}  // namespace scanrnn
