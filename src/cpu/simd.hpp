// SPDX-License-Identifier: Apache-2.0
// SIMD vectors and the functions that cells use, for the instruction set this file is compiled for.
// Everything lives in a namespace named after the set, and everything inlines: see config.hpp.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC's own AVX-512 intrinsics pass an undefined operand on purpose, and it warns of it when
// inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "scanrnn/core/affine.hpp"
#include "scanrnn/core/half.hpp"

#ifndef SCANRNN_ISA
#error "SCANRNN_ISA names the instruction set's namespace"
#endif

namespace scanrnn::cpu::SCANRNN_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class S>
struct IntegerOf;
template <>
struct IntegerOf<float> {
  using Type = std::int32_t;
};
template <>
struct IntegerOf<double> {
  using Type = std::int64_t;
};

template <class S>
struct Vec {
  using Scalar = S;
  using Integer = typename IntegerOf<S>::Type;
  static constexpr int lanes = kVectorBytes / static_cast<int>(sizeof(S));
  typedef S Raw __attribute__((vector_size(kVectorBytes)));
  typedef Integer Bits __attribute__((vector_size(kVectorBytes)));
  Raw v;
};

template <class S>
SCANRNN_HD Vec<S> load(const S* p) {
  Vec<S> r;
  __builtin_memcpy(&r.v, p, kVectorBytes);
  return r;
}

template <class S>
SCANRNN_HD void store(S* p, const Vec<S>& r) {
  __builtin_memcpy(p, &r.v, kVectorBytes);
}

/// `count` elements in the lanes from `first` on; the others are 0, and no other memory is touched.
template <class S>
SCANRNN_HD Vec<S> load_some(const S* p, int first, int count) {
  Vec<S> r = {};
  for (int i = 0; i < count; ++i) r.v[first + i] = p[i];
  return r;
}
template <class S>
SCANRNN_HD void store_some(S* p, const Vec<S>& r, int first, int count) {
  for (int i = 0; i < count; ++i) p[i] = r.v[first + i];
}

/// A store that does not bring the line into the caches; `p` aligned to 16 bytes. (NumPy aligns
/// large arrays to no more than that. Stores that follow one another fill lines all the same.)
template <class S>
SCANRNN_HD void store_past_cache(S* p, const Vec<S>& r) {
#if defined(__SSE2__)
#if defined(__AVX512F__)
  if (reinterpret_cast<std::uintptr_t>(p) % kVectorBytes == 0) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)r.v);
    return;
  }
#elif defined(__AVX2__)
  if (reinterpret_cast<std::uintptr_t>(p) % kVectorBytes == 0) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)r.v);
    return;
  }
#endif
  __m128i parts[kVectorBytes / 16];
  __builtin_memcpy(parts, &r.v, kVectorBytes);
  for (int i = 0; i < kVectorBytes / 16; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p) + i, parts[i]);
  }
#else
  store(p, r);
#endif
}

template <class S>
SCANRNN_HD Vec<S> splat(S s) {
  return {(typename Vec<S>::Raw){} + s};
}

template <class S>
SCANRNN_HD Vec<S> operator+(const Vec<S>& p, const Vec<S>& q) {
  return {p.v + q.v};
}
template <class S>
SCANRNN_HD Vec<S> operator-(const Vec<S>& p, const Vec<S>& q) {
  return {p.v - q.v};
}
template <class S>
SCANRNN_HD Vec<S> operator-(const Vec<S>& p) {
  return {-p.v};
}
template <class S>
SCANRNN_HD Vec<S> operator*(const Vec<S>& p, const Vec<S>& q) {
  return {p.v * q.v};
}
template <class S>
SCANRNN_HD Vec<S> operator/(const Vec<S>& p, const Vec<S>& q) {
  return {p.v / q.v};
}

template <class S>
SCANRNN_HD Vec<S> product(const Vec<S>& p, const Vec<S>& q) {
  return p * q;
}

// Contraction is off for these files, so a multiply-add is fused exactly where this says so and the
// same expression gives the same bits wherever it is inlined.
SCANRNN_HD Vec<float> fma(const Vec<float>& a, const Vec<float>& b, const Vec<float>& c) {
#if defined(__AVX512F__)
  return {(Vec<float>::Raw)_mm512_fmadd_ps((__m512)a.v, (__m512)b.v, (__m512)c.v)};
#elif defined(__FMA__)
  return {(Vec<float>::Raw)_mm256_fmadd_ps((__m256)a.v, (__m256)b.v, (__m256)c.v)};
#elif defined(__aarch64__)
  return {(Vec<float>::Raw)vfmaq_f32((float32x4_t)c.v, (float32x4_t)a.v, (float32x4_t)b.v)};
#else
  return a * b + c;
#endif
}
SCANRNN_HD Vec<double> fma(const Vec<double>& a, const Vec<double>& b, const Vec<double>& c) {
#if defined(__AVX512F__)
  return {(Vec<double>::Raw)_mm512_fmadd_pd((__m512d)a.v, (__m512d)b.v, (__m512d)c.v)};
#elif defined(__FMA__)
  return {(Vec<double>::Raw)_mm256_fmadd_pd((__m256d)a.v, (__m256d)b.v, (__m256d)c.v)};
#elif defined(__aarch64__)
  return {(Vec<double>::Raw)vfmaq_f64((float64x2_t)c.v, (float64x2_t)a.v, (float64x2_t)b.v)};
#else
  return a * b + c;
#endif
}

