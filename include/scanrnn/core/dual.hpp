// SPDX-License-Identifier: Apache-2.0
// Dual numbers: a value and its derivatives by the N numbers of a cell's state. A cell's step that
// is run on them gives the tangent of the step beside the step itself (forward-mode automatic
// differentiation; Griewank and Walther 2008, "Evaluating derivatives", section 3.1).
//
// Values are computed by the operations that plain numbers would go through, so that a step has the
// same value either way.
#pragma once

#include "scanrnn/core/activation.hpp"
#include "scanrnn/core/math.hpp"

namespace scanrnn {

template <class R, int N>
struct Dual {
  R value;
  R slope[N];
};

/// The function value `value` of `of`, where the function's derivative is `derivative`.
template <class R, int N>
SCANRNN_HD Dual<R, N> chain(const R& value, const R& derivative, const Dual<R, N>& of) {
  Dual<R, N> y{value, {}};
  for (int i = 0; i < N; ++i) y.slope[i] = derivative * of.slope[i];
  return y;
}

template <class R, int N>
SCANRNN_HD Dual<R, N> operator+(const R& p, const Dual<R, N>& q) {
  Dual<R, N> y = q;
  y.value = p + q.value;
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator+(const Dual<R, N>& p, const R& q) {
  Dual<R, N> y = p;
  y.value = p.value + q;
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator+(const Dual<R, N>& p, const Dual<R, N>& q) {
  Dual<R, N> y{p.value + q.value, {}};
  for (int i = 0; i < N; ++i) y.slope[i] = p.slope[i] + q.slope[i];
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator-(const Dual<R, N>& p, const R& q) {
  Dual<R, N> y = p;
  y.value = p.value - q;
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator-(const R& p, const Dual<R, N>& q) {
  Dual<R, N> y{p - q.value, {}};
  for (int i = 0; i < N; ++i) y.slope[i] = -q.slope[i];
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator-(const Dual<R, N>& p, const Dual<R, N>& q) {
  Dual<R, N> y{p.value - q.value, {}};
  for (int i = 0; i < N; ++i) y.slope[i] = p.slope[i] - q.slope[i];
  return y;
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator*(const R& p, const Dual<R, N>& q) {
  return chain(p * q.value, p, q);
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator*(const Dual<R, N>& p, const R& q) {
  return chain(p.value * q, q, p);
}
template <class R, int N>
SCANRNN_HD Dual<R, N> operator*(const Dual<R, N>& p, const Dual<R, N>& q) {
  Dual<R, N> y{p.value * q.value, {}};
  for (int i = 0; i < N; ++i) y.slope[i] = fma(p.value, q.slope[i], p.slope[i] * q.value);
  return y;
}

template <class R, int N>
SCANRNN_HD Dual<R, N> sigmoid(const Dual<R, N>& v) {
  const R s = sigmoid(v.value);
  return chain(s, s * (Constant<R>::of(1) - s), v);
}
template <class R, int N>
SCANRNN_HD Dual<R, N> tanh(const Dual<R, N>& v) {
  const R y = tanh(v.value);
  return chain(y, Constant<R>::of(1) - y * y, v);
}
template <Activation Last = Activation::positive, class R, int N>
SCANRNN_HD Dual<R, N> activate(Activation g, const Dual<R, N>& v) {
  const Activated<R> y = activated<Last>(g, v.value);
  return chain(y.value, y.slope, v);
}

}  // namespace scanrnn
