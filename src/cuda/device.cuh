// SPDX-License-Identifier: Apache-2.0
// What the kernels need of the machine: elements and vectors of them, copies into shared memory,
// exchanges within a warp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/args.hpp"
#include "cuda/tuning.hpp"
#include "scanrnn/core/half.hpp"
#include "scanrnn/core/math.hpp"

namespace scanrnn::cuda {

/// A value of which the compiler knows nothing. A stride that it knows to be a product would be
/// multiplied again for every address.
template <class V>
__device__ __forceinline__ V opaque(V value) {
  asm("" : "+l"(value));
  return value;
}

// --- elements --------------------------------------------------------------------------------

/// How a stored element is computed with.
template <class T>
struct Element {
  using Acc = T;
  static __device__ __forceinline__ Acc widen(T v) { return v; }
  static __device__ __forceinline__ T narrow(Acc v) { return v; }
};
template <>
struct Element<Half> {
  using Acc = float;
  static __device__ __forceinline__ float widen(Half v) {
    return __half2float(__ushort_as_half(v.bits));
  }
  static __device__ __forceinline__ Half narrow(float v) {
    return {__half_as_ushort(__float2half_rn(v))};
  }
  static __device__ __forceinline__ __half2 narrow(float v, float w) {
    return __floats2half2_rn(v, w);
  }
};
template <>
struct Element<BFloat16> {
  using Acc = float;
  static __device__ __forceinline__ float widen(BFloat16 v) { return to_float(v); }
  static __device__ __forceinline__ BFloat16 narrow(float v) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
  }
  static __device__ __forceinline__ __nv_bfloat162 narrow(float v, float w) {
    return __floats2bfloat162_rn(v, w);
  }
};
template <class T>
using Acc = typename Element<T>::Acc;

/// Elements of 16 bytes.
template <class T>
inline constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
inline constexpr int kWidthLog2 =
    sizeof(T) == 2 ? 3 : (sizeof(T) == 4 ? 2 : (sizeof(T) == 8 ? 1 : 0));

/// W elements, 8 or 16 bytes, as registers.
template <class T, int W = kWidth<T>>
struct alignas(W * sizeof(T)) Vector {
  T element[W];
};
template <int kBytes>
struct RawVector {
  using Type = uint4;
};
template <>
struct RawVector<8> {
  using Type = uint2;
};
template <class T, int W>
using Raw = typename RawVector<W* static_cast<int>(sizeof(T))>::Type;