/// Lanes that are all ones where a comparison holds.
template <class S>
struct Mask {
  typename Vec<S>::Bits m;
};

template <class S>
SCANRNN_HD Vec<S> select(const Mask<S>& mask, const Vec<S>& yes, const Vec<S>& no) {
  return {mask.m ? yes.v : no.v};
}

template <class S>
SCANRNN_HD Mask<S> annihilates(const Vec<S>& gain, const Vec<S>& state) {
  const typename Vec<S>::Raw zero = {};
  return {(state.v == zero) & ((gain.v - gain.v) != zero)};
}
template <class S>
SCANRNN_HD Mask<S> annihilates(const Complex<Vec<S>>& gain, const Complex<Vec<S>>& state) {
  const Vec<S> zero = {};
  const auto overflowed = annihilates(gain.re, zero).m | annihilates(gain.im, zero).m;
  return {overflowed & (state.re.v == zero.v) & (state.im.v == zero.v)};
}

// `q` where `p` is less, or greater; NaN where `p` is.
template <class S>
SCANRNN_HD Vec<S> maximum(const Vec<S>& p, const Vec<S>& q) {
  return {p.v < q.v ? q.v : p.v};
}
template <class S>
SCANRNN_HD Vec<S> minimum(const Vec<S>& p, const Vec<S>& q) {
  return {p.v > q.v ? q.v : p.v};
}
#if defined(__SSE2__)
// The machine's own, which the compiler makes of neither.
SCANRNN_HD Vec<float> maximum(const Vec<float>& p, const Vec<float>& q) {
#if defined(__AVX512F__)
  return {(Vec<float>::Raw)_mm512_maskz_max_ps(0xffff, (__m512)q.v, (__m512)p.v)};
#elif defined(__AVX2__)
  return {(Vec<float>::Raw)_mm256_max_ps((__m256)q.v, (__m256)p.v)};
#else
  return {(Vec<float>::Raw)_mm_max_ps((__m128)q.v, (__m128)p.v)};
#endif
}
SCANRNN_HD Vec<float> minimum(const Vec<float>& p, const Vec<float>& q) {
#if defined(__AVX512F__)
  return {(Vec<float>::Raw)_mm512_maskz_min_ps(0xffff, (__m512)q.v, (__m512)p.v)};
#elif defined(__AVX2__)
  return {(Vec<float>::Raw)_mm256_min_ps((__m256)q.v, (__m256)p.v)};
#else
  return {(Vec<float>::Raw)_mm_min_ps((__m128)q.v, (__m128)p.v)};
#endif
}
#endif

template <class S>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float log2e = 0x1.715476p+0f;
  // ln 2 in two parts; the first has few bits, so that its product with an exponent is exact.
  static constexpr float ln2_high = 0x1.62e4p-1f;
  static constexpr float ln2_low = 0x1.7f7d1cp-20f;
  static constexpr float round_magic = 0x1.8p23f;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;
  static constexpr float lowest = -104.0f;  // exp rounds to 0 below
  // Of (exp(r) - 1 - r) / r^2, minimax: exp(r) - 1 is off by 0.22 * 2^-24 of itself at most.
  static constexpr float series[] = {0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.555674p-5f, 0x1.122776p-7f,
                                     0x1.6bec16p-10f};
};
template <>
struct ExpConstants<double> {
  static constexpr double log2e = 0x1.71547652b82fep+0;
  static constexpr double ln2_high = 0x1.62e42fefap-1;
  static constexpr double ln2_low = 0x1.cf79abc9e3b39p-40;
  static constexpr double round_magic = 0x1.8p52;
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_bias = 1023;
  static constexpr double lowest = -746.0;
  // Taylor's: the first dropped term is below a quarter of an ulp of r.
  static constexpr double series[] = {1 / 2.0,      1 / 6.0,       1 / 24.0,       1 / 120.0,
                                      1 / 720.0,    1 / 5040.0,    1 / 4.032e4,    1 / 3.6288e5,
                                      1 / 3.6288e6, 1 / 3.99168e7, 1 / 4.790016e8, 1 / 6.2270208e9};
};

/// exp(v) = scale (1 + p) for v <= 0: scale is 2^k, where v = k ln 2 + r with |r| <= ln 2 / 2, and
/// p = exp(r) - 1.
template <class S>
struct SplitExp {
  Vec<S> p, scale;
};

#if defined(__AVX512F__)
/// k, and 2^k, down to subnormal numbers.
SCANRNN_HD Vec<float> power_of_2(const Vec<float>& k) {
  const Vec<float> one = splat(1.0f);
  return {(Vec<float>::Raw)_mm512_maskz_scalef_ps(0xffff, (__m512)one.v, (__m512)k.v)};
}
SCANRNN_HD Vec<double> power_of_2(const Vec<double>& k) {
  const Vec<double> one = splat(1.0);
  return {(Vec<double>::Raw)_mm512_maskz_scalef_pd(0xff, (__m512d)one.v, (__m512d)k.v)};
}
#endif

