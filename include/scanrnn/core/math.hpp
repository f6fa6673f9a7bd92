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

/// a * b, rounded whatever is added to it. Where the compiler may take both for one operation,
/// whether it does depends on what else it knows.
SCANRNN_HD float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
SCANRNN_HD double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
template <class R>
SCANRNN_HD R rounded_product(const R& a, const R& b) {
  return a * b;
}

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

#if defined(__CUDA_ARCH__)
// float on the device, from the machine's powers of two, reciprocals and roots, which make
// subnormal results 0. No branches: several channels of a thread are computed at once. On an H200,
// over all ranges, exponentials are off by 2.4 units in the last place at most (4 at -87), what is
// a unit less by 1.7, sigmoid by 4 (6 at -84) and tanh by 1.8.
namespace device {

__device__ __forceinline__ float power_of_2(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
/// NaN where either is.
__device__ __forceinline__ float maximum(float p, float q) {
#if __CUDA_ARCH__ >= 800
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(p), "f"(q));
  return r;
#else
  return p >= q || p != p ? p : q;
#endif
}
__device__ __forceinline__ float minimum(float p, float q) {
#if __CUDA_ARCH__ >= 800
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(p), "f"(q));
  return r;
#else
  return p <= q || p != p ? p : q;
#endif
}
/// `yes` where v >= bound, else `no`. Both are computed: of ?: the compiler makes a branch around
/// the costlier one, where several numbers at once would not wait for each other.
__device__ __forceinline__ float where_at_least(float v, float bound, float yes, float no) {
  float r;
  asm("{\n\t.reg .pred p;\n\tsetp.ge.f32 p, %3, %4;\n\tselp.f32 %0, %1, %2, p;\n\t}"
      : "=f"(r)
      : "f"(yes), "f"(no), "f"(v), "f"(bound));
  return r;
}
/// exp(v) for v < 128 log(2). The exponent v log2(e) is rounded down, so that what its rounding has
/// lost is a number in [0, 1): a saturated one, which is 0 where v is infinite. For that `log2_e`
/// is rounded too, down where results above 1 count, up where those below do.
__device__ __forceinline__ float exp(float v, float log2_e) {
  const float exponent = __fmul_rd(v, log2_e);
  const float lost = __saturatef(::fmaf(-0x1.62e43p-1f, exponent, v));
  const float power = power_of_2(exponent);
  return ::fmaf(power, lost, power);
}

}  // namespace device
#endif

/// 1 / v, where v and the result are normal numbers.
SCANRNN_HD float reciprocal(float v) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
#else
  return 1.0f / v;
#endif
}

/// 1 / (1 + exp(-v)) with full relative accuracy in both tails.
SCANRNN_HD float sigmoid(float v) {
#if defined(__CUDA_ARCH__)
  // From 88.7 on the result is 0, as if it were infinite.
  return reciprocal(1.0f + device::exp(device::minimum(-v, 88.7f), 0x1.715476p+0f));
#else
  const float e = ::expf(-::fabsf(v));
  return (v < 0 ? e : 1.0f) / (1.0f + e);
#endif
}
SCANRNN_HD double sigmoid(double v) {
  const double e = ::exp(-::fabs(v));
  return (v < 0 ? e : 1.0) / (1.0 + e);
}

/// 1 - s, where s is sigmoid(v): sigmoid(-v), for which the exponential of s serves. In CUDA's
/// kernels it is the difference, right to half a unit of 1's last place.
#if !defined(__CUDA_ARCH__)
SCANRNN_HD float complement(float s, float v) { return v < 0 ? 1.0f - s : ::expf(-::fabsf(v)) * s; }
SCANRNN_HD double complement(double s, double v) { return v < 0 ? 1.0 - s : ::exp(-::fabs(v)) * s; }
#endif
template <class R>
SCANRNN_HD R complement(const R& s, const R& v);
/// 1 - f, where f is s, or if `bounded` bound + (1 - bound) s, a gate with a lower bound; s is
/// sigmoid(v). In CUDA's kernels it is the difference too.
template <class R>
SCANRNN_HD R complement(const R& f, const R& s, const R& v, bool bounded, const R& bound);

/// sigmoid(v + bias).
template <class R>
SCANRNN_HD R sigmoid(const R& v, const R& bias) {
  return sigmoid(v + bias);
}

SCANRNN_HD float tanh(float v) {
#if defined(__CUDA_ARCH__)
  const float magnitude = ::fabsf(v);
  const float e = device::power_of_2(magnitude * 0x1.715476p+1f);
  const float large = ::copysignf(::fmaf(-2.0f, reciprocal(e + 1.0f), 1.0f), v);
  // An even polynomial, minimax for |v| <= 0.6.
  const float s = v * v;
  float p = -0x1.830c08p-8f;
  p = ::fmaf(p, s, 0x1.54e01cp-6f);
  p = ::fmaf(p, s, -0x1.b89edap-5f);
  p = ::fmaf(p, s, 0x1.1109dcp-3f);
  p = ::fmaf(p, s, -0x1.55553ep-2f);
  return device::where_at_least(magnitude, 0.6f, large, ::fmaf(p * s, v, v));
#else
  return ::tanhf(v);
#endif
}
SCANRNN_HD double tanh(double v) { return ::tanh(v); }

SCANRNN_HD float positive_part(float v) {
#if defined(__CUDA_ARCH__)
  return device::maximum(v, 0.0f);
#else
  return v > 0 || v != v ? v : 0.0f;
#endif
}
SCANRNN_HD double positive_part(double v) { return v > 0 || v != v ? v : 0.0; }

/// 1 where v > 0, else 0: the derivative of positive_part.
SCANRNN_HD float is_positive(float v) { return v > 0 ? 1.0f : 0.0f; }
SCANRNN_HD double is_positive(double v) { return v > 0 ? 1.0 : 0.0; }

