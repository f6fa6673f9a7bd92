// SPDX-License-Identifier: Apache-2.0
// The pointwise functions g that cells put candidates or states through.
#pragma once

#include "scanrnn/core/math.hpp"

namespace scanrnn {

enum class Activation : int {
  identity = 0,
  tanh = 1,
  relu = 2,
  silu = 3,  ///< v sigmoid(v)
  sigmoid = 4,
  positive = 5,  ///< v + 1/2 where v >= 0, else sigmoid(v): smooth, and never 0 or less
};

/// g(v), and its derivative there.
template <class R>
struct Activated {
  R value;
  R slope;
};

/// `Last` is the last of the functions that the caller allows; code for the rest isn't made.
template <Activation Last = Activation::positive, class R>
SCANRNN_HD Activated<R> activated(Activation g, const R& v) {
  const R one = Constant<R>::of(1);
  switch (g) {
    case Activation::identity:
      return {v, one};
    case Activation::tanh: {
      const R y = tanh(v);
      return {y, one - y * y};
    }
    case Activation::relu:
      return {positive_part(v), is_positive(v)};
    default:
      if constexpr (Last > Activation::relu) {
        const R s = sigmoid(v);
        const R slope = s * (one - s);
        if (g == Activation::silu) return {rounded_product(v, s), fma(v, slope, s)};
        if (g == Activation::sigmoid) return {s, slope};
        return {where_negative(v, s, v + Constant<R>::of(0.5)), where_negative(v, slope, one)};
      }
      return {v, one};
  }
}

/// Whether it takes exponentials; `known` is below 0 where it may be any.
constexpr bool is_costly(int known) {
  return known != static_cast<int>(Activation::identity) &&
         known != static_cast<int>(Activation::relu);
}

template <Activation Last = Activation::positive, class R>
SCANRNN_HD R activate(Activation g, const R& v) {
  return activated<Last>(g, v).value;
}

/// Whether g'(v) can be told from g(v).
SCANRNN_HD bool is_told_by_value(Activation g) {
  return g <= Activation::relu || g == Activation::sigmoid;
}
/// What takes the place of v so that g(v) and g'(v) are had from it for less: g(v), or still v.
template <class R>
SCANRNN_HD R open_activation(Activation g, const R& v) {
  return is_told_by_value(g) ? activate(g, v) : v;
}
/// g(v) and g'(v) from that.
template <class R>
SCANRNN_HD Activated<R> opened_activation(Activation g, const R& w) {
  const R one = Constant<R>::of(1);
  switch (g) {
    case Activation::identity:
      return {w, one};
    case Activation::tanh:
      return {w, one - w * w};
    case Activation::relu:
      return {w, is_positive(w)};
    case Activation::sigmoid:
      return {w, w * (one - w)};
    default:
      return activated(g, w);
  }
}

}  // namespace scanrnn