template <class S>
SCANRNN_HD SplitExp<S> split_exp(const Vec<S>& given) {
  using C = ExpConstants<S>;
  const Vec<S> v = maximum(given, splat<S>(C::lowest));
#if defined(__AVX512F__)
  const Vec<S> magic = splat<S>(C::round_magic);
  const Vec<S> k = fma(v, splat<S>(C::log2e), magic) - magic;
  const Vec<S> scale = power_of_2(k);
#else
  // The sum's lowest bits are the exponent of 2^(k + digits): a normal number, for k may be as low
  // as the least exponent of subnormal ones.
  constexpr int digits = C::mantissa_bits + 1;
  const Vec<S> magic = splat<S>(C::round_magic + (C::exponent_bias + digits));
  const Vec<S> shifted = fma(v, splat<S>(C::log2e), magic);
  const Vec<S> k = shifted - magic;
  constexpr S down = 1 / static_cast<S>(std::int64_t{1} << digits);
  const Vec<S> scale =
      Vec<S>{(typename Vec<S>::Raw)((typename Vec<S>::Bits)shifted.v << C::mantissa_bits)} *
      splat<S>(down);
#endif
  const Vec<S> r = fma(k, splat<S>(-C::ln2_low), fma(k, splat<S>(-C::ln2_high), v));
  // In pairs of terms, which wait for each other less.
  const Vec<S> square = r * r;
  constexpr int terms = sizeof(C::series) / sizeof(S);
  int n = terms - (terms % 2 == 0 ? 2 : 1);
  Vec<S> series = splat<S>(C::series[n]);
  if (terms % 2 == 0) series = fma(splat<S>(C::series[terms - 1]), r, series);
  while (n > 0) {
    n -= 2;
    series = fma(series, square, fma(splat<S>(C::series[n + 1]), r, splat<S>(C::series[n])));
  }
  return {fma(series, square, r), scale};
}

template <class S>
SCANRNN_HD Vec<S> sign_bit() {
  return -splat<S>(0);
}
template <class S>
SCANRNN_HD Vec<S> absolute(const Vec<S>& v) {
  using Bits = typename Vec<S>::Bits;
  return {(typename Vec<S>::Raw)((Bits)v.v & ~(Bits)sign_bit<S>().v)};
}
template <class S>
SCANRNN_HD Vec<S> minus_absolute(const Vec<S>& v) {
  using Bits = typename Vec<S>::Bits;
  return {(typename Vec<S>::Raw)((Bits)v.v | (Bits)sign_bit<S>().v)};
}

/// With e = exp(-|v|), e / (1 + e) or 1 / (1 + e).
template <class S>
SCANRNN_HD Vec<S> sigmoid(const Vec<S>& v) {
  const Vec<S> one = splat<S>(1);
  const SplitExp<S> split = split_exp(minus_absolute(v));
  const Vec<S> e = fma(split.p, split.scale, split.scale);
  const typename Vec<S>::Raw zero = {};
  const Vec<S> numerator = {v.v < zero ? e.v : one.v};
  return numerator / fma(split.p, split.scale, one + split.scale);
}

template <class S>
SCANRNN_HD Vec<S> complement(const Vec<S>& s, const Vec<S>& v) {
  const Vec<S> one = splat<S>(1);
  const SplitExp<S> split = split_exp(minus_absolute(v));
  const Vec<S> e = fma(split.p, split.scale, split.scale);
  const typename Vec<S>::Raw zero = {};
  return {v.v < zero ? (one - s).v : (e * s).v};
}

/// With e = exp(-2|v|), (1 - e) / (1 + e); near 0, where scale is 1, the numerator is -p.
template <class S>
SCANRNN_HD Vec<S> tanh(const Vec<S>& v) {
  const Vec<S> one = splat<S>(1);
  const Vec<S> half = minus_absolute(v);
  const SplitExp<S> split = split_exp(half + half);
  const Vec<S> t =
      fma(-split.scale, split.p, one - split.scale) / fma(split.scale, split.p, one + split.scale);
  using Bits = typename Vec<S>::Bits;
  const Bits sign = (Bits)sign_bit<S>().v;
  return {(typename Vec<S>::Raw)(((Bits)v.v & sign) | ((Bits)t.v & ~sign))};
}

template <class S>
SCANRNN_HD Vec<S> positive_part(const Vec<S>& v) {
  const typename Vec<S>::Raw zero = {};
  return {v.v <= zero ? zero : v.v};
}

template <class S>
SCANRNN_HD Vec<S> is_positive(const Vec<S>& v) {
  const typename Vec<S>::Raw zero = {};
  return {v.v > zero ? splat<S>(1).v : zero};
}