/// `yes` where v < 0, else `no`.
SCANRNN_HD float where_negative(float v, float yes, float no) { return v < 0 ? yes : no; }
SCANRNN_HD double where_negative(double v, double yes, double no) { return v < 0 ? yes : no; }

/// The larger and the smaller of two numbers; NaN where `p` is.
SCANRNN_HD float maximum(float p, float q) {
#if defined(__CUDA_ARCH__)
  return device::maximum(p, q);
#else
  return p < q ? q : p;
#endif
}
SCANRNN_HD double maximum(double p, double q) { return p < q ? q : p; }
SCANRNN_HD float minimum(float p, float q) {
#if defined(__CUDA_ARCH__)
  return device::minimum(p, q);
#else
  return p > q ? q : p;
#endif
}
SCANRNN_HD double minimum(double p, double q) { return p > q ? q : p; }

SCANRNN_HD float sqrt(float v) {
#if defined(__CUDA_ARCH__)
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  return root;
#else
  return ::sqrtf(v);
#endif
}
SCANRNN_HD double sqrt(double v) { return ::sqrt(v); }

/// sqrt(v) and 1 / sqrt(v), at most 2^63, for v >= 0.
template <class R>
struct Root {
  R root;
  R inverse;
};
#if defined(__CUDA_ARCH__)
namespace device {

/// 1 / sqrt(v), where v is a normal number.
__device__ __forceinline__ float inverse_root(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

}  // namespace device
SCANRNN_HD Root<float> roots(float v) {
  const float inverse = device::inverse_root(device::maximum(v, 0x1p-126f));
  return {v * inverse, inverse};
}
#endif
template <class R>
SCANRNN_HD Root<R> roots(const R& v);

/// exp(v) and exp(v) - 1, each with full relative accuracy.
template <class R>
struct Exponential {
  R exp;
  R minus_one;
};

/// For v <= 0.
SCANRNN_HD Exponential<float> exponential(float v) {
#if defined(__CUDA_ARCH__)
  const float e = device::exp(v, 0x1.715478p+0f);
  // A polynomial, minimax for v >= -0.7.
  float p = 0x1.33dda6p-13f;
  p = ::fmaf(p, v, 0x1.5fd8cep-10f);
  p = ::fmaf(p, v, 0x1.105d5p-7f);
  p = ::fmaf(p, v, 0x1.554ac2p-5f);
  p = ::fmaf(p, v, 0x1.55550cp-3f);
  p = ::fmaf(p, v, 0x1.fffffep-2f);
  return {e, device::where_at_least(v, -0.7f, ::fmaf(p * v, v, v), e - 1.0f)};
#else
  return {::expf(v), ::expm1f(v)};
#endif
}
SCANRNN_HD Exponential<double> exponential(double v) { return {::exp(v), ::expm1(v)}; }

/// exp(v), and 1 - exp(2 v) with full relative accuracy, for v <= 0.
template <class R>
struct Decayed {
  R exp;
  R rest;
};
template <class R>
SCANRNN_HD Decayed<R> decayed(const R& v);

/// sqrt(v) sigmoid(p).
template <class R>
SCANRNN_HD R gated_root(const R& v, const R& p) {
  return sqrt(v) * sigmoid(p);
}

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

template <class R>
SCANRNN_HD R complement(const R& s, const R&) {
  return Constant<R>::of(1) - s;
}

template <class R>
SCANRNN_HD R complement([[maybe_unused]] const R& f, [[maybe_unused]] const R& s, const R& v,
                        [[maybe_unused]] bool bounded, [[maybe_unused]] const R& bound) {
#if defined(__CUDA_ARCH__)
  return complement(f, v);
#else
  const R shut = complement(s, v);
  if (bounded) return fma(-bound, shut, shut);
  return shut;
#endif
}

template <class R>
SCANRNN_HD R reciprocal(const R& v) {
  return Constant<R>::of(1) / v;
}

/// exp(-p), exp(-q) and 1, all of them times a number for which none overflows, though p and q be
/// infinite, nor all underflow.
template <class R>
struct ScaledExponentials {
  R p, q, unit;
};
template <class R>
SCANRNN_HD ScaledExponentials<R> scaled_exponentials(const R& p, const R& q) {
  // Half the greatest number: differences stay finite.
  const R most = Constant<R>::of(0.5) * Greatest<R>::value();
  const R minus_p = minimum(maximum(-p, -most), most);
  const R minus_q = minimum(maximum(-q, -most), most);
  const R larger_q = minus_p - minus_q;  // where negative
  const R high = where_negative(larger_q, minus_q, minus_p);
  const R low = where_negative(larger_q, minus_p, minus_q);
  // With m the largest of 0, -p and -q, exp(-m) and exp(high - m): one of them is 1.
  const R one = Constant<R>::of(1);
  const R below = exponential(minimum(high, -high)).exp;
  const R e_high = where_negative(high, below, one);
  const R e_low = exponential(low - maximum(high, Constant<R>::of(0))).exp;
  return {where_negative(larger_q, e_low, e_high), where_negative(larger_q, e_high, e_low),
          where_negative(high, one, below)};
}

template <class R>
SCANRNN_HD Root<R> roots(const R& v) {
  const R root = sqrt(v);
  return {root, reciprocal(maximum(root, Constant<R>::of(0x1p-63)))};  // root may be -0
}

template <class R>
SCANRNN_HD Decayed<R> decayed(const R& v) {
  const Exponential<R> e = exponential(v);
  return {e.exp, -(e.minus_one * (Constant<R>::of(2) + e.minus_one))};
}

}  // namespace scanrnn