/// bfloat16 two at a time: one operation each, where the upper one alone would take two.
template <class T, int W>
__device__ __forceinline__ void widen(const Vector<T, W>& from, Acc<T> (&to)[W]) {
  if constexpr (std::is_same_v<T, BFloat16> && W % 2 == 0) {
#pragma unroll
    for (int v = 0; v < W; v += 2) {
      std::uint32_t pair;
      memcpy(&pair, &from.element[v], sizeof(pair));
      to[v] = detail::bits_to_float(pair << 16);
      to[v + 1] = detail::bits_to_float(pair & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int v = 0; v < W; ++v) to[v] = Element<T>::widen(from.element[v]);
  }
}
/// The 16-bit types two at a time, as the machine converts them.
template <class T, int W>
__device__ __forceinline__ Vector<T, W> narrow(const Acc<T> (&from)[W]) {
  Vector<T, W> to;
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {
#pragma unroll
    for (int v = 0; v < W; v += 2) {
      const auto pair = Element<T>::narrow(from[v], from[v + 1]);
      memcpy(&to.element[v], &pair, sizeof(pair));
    }
  } else {
#pragma unroll
    for (int v = 0; v < W; ++v) to.element[v] = Element<T>::narrow(from[v]);
  }
  return to;
}

template <class T, int W = kWidth<T>>
__device__ __forceinline__ Vector<T, W> load_vector(const char* from) {
  const Raw<T, W> raw = *reinterpret_cast<const Raw<T, W>*>(from);
  Vector<T, W> v;
  memcpy(&v, &raw, sizeof(raw));
  return v;
}
template <class T, int W>
__device__ __forceinline__ void store_vector(char* shared, const Vector<T, W>& v) {
  Raw<T, W> raw;
  memcpy(&raw, &v, sizeof(raw));
  *reinterpret_cast<Raw<T, W>*>(shared) = raw;
}

/// The element at `data`, or one of the accumulation type.
template <class T>
__device__ __forceinline__ Acc<T> load_element(const char* data, Index at, bool wide) {
  if (wide) return reinterpret_cast<const Acc<T>*>(data)[at];
  return Element<T>::widen(reinterpret_cast<const T*>(data)[at]);
}
template <class T>
__device__ __forceinline__ void store_element(char* data, Index at, bool wide, const Acc<T>& v) {
  if (wide) {
    reinterpret_cast<Acc<T>*>(data)[at] = v;
  } else {
    reinterpret_cast<T*>(data)[at] = Element<T>::narrow(v);
  }
}

/// W neighbouring ones, all of them aligned to 16 bytes or their own size.
template <class T, int W>
__device__ __forceinline__ void load_lanes(const char* data, Index at, bool wide, Acc<T> (&to)[W]) {
  if (sizeof(T) == sizeof(Acc<T>) || wide) {
    constexpr int kEach = kWidth<Acc<T>> < W ? kWidth<Acc<T>> : W;
#pragma unroll
    for (int v = 0; v < W; v += kEach) {
      const Vector<Acc<T>, kEach> some =
          load_vector<Acc<T>, kEach>(data + (at + v) * static_cast<Index>(sizeof(Acc<T>)));
#pragma unroll
      for (int i = 0; i < kEach; ++i) to[v + i] = some.element[i];
    }
  } else {
    widen<T>(load_vector<T, W>(data + at * static_cast<Index>(sizeof(T))), to);
  }
}

template <class T>
__device__ __forceinline__ Acc<T> load_state(const States& s, Index n, Index d) {
  if (s.data == nullptr) return Constant<Acc<T>>::of(0);
  return load_element<T>(s.data, n * s.sequence + d * s.channel, s.wide);
}
template <class T>
__device__ __forceinline__ void store_state(const States& s, Index n, Index d, const Acc<T>& v) {
  if (s.data != nullptr) store_element<T>(s.data, n * s.sequence + d * s.channel, s.wide, v);
}

// --- shared memory ---------------------------------------------------------------------------

/// Where the 16-byte chunk `chunk` of a staged array lies, in chunks. A thread owns consecutive
/// chunks, a power of two of them; without the exclusive or, the eight threads that a shared-memory
/// access serves at once would meet in one bank.
__device__ __forceinline__ int swizzled(int chunk) { return chunk ^ ((chunk >> 3) & 7); }

template <class T>
__device__ __forceinline__ int element_offset(int element) {
  constexpr int width = kWidth<T>;
  return swizzled(element / width) * kVectorBytes + element % width * static_cast<int>(sizeof(T));
}

template <int kBytes>
__device__ __forceinline__ void copy_async(char* shared, const char* global) {
#if __CUDA_ARCH__ >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes)
                 : "memory");
  } else {
    *reinterpret_cast<unsigned short*>(shared) =
        __ldg(reinterpret_cast<const unsigned short*>(global));
  }
#else
  if constexpr (kBytes == 16) {
    *reinterpret_cast<uint4*>(shared) = __ldg(reinterpret_cast<const uint4*>(global));
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(shared) = __ldg(reinterpret_cast<const uint2*>(global));
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<unsigned*>(shared) = __ldg(reinterpret_cast<const unsigned*>(global));
  } else {
    *reinterpret_cast<unsigned short*>(shared) =
        __ldg(reinterpret_cast<const unsigned short*>(global));
  }
#endif
}

/// Ends a group of copies.
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all that this thread copied has arrived, but for the last `kBehind` groups.
template <int kBehind>
__device__ __forceinline__ void await_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kBehind) : "memory");
#endif
}
__device__ __forceinline__ void await_copies() {
  end_copies();
  await_groups<0>();
}

/// Results are written once and read by nobody here: they leave the caches first.
template <class T, int W>
__device__ __forceinline__ void store_streaming(char* global, const Vector<T, W>& v) {
  Raw<T, W> raw;
  memcpy(&raw, &v, sizeof(raw));
  __stcs(reinterpret_cast<Raw<T, W>*>(global), raw);
}