template <class S>
SCANRNN_HD Vec<S> where_negative(const Vec<S>& v, const Vec<S>& yes, const Vec<S>& no) {
  const typename Vec<S>::Raw zero = {};
  return {v.v < zero ? yes.v : no.v};
}
SCANRNN_HD Vec<float> sqrt(const Vec<float>& v) {
#if defined(__AVX512F__)
  return {(Vec<float>::Raw)_mm512_maskz_sqrt_ps(0xffff, (__m512)v.v)};
#elif defined(__AVX2__)
  return {(Vec<float>::Raw)_mm256_sqrt_ps((__m256)v.v)};
#elif defined(__SSE2__)
  return {(Vec<float>::Raw)_mm_sqrt_ps((__m128)v.v)};
#elif defined(__aarch64__)
  return {(Vec<float>::Raw)vsqrtq_f32((float32x4_t)v.v)};
#else
  Vec<float> r;
  for (int i = 0; i < Vec<float>::lanes; ++i) r.v[i] = __builtin_sqrtf(v.v[i]);
  return r;
#endif
}
SCANRNN_HD Vec<double> sqrt(const Vec<double>& v) {
#if defined(__AVX512F__)
  return {(Vec<double>::Raw)_mm512_maskz_sqrt_pd(0xff, (__m512d)v.v)};
#elif defined(__AVX2__)
  return {(Vec<double>::Raw)_mm256_sqrt_pd((__m256d)v.v)};
#elif defined(__SSE2__)
  return {(Vec<double>::Raw)_mm_sqrt_pd((__m128d)v.v)};
#elif defined(__aarch64__)
  return {(Vec<double>::Raw)vsqrtq_f64((float64x2_t)v.v)};
#else
  Vec<double> r;
  for (int i = 0; i < Vec<double>::lanes; ++i) r.v[i] = __builtin_sqrt(v.v[i]);
  return r;
#endif
}

template <class S>
SCANRNN_HD Exponential<Vec<S>> exponential(const Vec<S>& v) {
  const SplitExp<S> split = split_exp(v);
  return {fma(split.p, split.scale, split.scale),
          fma(split.p, split.scale, split.scale - splat<S>(1))};
}

/// With e = exp(-|v|), log(1 + e) = 2 artanh(s) for s = e / (2 + e) <= 1/3, from its Taylor series,
/// whose first dropped term is below a quarter of an ulp.
template <class S>
SCANRNN_HD Vec<S> softplus(const Vec<S>& v) {
  constexpr int terms = sizeof(S) == 4 ? 7 : 16;
  const Vec<S> e = exponential(-absolute(v)).exp;
  const Vec<S> s = e / (splat<S>(2) + e);
  const Vec<S> square = s * s;
  Vec<S> series = splat<S>(static_cast<S>(2.0 / (2 * terms + 1)));
  for (int n = terms - 1; n > 0; --n) {
    series = fma(series, square, splat<S>(static_cast<S>(2.0 / (2 * n + 1))));
  }
  return positive_part(v) + fma(series * square, s, s + s);
}

// Shuffles. A register is a row of 128-bit parts; what stays within parts is cheapest.

template <class S>
inline constexpr int kPartLanes = 16 / static_cast<int>(sizeof(S));

namespace shuffle {

// Element i of the result, as an index into the first register followed by the second.

// Lanes moved up (down) by `by`; what enters comes from the second register.
template <int n, int by>
constexpr int up(int i) {
  return i < by ? n + i : i - by;
}
template <int n, int by>
constexpr int down(int i) {
  return i + by < n ? i + by : n + i;
}

// Single elements or pairs of both registers in turn, within every part.
template <int n, int part, int unit, bool high>
constexpr int within_part(int i) {
  const int start = i / part * part + (high ? part / 2 : 0);
  const int u = i % part / unit;
  return u % 2 * n + start + u / 2 * unit + i % unit;
}

// Every other element of both registers, one after the other, and back.
template <int n, int, bool odd>
constexpr int alternate(int i) {
  return 2 * i + (odd ? 1 : 0);
}
template <int n, int, bool high>
constexpr int interleave(int i) {
  return i % 2 * n + (high ? n / 2 : 0) + i / 2;
}

// Lanes moved up (down) by one; what enters is the second register's last (first) lane.
template <int n, int, bool is_down>
constexpr int after(int i) {
  return is_down ? i + 1 : (i == 0 ? 2 * n - 1 : i - 1);
}

// Parts of both registers: the low (high) halves' parts, or the even (odd) parts.
template <int n, int part, bool high>
constexpr int half_parts(int i) {
  return i / (n / 2) * n + (high ? n / 2 : 0) + i % (n / 2);
}
template <int n, int part, bool high>
constexpr int alternate_parts(int i) {
  const int p = i / part;
  const int parts = n / part;
  return p / (parts / 2 > 0 ? parts / 2 : 1) * n +
         (p % (parts / 2 > 0 ? parts / 2 : 1) * 2 + (high ? 1 : 0)) * part + i % part;
}

}  // namespace shuffle

