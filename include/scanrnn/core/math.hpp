// SPDX-License-Identifier: Apache-2.0
// The scalar functions that cells are written in. A backend overloads the same names for its vector
// types (see src/cpu/simd.hpp), so cell code is found by argument-dependent lookup and written
// once.
#pragma once

#include <cmath>

#include "scanrnn/core/complex.hpp"
#include "scanrnn/core/config.hpp"

namespace scanrnn {

/// a * b + c, rounded once.
SCANRNN_HD float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
SCANRNN_HD double fma(double a, double b, double c) { return ::fma(a, b, c); }

template <class T>
SCANRNN_HD Complex<T> fma(const Complex<T>& a, const Complex<T>& b, const Complex<T>& c) {
  return {fma(a.re, b.re, fma(-a.im, b.im, c.re)), fma(a.re, b.im, fma(a.im, b.re, c.im))};
}

SCANRNN_HD float product(float a, float b) { return a * b; }
SCANRNN_HD double product(double a, double b) { return a * b; }

template <class T>
SCANRNN_HD Complex<T> product(const Complex<T>& a, const Complex<T>& b) {
  return {fma(a.re, b.re, -(a.im * b.im)), fma(a.re, b.im, a.im * b.re)};
}

/// Whether the product of `gain` and `state` must be taken as zero: the state is exactly zero, and
/// the gain, a product of many factors, may have overflowed (or met a zero after it did). Step by
/// step the state would have stayed 0. A factor that is itself NaN or infinite shows in the map's x
/// all the same.
template <class T>
SCANRNN_HD bool annihilates(T, T state) {
  return state == T(0);
}

template <class T>
SCANRNN_HD bool annihilates(const Complex<T>&, const Complex<T>& state) {
  return state.re == T(0) && state.im == T(0);
}

SCANRNN_HD float select(bool mask, float yes, float no) { return mask ? yes : no; }
SCANRNN_HD double select(bool mask, double yes, double no) { return mask ? yes : no; }

template <class Mask, class T>
SCANRNN_HD Complex<T> select(const Mask& mask, const Complex<T>& yes, const Complex<T>& no) {
  return {select(mask, yes.re, no.re), select(mask, yes.im, no.im)};
}

/// 1 / (1 + exp(-v)) with full relative accuracy in both tails.
SCANRNN_HD float sigmoid(float v) {
  const float e = ::expf(-::fabsf(v));
#if defined(__CUDA_ARCH__)
  // The divisor lies in [1, 2], where the machine's reciprocal is off by one ulp at most.
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + e));
  return (v < 0 ? e : 1.0f) * reciprocal;
#else
  return (v < 0 ? e : 1.0f) / (1.0f + e);
#endif
}
SCANRNN_HD double sigmoid(double v) {
  const double e = ::exp(-::fabs(v));
  return (v < 0 ? e : 1.0) / (1.0 + e);
}

SCANRNN_HD float tanh(float v) { return ::tanhf(v); }
SCANRNN_HD double tanh(double v) { return ::tanh(v); }

SCANRNN_HD float positive_part(float v) { return v > 0 || v != v ? v : 0.0f; }
SCANRNN_HD double positive_part(double v) { return v > 0 || v != v ? v : 0.0; }

/// 1 where v > 0, else 0: the derivative of positive_part.
SCANRNN_HD float is_positive(float v) { return v > 0 ? 1.0f : 0.0f; }
SCANRNN_HD double is_positive(double v) { return v > 0 ? 1.0 : 0.0; }

/// `yes` where v < 0, else `no`.
SCANRNN_HD float where_negative(float v, float yes, float no) { return v < 0 ? yes : no; }
SCANRNN_HD double where_negative(double v, double yes, double no) { return v < 0 ? yes : no; }

/// The larger and the smaller of two numbers; NaN where `p` is.
SCANRNN_HD float maximum(float p, float q) { return p < q ? q : p; }
SCANRNN_HD double maximum(double p, double q) { return p < q ? q : p; }
SCANRNN_HD float minimum(float p, float q) { return p > q ? q : p; }
SCANRNN_HD double minimum(double p, double q) { return p > q ? q : p; }

SCANRNN_HD float sqrt(float v) { return ::sqrtf(v); }
SCANRNN_HD double sqrt(double v) { return ::sqrt(v); }

/// exp(v) and exp(v) - 1, each with full relative accuracy.
template <class R>
struct Exponential {
  R exp;
  R minus_one;
};

/// For v <= 0.
SCANRNN_HD Exponential<float> exponential(float v) { return {::expf(v), ::expm1f(v)}; }
SCANRNN_HD Exponential<double> exponential(double v) { return {::exp(v), ::expm1(v)}; }

/// log(1 + exp(v)), with full relative accuracy and without overflow.
SCANRNN_HD float softplus(float v) { return positive_part(v) + ::log1pf(::expf(-::fabsf(v))); }
SCANRNN_HD double softplus(double v) { return positive_part(v) + ::log1p(::exp(-::fabs(v))); }

/// The greatest finite number of R's precision.
template <class R>
struct Greatest;
template <>
struct Greatest<float> {
  static SCANRNN_HD float value() { return 0x1.fffffep+127f; }
};
template <>
struct Greatest<double> {
  static SCANRNN_HD double value() { return 0x1.fffffffffffffp+1023; }
};

/// The conjugate where asked for; real numbers are their own.
template <class T>
SCANRNN_HD T conj_if(bool, const T& v) {
  return v;
}
template <class T>
SCANRNN_HD Complex<T> conj_if(bool conjugate, const Complex<T>& v) {
  return conjugate ? conj(v) : v;
}

/// The constant `value` as a T; SIMD vectors specialise it to fill every lane.
template <class T>
struct Constant {
  static SCANRNN_HD T of(double value) { return static_cast<T>(value); }
};
template <class T>
struct Constant<Complex<T>> {
  static SCANRNN_HD Complex<T> of(double value) {
    return {Constant<T>::of(value), Constant<T>::of(0)};
  }
};

}  // namespace scanrnn
