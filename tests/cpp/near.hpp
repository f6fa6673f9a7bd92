// SPDX-License-Identifier: Apache-2.0
// Numbers that carry along how far rounding may have taken them, and derivatives: what the papers'
// equations are evaluated on.
#pragma once

#include <algorithm>
#include <cmath>

#include "scanrnn/core/activation.hpp"

namespace test {

using scanrnn::Activation;

/// The unit roundoff of the arithmetic under test, with what its functions and order may add.
inline double roundoff = 0;
/// Of tanh, if larger: for bfloat16 a GPU has a function of its own.
inline double tanh_roundoff = 0;

// A number, how far rounding may have taken the computed one from it, and the size of its terms,
// which the rounding of their sum goes by.
struct Near {
  double v = 0, e = 0, s = 0;
  Near() = default;
  Near(double value) : v(value), s(std::fabs(value)) {}
  Near(double value, double error, double size) : v(value), e(error), s(size) {}
};
inline Near operator+(Near p, Near q) {
  return {p.v + q.v, p.e + q.e + roundoff * (p.s + q.s), p.s + q.s};
}
inline Near operator-(Near p) { return {-p.v, p.e, p.s}; }
inline Near operator-(Near p, Near q) { return p + -q; }
inline Near operator*(Near p, Near q) {
  return {p.v * q.v, p.s * q.e + p.e * q.s + roundoff * p.s * q.s, p.s * q.s};
}
inline Near operator/(Near p, Near q) {
  const double v = p.v / q.v;
  return {v, (p.e + std::fabs(v) * q.e) / std::fabs(q.v) + roundoff * p.s / std::fabs(q.v),
          p.s / std::fabs(q.v)};
}
// A function's value f and slope there.
inline Near lift(Near p, double f, double slope) {
  return {f, std::fabs(slope) * p.e + roundoff * std::fabs(f), std::fabs(f)};
}
inline Near exp(Near p) { return lift(p, std::exp(p.v), std::exp(p.v)); }
inline Near expm1(Near p) { return lift(p, std::expm1(p.v), std::exp(p.v)); }
inline Near sigmoid(Near p) {
  const double e = std::exp(-std::fabs(p.v)), f = (p.v < 0 ? e : 1) / (1 + e);
  return lift(p, f, f * (1 - f));
}
inline Near softplus(Near p) {
  return lift(p, std::max(p.v, 0.0) + std::log1p(std::exp(-std::fabs(p.v))), sigmoid(p).v);
}
inline Near tanh(Near p) {
  const double f = std::tanh(p.v);
  Near y = lift(p, f, 1 - f * f);
  y.e += std::max(0.0, tanh_roundoff - roundoff) * std::fabs(f);
  return y;
}
inline Near sqrt(Near p) { return lift(p, std::sqrt(p.v), p.v > 0 ? 0.5 / std::sqrt(p.v) : 0); }
// The root's slope, with the bound that RG-LRU documents.
inline Near root_slope(Near p) { return p.v < 2.5e-7 ? Near(1000) : Near(0.5) / sqrt(p); }
// 1 or 0; where the sign isn't sure, neither is this.
inline Near is_positive(Near p) {
  return {p.v > 0 ? 1.0 : 0.0, std::fabs(p.v) <= p.e ? 1.0 : 0.0, 1};
}
inline Near relu(Near p) { return {std::max(p.v, 0.0), p.e, p.s}; }
inline bool is_negative(Near p) { return p.v < 0; }

// A number and its derivative with respect to one of a step's inputs, or to its state.
struct Tangent {
  Near v, d;
  Tangent() = default;
  Tangent(double value) : v(value) {}
  Tangent(Near value) : v(value) {}
  Tangent(Near value, Near slope) : v(value), d(slope) {}
};
inline Tangent operator+(Tangent p, Tangent q) { return {p.v + q.v, p.d + q.d}; }
inline Tangent operator-(Tangent p) { return {-p.v, -p.d}; }
inline Tangent operator-(Tangent p, Tangent q) { return {p.v - q.v, p.d - q.d}; }
inline Tangent operator*(Tangent p, Tangent q) { return {p.v * q.v, p.d * q.v + p.v * q.d}; }
inline Tangent operator/(Tangent p, Tangent q) {
  const Near v = p.v / q.v;
  return {v, p.d / q.v - v * q.d / q.v};
}
inline Tangent exp(Tangent p) { return {exp(p.v), exp(p.v) * p.d}; }
inline Tangent expm1(Tangent p) { return {expm1(p.v), exp(p.v) * p.d}; }
inline Tangent sigmoid(Tangent p) {
  return {sigmoid(p.v), sigmoid(p.v) * (Near(1) - sigmoid(p.v)) * p.d};
}
inline Tangent softplus(Tangent p) { return {softplus(p.v), sigmoid(p.v) * p.d}; }
inline Tangent tanh(Tangent p) { return {tanh(p.v), (Near(1) - tanh(p.v) * tanh(p.v)) * p.d}; }
inline Tangent sqrt(Tangent p) { return {sqrt(p.v), root_slope(p.v) * p.d}; }
inline Tangent relu(Tangent p) { return {relu(p.v), is_positive(p.v) * p.d}; }

inline Tangent activate(Activation g, Tangent v) {
  switch (g) {
    case Activation::tanh:
      return tanh(v);
    case Activation::relu:
      return relu(v);
    case Activation::silu:
      return v * sigmoid(v);
    case Activation::sigmoid:
      return sigmoid(v);
    case Activation::positive:
      return is_negative(v.v) ? sigmoid(v) : v + 0.5;
    default:
      return v;
  }
}

}  // namespace test