#define SCANRNN_SHUFFLE(name, ...)                                                             \
  template <bool High, class S, int... I>                                                      \
  SCANRNN_HD Vec<S> name(const Vec<S>& p, const Vec<S>& q, std::integer_sequence<int, I...>) { \
    constexpr int n = Vec<S>::lanes;                                                           \
    constexpr int part = kPartLanes<S>;                                                        \
    return {__builtin_shufflevector(p.v, q.v, (__VA_ARGS__(I))...)};                           \
  }                                                                                            \
  template <bool High, class S>                                                                \
  SCANRNN_HD Vec<S> name(const Vec<S>& p, const Vec<S>& q) {                                   \
    return name<High>(p, q, std::make_integer_sequence<int, Vec<S>::lanes>());                 \
  }
SCANRNN_SHUFFLE(interleave_singles, shuffle::within_part<n, part, 1, High>)
SCANRNN_SHUFFLE(interleave_pairs, shuffle::within_part<n, part, 2, High>)
SCANRNN_SHUFFLE(half_parts, shuffle::half_parts<n, part, High>)
SCANRNN_SHUFFLE(alternate_parts, shuffle::alternate_parts<n, part, High>)
SCANRNN_SHUFFLE(alternate, shuffle::alternate<n, part, High>)
SCANRNN_SHUFFLE(interleave, shuffle::interleave<n, part, High>)
SCANRNN_SHUFFLE(after, shuffle::after<n, part, High>)
#undef SCANRNN_SHUFFLE

template <bool Odd, class S>
SCANRNN_HD Complex<Vec<S>> alternate(const Complex<Vec<S>>& p, const Complex<Vec<S>>& q) {
  return {alternate<Odd>(p.re, q.re), alternate<Odd>(p.im, q.im)};
}
template <bool High, class S>
SCANRNN_HD Complex<Vec<S>> interleave(const Complex<Vec<S>>& p, const Complex<Vec<S>>& q) {
  return {interleave<High>(p.re, q.re), interleave<High>(p.im, q.im)};
}
template <bool Down, class S>
SCANRNN_HD Complex<Vec<S>> after(const Complex<Vec<S>>& p, const Complex<Vec<S>>& q) {
  return {after<Down>(p.re, q.re), after<Down>(p.im, q.im)};
}

template <bool Down, int By, class S, int... I>
SCANRNN_HD Vec<S> shift(const Vec<S>& v, const Vec<S>& fill, std::integer_sequence<int, I...>) {
  constexpr int n = Vec<S>::lanes;
  return {__builtin_shufflevector(v.v, fill.v,
                                  (Down ? shuffle::down<n, By>(I) : shuffle::up<n, By>(I))...)};
}
/// Lanes moved up by `By`, or down; lanes of `fill` come in where they leave.
template <bool Down, int By, class S>
SCANRNN_HD Vec<S> shift(const Vec<S>& v, const Vec<S>& fill) {
  return shift<Down, By>(v, fill, std::make_integer_sequence<int, Vec<S>::lanes>());
}
template <bool Down, int By, class S>
SCANRNN_HD Complex<Vec<S>> shift(const Complex<Vec<S>>& v, const Complex<Vec<S>>& fill) {
  return {shift<Down, By>(v.re, fill.re), shift<Down, By>(v.im, fill.im)};
}

/// Lane `lane` in every lane.
template <class S>
SCANRNN_HD Vec<S> spread(const Vec<S>& v, int lane) {
  return splat<S>(v.v[lane]);
}
template <class S>
SCANRNN_HD Complex<Vec<S>> spread(const Complex<Vec<S>>& v, int lane) {
  return {spread(v.re, lane), spread(v.im, lane)};
}

/// Lanes [first, last).
template <class S>
SCANRNN_HD Mask<S> lanes_between(int first, int last) {
  using Integer = typename Vec<S>::Integer;
  typename Vec<S>::Bits index;
  for (int i = 0; i < Vec<S>::lanes; ++i) index[i] = static_cast<Integer>(i);
  return {(index >= static_cast<Integer>(first)) & (index < static_cast<Integer>(last))};
}

template <class S>
SCANRNN_HD bool any(const Mask<S>& mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask.m, (__m512i)mask.m) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)mask.m, (__m256i)mask.m);
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)mask.m) != 0;
#else
  typename Vec<S>::Integer any = 0;
  for (int i = 0; i < Vec<S>::lanes; ++i) any |= mask.m[i];
  return any != 0;
#endif
}

/// Whether the first lane is infinite or NaN.
template <class S>
SCANRNN_HD bool first_not_finite(const Vec<S>& v) {
  return v.v[0] - v.v[0] != 0;
}
template <class S>
SCANRNN_HD bool first_not_finite(const Complex<Vec<S>>& v) {
  return first_not_finite(v.re) || first_not_finite(v.im);
}

/// Transposes the square that kPartLanes registers hold within each part.
template <class S>
SCANRNN_HD void transpose_within_parts(Vec<S>* r) {
  if constexpr (kPartLanes<S> == 4) {
    const Vec<S> a = interleave_singles<false>(r[0], r[1]),
                 b = interleave_singles<true>(r[0], r[1]);
    const Vec<S> c = interleave_singles<false>(r[2], r[3]),
                 d = interleave_singles<true>(r[2], r[3]);
    r[0] = interleave_pairs<false>(a, c);
    r[1] = interleave_pairs<true>(a, c);
    r[2] = interleave_pairs<false>(b, d);
    r[3] = interleave_pairs<true>(b, d);
  } else {
    const Vec<S> low = interleave_singles<false>(r[0], r[1]);
    r[1] = interleave_singles<true>(r[0], r[1]);
    r[0] = low;
  }
}

