// SPDX-License-Identifier: Apache-2.0
// The registers that cells are computed in: several channels, or steps, of a thread at once. The
// machine has no such registers, but a cell's choices (which activation, whether there is an input
// gate) are then made once for all of them, and what one of them waits for hides behind the others.
//
// T is the dtype of the arrays. Where it has 16 bits, functions need not be more exact than a tenth
// of its unit in the last place, and are cheaper.
#pragma once

#include "cuda/device.cuh"

namespace scanrnn::cuda {

// Lanes' functions stand beside those of single numbers.
using scanrnn::conj_if;
using scanrnn::decayed;
using scanrnn::exponential;
using scanrnn::fma;
using scanrnn::gated_root;
using scanrnn::is_positive;
using scanrnn::maximum;
using scanrnn::minimum;
using scanrnn::positive_part;
using scanrnn::product;
using scanrnn::reciprocal;
using scanrnn::roots;
using scanrnn::rounded_product;
using scanrnn::scaled_exponentials;
using scanrnn::select;
using scanrnn::sigmoid;
using scanrnn::softplus;
using scanrnn::sqrt;
using scanrnn::tanh;
using scanrnn::where_negative;

template <class T, int N>
struct Lanes {
  Acc<T> lane[N];
};

/// f(v) for every lane v.
template <class T, int N, class F>
SCANRNN_HD Lanes<T, N> each_lane(F&& f) {
  Lanes<T, N> r;
#pragma unroll
  for (int v = 0; v < N; ++v) r.lane[v] = f(v);
  return r;
}

template <class T, int N>
SCANRNN_HD Lanes<T, N> operator+(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return p.lane[v] + q.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> operator-(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return p.lane[v] - q.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> operator-(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return -p.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> operator*(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return p.lane[v] * q.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> operator/(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return p.lane[v] / q.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> fma(const Lanes<T, N>& a, const Lanes<T, N>& b, const Lanes<T, N>& c) {
  return each_lane<T, N>([&](int v) { return scanrnn::fma(a.lane[v], b.lane[v], c.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> product(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return each_lane<T, N>([&](int v) { return scanrnn::product(a.lane[v], b.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> rounded_product(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return each_lane<T, N>([&](int v) { return scanrnn::rounded_product(a.lane[v], b.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> conj_if(bool conjugate, const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::conj_if(conjugate, p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> select(bool mask, const Lanes<T, N>& yes, const Lanes<T, N>& no) {
  return each_lane<T, N>([&](int v) { return mask ? yes.lane[v] : no.lane[v]; });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> positive_part(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::positive_part(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> is_positive(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::is_positive(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> where_negative(const Lanes<T, N>& p, const Lanes<T, N>& yes,
                                      const Lanes<T, N>& no) {
  return each_lane<T, N>(
      [&](int v) { return scanrnn::where_negative(p.lane[v], yes.lane[v], no.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> maximum(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return scanrnn::maximum(p.lane[v], q.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> minimum(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return scanrnn::minimum(p.lane[v], q.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> sqrt(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::sqrt(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> reciprocal(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::reciprocal(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Root<Lanes<T, N>> roots(const Lanes<T, N>& p) {
  Root<Lanes<T, N>> r;
#pragma unroll
  for (int v = 0; v < N; ++v) {
    const Root<Acc<T>> one = scanrnn::roots(p.lane[v]);
    r.root.lane[v] = one.root;
    r.inverse.lane[v] = one.inverse;
  }
  return r;
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> softplus(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return scanrnn::softplus(p.lane[v]); });
}

// --- what the 16-bit types have cheaper --------------------------------------------------------

/// Functions of one lane, of an array of dtype T.
template <class T>
struct Functions {
  static SCANRNN_HD Acc<T> sigmoid(const Acc<T>& v) { return scanrnn::sigmoid(v); }
  static SCANRNN_HD Acc<T> sigmoid(const Acc<T>& v, const Acc<T>& bias) {
    return scanrnn::sigmoid(v + bias);
  }
  static SCANRNN_HD Acc<T> tanh(const Acc<T>& v) { return scanrnn::tanh(v); }
  static SCANRNN_HD Exponential<Acc<T>> exponential(const Acc<T>& v) {
    return scanrnn::exponential(v);
  }
  static SCANRNN_HD Decayed<Acc<T>> decayed(const Acc<T>& v) { return scanrnn::decayed(v); }
  static SCANRNN_HD Acc<T> gated_root(const Acc<T>& v, const Acc<T>& p) {
    return scanrnn::gated_root(v, p);
  }
  static SCANRNN_HD ScaledExponentials<Acc<T>> scaled_exponentials(const Acc<T>& p,
                                                                   const Acc<T>& q) {
    return scanrnn::scaled_exponentials(p, q);
  }
};

#if defined(__CUDA_ARCH__)
/// Exponents that are rounded once: exp(v) is off by |v| / 2^24.
struct HalfFunctions : Functions<float> {
  static __device__ __forceinline__ float sigmoid(float v) {
    return reciprocal(1.0f + device::power_of_2(v * -0x1.715476p+0f));
  }
  /// The bias' product is the same for every step.
  static __device__ __forceinline__ float sigmoid(float v, float bias) {
    const float scale = -0x1.715476p+0f;
    return reciprocal(1.0f + device::power_of_2(::fmaf(v, scale, bias * scale)));
  }
  static __device__ __forceinline__ Exponential<float> exponential(float v) {
    return {device::power_of_2(v * 0x1.715476p+0f), scanrnn::exponential(v).minus_one};
  }
  /// The rest to 2^-18: by four terms of its series where the difference would lose more.
  static __device__ __forceinline__ Decayed<float> decayed(float v) {
    const float a = device::power_of_2(v * 0x1.715476p+0f);
    float p = ::fmaf(v, -0x1.555556p-1f, -0x1.555556p+0f);
    p = ::fmaf(p, v, -2.0f);
    p = ::fmaf(p, v, -2.0f);
    return {a, device::where_at_least(v, -0x1p-4f, p * v, ::fmaf(-a, a, 1.0f))};
  }
  /// By one root. Where the gate is less than 2^-64 and v not far less than 1, it is taken as 0.
  static __device__ __forceinline__ float gated_root(float v, float p) {
    const float d = 1.0f + device::power_of_2(p * -0x1.715476p+0f);
    return v * device::inverse_root(device::maximum(v, 0x1p-126f) * d * d);
  }
  /// To 2^-19. Times 2^-m, m the lesser of the two exponents if that is above 32, else 32: then at
  /// least 2^-32 is left, or the one is too little to count. What the greater exponent is above
  /// 2^124 makes no difference.
  static __device__ __forceinline__ ScaledExponentials<float> scaled_exponentials(float p,
                                                                                  float q) {
    const float scale = -0x1.715476p+0f;
    float m = device::maximum(device::maximum(p, q) * scale, 32.0f);
    m = device::minimum(m, 3e38f);  // a finite number, for the difference
    const auto power = [&](float v) {
      return device::power_of_2(device::minimum(::fmaf(v, scale, -m), 124.0f));
    };
    return {power(p), power(q), 0x1p-32f};
  }
};
template <>
struct Functions<Half> : HalfFunctions {};
template <>
struct Functions<BFloat16> : HalfFunctions {
#if __CUDA_ARCH__ >= 750
  /// The machine's, to 2^-11, an eighth of a unit in the last place (2^-15 on an H200).
  static __device__ __forceinline__ float tanh(float v) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
  }
#endif
};
#endif

template <class T, int N>
SCANRNN_HD Lanes<T, N> sigmoid(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return Functions<T>::sigmoid(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> sigmoid(const Lanes<T, N>& p, const Lanes<T, N>& bias) {
  return each_lane<T, N>([&](int v) { return Functions<T>::sigmoid(p.lane[v], bias.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> tanh(const Lanes<T, N>& p) {
  return each_lane<T, N>([&](int v) { return Functions<T>::tanh(p.lane[v]); });
}
/// A function of one lane with two results, for all of them.
template <template <class> class Pair, class T, int N, class F>
SCANRNN_HD Pair<Lanes<T, N>> each_lane_pair(F&& f) {
  Pair<Lanes<T, N>> r;
  auto& [first, second] = r;
#pragma unroll
  for (int v = 0; v < N; ++v) {
    const auto [p, q] = f(v);
    first.lane[v] = p;
    second.lane[v] = q;
  }
  return r;
}
template <class T, int N>
SCANRNN_HD Decayed<Lanes<T, N>> decayed(const Lanes<T, N>& p) {
  return each_lane_pair<Decayed, T, N>([&](int v) { return Functions<T>::decayed(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Exponential<Lanes<T, N>> exponential(const Lanes<T, N>& p) {
  return each_lane_pair<Exponential, T, N>(
      [&](int v) { return Functions<T>::exponential(p.lane[v]); });
}
template <class T, int N>
SCANRNN_HD Lanes<T, N> gated_root(const Lanes<T, N>& p, const Lanes<T, N>& q) {
  return each_lane<T, N>([&](int v) { return Functions<T>::gated_root(p.lane[v], q.lane[v]); });
}
template <class T, int N>
SCANRNN_HD ScaledExponentials<Lanes<T, N>> scaled_exponentials(const Lanes<T, N>& p,
                                                               const Lanes<T, N>& q) {
  ScaledExponentials<Lanes<T, N>> r;
#pragma unroll
  for (int v = 0; v < N; ++v) {
    const auto one = Functions<T>::scaled_exponentials(p.lane[v], q.lane[v]);
    r.p.lane[v] = one.p;
    r.q.lane[v] = one.q;
    r.unit.lane[v] = one.unit;
  }
  return r;
}

}  // namespace scanrnn::cuda

namespace scanrnn {

template <class T, int N>
struct Constant<cuda::Lanes<T, N>> {
  static SCANRNN_HD cuda::Lanes<T, N> of(double value) {
    return cuda::each_lane<T, N>([&](int) { return Constant<cuda::Acc<T>>::of(value); });
  }
};
template <class T, int N>
struct Greatest<cuda::Lanes<T, N>> {
  static SCANRNN_HD cuda::Lanes<T, N> value() {
    return cuda::each_lane<T, N>([&](int) { return Greatest<cuda::Acc<T>>::value(); });
  }
};

}  // namespace scanrnn