/// What is read once.
template <class T, int W>
__device__ __forceinline__ Vector<T, W> load_streaming(const char* global) {
  const Raw<T, W> raw = __ldcs(reinterpret_cast<const Raw<T, W>*>(global));
  Vector<T, W> v;
  memcpy(&v, &raw, sizeof(raw));
  return v;
}

/// Has the line at `global` fetched into the L2 cache.
__device__ __forceinline__ void prefetch(const char* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// --- a kernel behind another -------------------------------------------------------------------

/// Lets the kernel behind this one start before this one ends.
__device__ __forceinline__ void start_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until the kernel that cleared the workspace has ended; at once where there was none.
__device__ __forceinline__ void await_clearing() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// --- maps within a warp ----------------------------------------------------------------------

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <class R>
__device__ __forceinline__ R shuffle_up(const R& v, int by) {
  return __shfl_up_sync(kAllLanes, v, by);
}
template <class R>
__device__ __forceinline__ R shuffle_xor(const R& v, int by) {
  return __shfl_xor_sync(kAllLanes, v, by);
}
template <class R>
__device__ __forceinline__ R shuffle(const R& v, int lane) {
  return __shfl_sync(kAllLanes, v, lane);
}
template <class R>
__device__ __forceinline__ Complex<R> shuffle_up(const Complex<R>& v, int by) {
  return {shuffle_up(v.re, by), shuffle_up(v.im, by)};
}
template <class R>
__device__ __forceinline__ Complex<R> shuffle_xor(const Complex<R>& v, int by) {
  return {shuffle_xor(v.re, by), shuffle_xor(v.im, by)};
}
template <class R>
__device__ __forceinline__ Complex<R> shuffle(const Complex<R>& v, int lane) {
  return {shuffle(v.re, lane), shuffle(v.im, lane)};
}
template <class R>
__device__ __forceinline__ Affine<R> shuffle_up(const Affine<R>& m, int by) {
  return {shuffle_up(m.a, by), shuffle_up(m.x, by)};
}
template <class R>
__device__ __forceinline__ Affine<R> shuffle(const Affine<R>& m, int lane) {
  return {shuffle(m.a, lane), shuffle(m.x, lane)};
}

/// Whether this code has a cell's kernels for whole tiles; that of the host doesn't matter.
template <class Cell>
inline constexpr bool kHasWholeTiles =
#if defined(__CUDA_ARCH__)
    Cell::step_is_input || has_fast_memory(__CUDA_ARCH__ / 10);
#else
    true;
#endif

/// What a map's gain lacks of the exact product, carried along from the steps to a tile, whose gain
/// is then right to half a unit in the last place. With gates that are constant the roundings are
/// the same in every tile, and would add up over as many as a state remembers. In float32 it is
/// what they have lost (Ogita, Rump & Oishi 2005, "Accurate sum and dot product").
struct LostGain {
  float lost;
  /// For `gain` after `earlier_gain`, which lacks `earlier`.
  __device__ __forceinline__ LostGain after(const LostGain& earlier, float earlier_gain,
                                            float gain) const {
    const float error = fmaf(gain, earlier_gain, -(gain * earlier_gain));
    return {fmaf(lost, earlier_gain, fmaf(gain, earlier.lost, error))};
  }
  /// Nearer than `gain`, but where that has overflowed and lacks a NaN.
  __device__ __forceinline__ float corrected(float gain) const {
    return lost - lost == 0 ? gain + lost : gain;
  }
};
/// Of complex numbers it would take 24 operations a step: here it is all of the gain in double
/// precision.
struct WideGain {
  Complex<double> gain;
  __device__ __forceinline__ WideGain after(const WideGain& earlier, const Complex<float>&,
                                            const Complex<float>&) const {
    return {product(gain, earlier.gain)};
  }
  __device__ __forceinline__ Complex<float> corrected(const Complex<float>& plain) const {
    const Complex<float> narrow{static_cast<float>(gain.re), static_cast<float>(gain.im)};
    return narrow.re - narrow.re == 0 && narrow.im - narrow.im == 0 ? narrow : plain;
  }
};
/// The 16-bit types' own rounding is far larger.
struct NoLoss {
  template <class A>
  __device__ __forceinline__ NoLoss after(const NoLoss&, const A&, const A&) const {
    return {};
  }
  template <class A>
  __device__ __forceinline__ A corrected(const A& gain) const {
    return gain;
  }
};
__device__ __forceinline__ NoLoss shuffle_up(NoLoss, int) { return {}; }
__device__ __forceinline__ NoLoss shuffle(NoLoss, int) { return {}; }
__device__ __forceinline__ LostGain shuffle_up(LostGain l, int by) {
  return {shuffle_up(l.lost, by)};
}
__device__ __forceinline__ LostGain shuffle(LostGain l, int lane) {
  return {shuffle(l.lost, lane)};
}
__device__ __forceinline__ WideGain shuffle_up(const WideGain& w, int by) {
  return {shuffle_up(w.gain, by)};
}
__device__ __forceinline__ WideGain shuffle(const WideGain& w, int lane) {
  return {shuffle(w.gain, lane)};
}

/// The product of a leaf's gains.
template <class T>
struct GainProduct {
  using Loss = NoLoss;
  Acc<T> product = Constant<Acc<T>>::of(1);
  __device__ __forceinline__ void times(const Acc<T>& gain) {
    product = scanrnn::product(product, gain);
  }
  __device__ __forceinline__ Acc<T> value() const { return product; }
  __device__ __forceinline__ NoLoss loss() const { return {}; }
};
template <>
struct GainProduct<float> {
  using Loss = LostGain;
  float product = 1, lost = 0;
  __device__ __forceinline__ void times(float gain) {
    const float next = product * gain;
    lost = fmaf(lost, gain, fmaf(product, gain, -next));
    product = next;
  }
  __device__ __forceinline__ float value() const { return LostGain{lost}.corrected(product); }
  __device__ __forceinline__ LostGain loss() const { return {product - value() + lost}; }
};
template <>
struct GainProduct<Complex<float>> {
  using Loss = WideGain;
  Complex<double> product{1, 0};
  __device__ __forceinline__ void times(const Complex<float>& gain) {
    product = scanrnn::product(product, Complex<double>{gain.re, gain.im});
  }
  __device__ __forceinline__ Complex<float> value() const {
    return {static_cast<float>(product.re), static_cast<float>(product.im)};
  }
  __device__ __forceinline__ WideGain loss() const { return {product}; }
};

/// A map that may contain a reset: such a one forgets whatever comes before it, NaN too, which no
/// gain of zero would.
template <class R>
struct Segment {
  Affine<R> map;
  bool cut;
};
template <class R>
__device__ __forceinline__ Segment<R> merge(const Segment<R>& earlier, const Segment<R>& later) {
  return {later.cut ? later.map : merge(earlier.map, later.map), earlier.cut || later.cut};
}
template <class R>
__device__ __forceinline__ R apply(const Segment<R>& s, const R& state) {
  return s.cut ? s.map.x : apply(s.map, state);
}

/// Hears of no merge.
struct NoTracer {
  template <class R, int kMaps>
  __device__ __forceinline__ void lanes(int, const Affine<R> (&)[kMaps], const Affine<R> (&)[kMaps],
                                        bool) const {}
};

/// The inclusive scan over the lanes, whose neighbours in time are `stride` lanes apart.
template <class R, int kMaps, class AnyLoss, class Tracer = NoTracer>
__device__ __forceinline__ void scan_lanes(Affine<R> (&map)[kMaps], AnyLoss (&loss)[kMaps],
                                           bool& cut, int lane, int stride, int end, bool may_cut,
                                           const Tracer& tracer = {}) {
  for (int by = stride; by < end; by *= 2) {
    const bool takes = lane >= by && !cut;
    Affine<R> before[kMaps];
#pragma unroll
    for (int v = 0; v < kMaps; ++v) {
      before[v] = map[v];
      const Affine<R> earlier = shuffle_up(map[v], by);
      const AnyLoss earlier_loss = shuffle_up(loss[v], by);
      if (takes) {
        loss[v] = loss[v].after(earlier_loss, earlier.a, map[v].a);
        map[v] = merge(earlier, map[v]);
      }
    }
    if (may_cut) {
      const bool earlier = __shfl_up_sync(kAllLanes, static_cast<int>(cut), by) != 0;
      cut = cut || (lane >= by && earlier);
    }
    tracer.lanes(by / stride, before, map, cut);
  }
}

}  // namespace scanrnn::cuda