/// Transposes a square of Vec<S>::lanes registers: within parts, then the parts.
template <class S>
SCANRNN_HD void transpose(Vec<S>* r) {
  constexpr int n = Vec<S>::lanes;
  constexpr int width = kPartLanes<S>;
  constexpr int parts = n / width;
  for (int p = 0; p < parts; ++p) transpose_within_parts(r + p * width);
  if constexpr (parts == 1) return;
  Vec<S> out[n];
  for (int j = 0; j < width; ++j) {
    if constexpr (parts == 2) {
      out[j] = half_parts<false>(r[j], r[width + j]);
      out[width + j] = half_parts<true>(r[j], r[width + j]);
    } else {
      static_assert(parts <= 4);
      const Vec<S> a = half_parts<false>(r[j], r[width + j]);
      const Vec<S> b = half_parts<true>(r[j], r[width + j]);
      const Vec<S> c = half_parts<false>(r[2 * width + j], r[3 * width + j]);
      const Vec<S> d = half_parts<true>(r[2 * width + j], r[3 * width + j]);
      out[j] = alternate_parts<false>(a, c);
      out[width + j] = alternate_parts<true>(a, c);
      out[2 * width + j] = alternate_parts<false>(b, d);
      out[3 * width + j] = alternate_parts<true>(b, d);
    }
  }
  for (int i = 0; i < n; ++i) r[i] = out[i];
}

/// Loads kPartLanes columns of Vec<S>::lanes rows, of which row i is at p + i * stride, a column a
/// register: parts come from memory where they belong, which spares the shuffles that move them.
template <class S>
SCANRNN_HD void load_columns(const S* p, std::ptrdiff_t stride, Vec<S>* r) {
  constexpr int width = kPartLanes<S>;
  for (int k = 0; k < width; ++k) {
    const S* from = p + k * stride;
#if defined(__AVX512F__)
    const auto part = [&](int q) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + q * width * stride));
    };
    __m512i v = _mm512_castsi128_si512(part(0));
    v = _mm512_inserti32x4(v, part(1), 1);
    v = _mm512_inserti32x4(v, part(2), 2);
    v = _mm512_inserti32x4(v, part(3), 3);
    r[k].v = (typename Vec<S>::Raw)v;
#elif defined(__AVX2__)
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + width * stride));
    r[k].v = (typename Vec<S>::Raw)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#else
    r[k] = load(from);
#endif
  }
  transpose_within_parts(r);
}

/// Loads the square whose row i is at p + i * stride and transposes it.
template <class S>
SCANRNN_HD void load_transposed(const S* p, std::ptrdiff_t stride, Vec<S>* r) {
  for (int c = 0; c < Vec<S>::lanes; c += kPartLanes<S>) load_columns(p + c, stride, r + c);
}

/// As many doubles as Vec<float> has lanes.
struct Doubles {
  Vec<double> low, high;
};

SCANRNN_HD Doubles operator*(const Doubles& p, const Doubles& q) {
  return {p.low * q.low, p.high * q.high};
}
SCANRNN_HD Doubles operator-(const Doubles& p) { return {-p.low, -p.high}; }
SCANRNN_HD Doubles product(const Doubles& p, const Doubles& q) { return p * q; }
SCANRNN_HD Doubles fma(const Doubles& a, const Doubles& b, const Doubles& c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

/// `v`, or zero where nothing passes. (Part by part: a choice of whole structs goes through
/// memory.)
template <class S>
SCANRNN_HD Vec<S> unless(bool cut, const Vec<S>& v) {
  return cut ? Vec<S>{} : v;
}
SCANRNN_HD Doubles unless(bool cut, const Doubles& v) {
  return {unless(cut, v.low), unless(cut, v.high)};
}
template <class T>
SCANRNN_HD Complex<T> unless(bool cut, const Complex<T>& v) {
  return {unless(cut, v.re), unless(cut, v.im)};
}

/// Single precision in double, and rounded back; double precision as it is.
SCANRNN_HD Doubles widen(const Vec<float>& v) {
#if defined(__AVX512F__)
  const __m512 r = (__m512)v.v;
  return {{(Vec<double>::Raw)_mm512_cvtps_pd(_mm512_castps512_ps256(r))},
          {(Vec<double>::Raw)_mm512_cvtps_pd(_mm512_extractf32x8_ps(r, 1))}};
#else
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  Half parts[2];
  __builtin_memcpy(parts, &v.v, kVectorBytes);
  return {{__builtin_convertvector(parts[0], Vec<double>::Raw)},
          {__builtin_convertvector(parts[1], Vec<double>::Raw)}};
#endif
}
SCANRNN_HD Vec<float> narrow(const Doubles& v) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)v.low.v));
  return {(Vec<float>::Raw)_mm512_insertf32x8(low, _mm512_cvtpd_ps((__m512d)v.high.v), 1)};
