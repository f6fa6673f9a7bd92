// SPDX-License-Identifier: Apache-2.0
// Segment maps: what a run of steps does to the state it starts from.
//
// One step of a linear recurrence maps h to a h + x, and so does any run of steps. Maps of
// neighbouring runs merge associatively (Blelloch 1990, "Prefix sums and their applications",
// section 1.4), so any bracketing of a sequence gives its states. Merging does not commute: the
// earlier map always comes first.
#pragma once

#include "scanrnn/core/math.hpp"

namespace scanrnn {

/// h -> a h + x, one number (or one SIMD vector of channels) each.
template <class R>
struct Affine {
  R a;
  R x;
};

/// The 2x2 sibling, for cells whose state is a pair (p, q), as the LSTM's (c, h):
///   p -> a00 p + a01 q + x0,   q -> a10 p + a11 q + x1.
template <class R>
struct Affine2 {
  R a00, a01, a10, a11;
  R x0, x1;
};

/// The state after the map. A state of exactly zero stays out of an overflowed product.
template <class R>
SCANRNN_HD R apply(const Affine<R>& map, const R& state) {
  return select(annihilates(map.a, state), map.x, fma(map.a, state, map.x));
}

template <class R>
SCANRNN_HD Affine<R> identity(const Affine<R>*) {
  return {Constant<R>::of(1), Constant<R>::of(0)};
}

template <class R>
SCANRNN_HD Affine2<R> identity(const Affine2<R>*) {
  const R one = Constant<R>::of(1), zero = Constant<R>::of(0);
  return {one, zero, zero, one, zero, zero};
}

/// The map that changes nothing: identity<Affine<float>>().
template <class Map>
SCANRNN_HD Map identity() {
  return identity(static_cast<const Map*>(nullptr));
}

/// The map of both segments, `earlier` first.
template <class R>
SCANRNN_HD Affine<R> merge(const Affine<R>& earlier, const Affine<R>& later) {
  const R zero = Constant<R>::of(0);
  const R gain = select(annihilates(later.a, earlier.a), zero, product(later.a, earlier.a));
  return {gain, apply(later, earlier.x)};
}

/// The pair (p, q) after the map, in place.
template <class R>
SCANRNN_HD void apply(const Affine2<R>& map, R& p, R& q) {
  const R p1 = apply(Affine<R>{map.a01, apply(Affine<R>{map.a00, map.x0}, p)}, q);
  q = apply(Affine<R>{map.a11, apply(Affine<R>{map.a10, map.x1}, p)}, q);
  p = p1;
}

template <class R>
SCANRNN_HD Affine2<R> merge(const Affine2<R>& earlier, const Affine2<R>& later) {
  Affine2<R> linear = later;
  linear.x0 = linear.x1 = Constant<R>::of(0);
  Affine2<R> both = earlier;
  apply(linear, both.a00, both.a10);
  apply(linear, both.a01, both.a11);
  apply(later, both.x0, both.x1);
  return both;
}

}  // namespace scanrnn
