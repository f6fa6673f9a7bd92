// A cell of somebody else's, in fewer than 60 lines: a leaky integrator whose rate is learned,
//
//   a   = sigmoid(rate)                      rate (D), one value a channel
//   h_t = a h_{t-1} + (1 - a) x_t            x (B,T,D)
//
// The library makes from it what it makes from its own cells: forward and backward kernels for
// every dtype and layout, with variable lengths, resets and any number of threads.
#pragma once

#include <scanrnn/core/cell.hpp>

namespace mine {

struct LeakyCell : scanrnn::CellBase {
  // What callers see: the inputs in order, their names, and which are one value a channel.
  enum Input { kX, kRate };
  static constexpr const char* name = "leaky";
  static constexpr int inputs = 2;
  static constexpr const char* names[inputs] = {"x", "rate"};
  static constexpr unsigned vector_inputs = 1u << kRate;
  // What kernels read: all inputs in both directions. Backward takes the states from the output.
  static constexpr unsigned map_inputs = 0b11;
  static constexpr unsigned backward_inputs = 0b11;
  static constexpr bool state_is_output = true;

  // c_t = a c_{t-1} + x, as the pair (a, x).
  template <class R>
  SCANRNN_HD scanrnn::Affine<R> step(const R (&in)[inputs]) const {
    const R a = gain(in);
    return {a, (scanrnn::Constant<R>::of(1) - a) * in[kX]};
  }
  template <class R>
  SCANRNN_HD R output(const R (&)[inputs], const R& h) const {
    return h;
  }
  // dc_t / dc_{t-1}, and d output / dc_t applied to dy.
  template <class R>
  SCANRNN_HD R gain(const R (&in)[inputs]) const {
    using scanrnn::sigmoid;  // of scalars; SIMD registers bring their own
    return sigmoid(in[kRate]);
  }
  template <class R>
  SCANRNN_HD R output_adjoint(const R (&)[inputs], const R&, const R& dy) const {
    return dy;
  }
  // The gradient of every input, from g = dL/dc_t. The library sums that of `rate` over all steps.
  template <class R>
  SCANRNN_HD void pullback(const R (&in)[inputs], const R& h_prev, const R&, const R&, const R& g,
                           R (&din)[inputs]) const {
    const R a = gain(in);
    const R rest = scanrnn::Constant<R>::of(1) - a;
    din[kX] = rest * g;
    din[kRate] = a * rest * (h_prev - in[kX]) * g;
  }
};

}  // namespace mine