#else
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  const Half parts[2] = {__builtin_convertvector(v.low.v, Half),
                         __builtin_convertvector(v.high.v, Half)};
  Vec<float> r;
  __builtin_memcpy(&r.v, parts, kVectorBytes);
  return r;
#endif
}
SCANRNN_HD Vec<double> widen(const Vec<double>& v) { return v; }
SCANRNN_HD Vec<double> narrow(const Vec<double>& v) { return v; }
template <class T>
SCANRNN_HD auto widen(const Complex<T>& v) -> Complex<decltype(widen(v.re))> {
  return {widen(v.re), widen(v.im)};
}
template <class T>
SCANRNN_HD auto narrow(const Complex<T>& v) -> Complex<decltype(narrow(v.re))> {
  return {narrow(v.re), narrow(v.im)};
}

/// The register in double precision that has R's lanes.
template <class R>
using Wide = decltype(widen(std::declval<R>()));

}  // namespace scanrnn::cpu::SCANRNN_ISA

namespace scanrnn {

template <class S>
struct Constant<cpu::SCANRNN_ISA::Vec<S>> {
  static SCANRNN_HD cpu::SCANRNN_ISA::Vec<S> of(double value) {
    return cpu::SCANRNN_ISA::splat<S>(static_cast<S>(value));
  }
};
template <>
struct Constant<cpu::SCANRNN_ISA::Doubles> {
  static SCANRNN_HD cpu::SCANRNN_ISA::Doubles of(double value) {
    const auto half = cpu::SCANRNN_ISA::splat<double>(value);
    return {half, half};
  }
};

template <class S>
struct Greatest<cpu::SCANRNN_ISA::Vec<S>> {
  static SCANRNN_HD cpu::SCANRNN_ISA::Vec<S> value() {
    return cpu::SCANRNN_ISA::splat<S>(Greatest<S>::value());
  }
};

}  // namespace scanrnn

namespace scanrnn::cpu::SCANRNN_ISA {

/// Registers of one accumulation type: how they lie in rows.
template <class R>
struct Register;

template <class S>
struct Register<Vec<S>> {
  using Scalar = S;
  static constexpr int lanes = Vec<S>::lanes;
  static SCANRNN_HD Vec<S> load(const S* row, std::ptrdiff_t) { return SCANRNN_ISA::load(row); }
  static SCANRNN_HD void store(S* row, std::ptrdiff_t, const Vec<S>& r) {
    SCANRNN_ISA::store(row, r);
  }
  static SCANRNN_HD void store_past_cache(S* row, std::ptrdiff_t, const Vec<S>& r) {
    SCANRNN_ISA::store_past_cache(row, r);
  }
  static SCANRNN_HD Vec<S> splat(const S* row, std::ptrdiff_t) { return SCANRNN_ISA::splat(*row); }
  static SCANRNN_HD Vec<S> load_some(const S* row, std::ptrdiff_t, int first, int count) {
    return SCANRNN_ISA::load_some(row, first, count);
  }
  static SCANRNN_HD void store_some(S* row, std::ptrdiff_t, const Vec<S>& r, int first, int count) {
    SCANRNN_ISA::store_some(row, r, first, count);
  }
};

template <>
struct Register<Doubles> {
  using Scalar = double;
  static constexpr int lanes = Vec<float>::lanes;
  static SCANRNN_HD Doubles load(const double* row, std::ptrdiff_t) {
    return {SCANRNN_ISA::load(row), SCANRNN_ISA::load(row + lanes / 2)};
  }
  static SCANRNN_HD void store(double* row, std::ptrdiff_t, const Doubles& r) {
    SCANRNN_ISA::store(row, r.low);
    SCANRNN_ISA::store(row + lanes / 2, r.high);
  }
};

template <class T>
struct Register<Complex<T>> {
  using Part = Register<T>;
  using Scalar = typename Part::Scalar;
  static constexpr int lanes = Part::lanes;
  static SCANRNN_HD Complex<T> load(const Scalar* row, std::ptrdiff_t plane) {
    return {Part::load(row, 0), Part::load(row + plane, 0)};
  }
  static SCANRNN_HD void store(Scalar* row, std::ptrdiff_t plane, const Complex<T>& r) {
    Part::store(row, 0, r.re);
    Part::store(row + plane, 0, r.im);
  }
  static SCANRNN_HD void store_past_cache(Scalar* row, std::ptrdiff_t plane, const Complex<T>& r) {
    store(row, plane, r);
  }
  static SCANRNN_HD Complex<T> splat(const Scalar* row, std::ptrdiff_t plane) {
    return {SCANRNN_ISA::splat(row[0]), SCANRNN_ISA::splat(row[plane])};
  }
  static SCANRNN_HD Complex<T> load_some(const Scalar* row, std::ptrdiff_t plane, int first,
                                         int count) {
    return {SCANRNN_ISA::load_some(row, first, count),
            SCANRNN_ISA::load_some(row + plane, first, count)};
  }
  static SCANRNN_HD void store_some(Scalar* row, std::ptrdiff_t plane, const Complex<T>& r,
                                    int first, int count) {
    SCANRNN_ISA::store_some(row, r.re, first, count);
    SCANRNN_ISA::store_some(row + plane, r.im, first, count);
  }
};

/// The register of double precision that fits the machine: R's numbers one at a time, in all lanes.
template <class R>
struct DoubleOf;
template <class S>
struct DoubleOf<Vec<S>> {
  using Type = Vec<double>;
  static SCANRNN_HD Type spread(const Vec<S>& v, int lane) {
    return splat<double>(static_cast<double>(v.v[lane]));
  }
  static SCANRNN_HD Vec<S> back(const Type& d) { return splat<S>(static_cast<S>(d.v[0])); }
};
template <class S>
struct DoubleOf<Complex<Vec<S>>> {
  using Part = DoubleOf<Vec<S>>;
  using Type = Complex<Vec<double>>;
  static SCANRNN_HD Type spread(const Complex<Vec<S>>& v, int lane) {
    return {Part::spread(v.re, lane), Part::spread(v.im, lane)};
  }
  static SCANRNN_HD Complex<Vec<S>> back(const Type& d) {
    return {Part::back(d.re), Part::back(d.im)};
  }
};

/// The product of all lanes, in lane 0.
template <int By = Vec<double>::lanes / 2, class T>
SCANRNN_HD T product_of_lanes(const T& v) {
  if constexpr (By == 0) {
    return v;
  } else {
    return product_of_lanes<By / 2>(product(v, shift<true, By>(v, v)));
  }
}
SCANRNN_HD Vec<double> product_of_lanes(const Doubles& v) {
  return product_of_lanes(v.low * v.high);
}
SCANRNN_HD Complex<Vec<double>> product_of_lanes(const Complex<Doubles>& v) {
  const Complex<Vec<double>> low = {v.re.low, v.im.low}, high = {v.re.high, v.im.high};
  return product_of_lanes(product(low, high));
}

/// A product of gates in about twice the precision of R. In rows it takes the place of doubles, in
/// a form of its own, until `widen` makes doubles of it.
template <class R>
struct Gain {
  Wide<R> value;

  static SCANRNN_HD Gain one() { return {Constant<Wide<R>>::of(1)}; }
  static SCANRNN_HD Gain of(const R& gate) { return {SCANRNN_ISA::widen(gate)}; }
  SCANRNN_HD Gain times(const R& gate) const { return {product(SCANRNN_ISA::widen(gate), value)}; }
  SCANRNN_HD Gain unless(bool cut) const { return {SCANRNN_ISA::unless(cut, value)}; }
  SCANRNN_HD Wide<R> widen() const { return value; }
  SCANRNN_HD bool is_exact() const { return true; }
  static SCANRNN_HD Gain load(const double* row, std::ptrdiff_t plane) {
    return {Register<Wide<R>>::load(row, plane)};
  }
  SCANRNN_HD void store(double* row, std::ptrdiff_t plane) const {
    Register<Wide<R>>::store(row, plane, value);
  }
};

#if defined(__AVX512F__) || defined(__FMA__) || defined(__aarch64__)
/// The product, and beside it what its roundings lost (Ogita, Rump & Oishi 2005, "Accurate sum and
/// dot product"): three operations a step, where doubles take seven.
template <>
struct Gain<Vec<float>> {
  Vec<float> value, lost;

  static SCANRNN_HD Gain one() { return of(splat(1.0f)); }
  static SCANRNN_HD Gain of(const Vec<float>& gate) { return {gate, Vec<float>{}}; }
  SCANRNN_HD Gain times(const Vec<float>& gate) const {
    const Vec<float> p = value * gate;
    return {p, fma(lost, gate, fma(value, gate, -p))};
  }
  SCANRNN_HD Gain unless(bool cut) const {
    return {SCANRNN_ISA::unless(cut, value), SCANRNN_ISA::unless(cut, lost)};
  }
  /// Whether no lane has left the range in which what was lost is known.
  SCANRNN_HD bool is_exact() const {
    const auto size = (Vec<float>::Bits)absolute(value).v;
    return !any(Mask<float>{(size < (27 << 23)) | (size >= (254 << 23))});  // 2^-100 to 2^127
  }
  SCANRNN_HD Doubles widen() const {
    // Where the product overflows, nothing is known of its roundings.
    const Vec<float> zero = {};
    const Doubles p = SCANRNN_ISA::widen(value);
    const Doubles l = SCANRNN_ISA::widen(select(annihilates(lost, zero), zero, lost));
    return {p.low + l.low, p.high + l.high};
  }
  static SCANRNN_HD Gain load(const double* row, std::ptrdiff_t) {
    const float* p = reinterpret_cast<const float*>(row);
    return {SCANRNN_ISA::load(p), SCANRNN_ISA::load(p + Vec<float>::lanes)};
  }
  SCANRNN_HD void store(double* row, std::ptrdiff_t) const {
    float* p = reinterpret_cast<float*>(row);
    SCANRNN_ISA::store(p, value);
    SCANRNN_ISA::store(p + Vec<float>::lanes, lost);
  }
};
#endif

}  // namespace scanrnn::cpu::SCANRNN_ISA
