// SPDX-License-Identifier: Apache-2.0
// Moves data between the caller's arrays and the kernels' rows, widening and rounding 16-bit types.
// Three shapes of array matter: lanes contiguous (rows are copied), steps contiguous (square blocks
// are transposed in registers), and any other (element by element).
#include <type_traits>

#include "cpu/kernels/family.hpp"
#include "scanrnn/core/complex.hpp"

namespace scanrnn::cpu::SCANRNN_ISA {
namespace {

// A stored element E and the scalars that it becomes in rows.
template <class E>
struct Element {
  using Scalar = E;
  static SCANRNN_HD void load(const E* p, E* row, std::ptrdiff_t) { *row = *p; }
  static SCANRNN_HD void store(E* p, const E* row, std::ptrdiff_t) { *p = *row; }
};
template <>
struct Element<Half> {
  using Scalar = float;
  static SCANRNN_HD void load(const Half* p, float* row, std::ptrdiff_t) { *row = to_float(*p); }
  static SCANRNN_HD void store(Half* p, const float* row, std::ptrdiff_t) { *p = to_half(*row); }
};
template <>
struct Element<BFloat16> {
  using Scalar = float;
  static SCANRNN_HD void load(const BFloat16* p, float* row, std::ptrdiff_t) {
    *row = to_float(*p);
  }
  static SCANRNN_HD void store(BFloat16* p, const float* row, std::ptrdiff_t) {
    *p = to_bfloat16(*row);
  }
};
template <class S>
struct Element<Complex<S>> {
  using Scalar = S;
  static SCANRNN_HD void load(const Complex<S>* p, S* row, std::ptrdiff_t plane) {
    row[0] = p->re;
    row[plane] = p->im;
  }
  static SCANRNN_HD void store(Complex<S>* p, const S* row, std::ptrdiff_t plane) {
    p->re = row[0];
    p->im = row[plane];
  }
};

// Consecutive elements to and from one register, where the element is a real scalar.
template <class E>
SCANRNN_HD Vec<typename Element<E>::Scalar> load_contiguous(const E* p) {
  using S = typename Element<E>::Scalar;
  Vec<S> r;
  for (int i = 0; i < Vec<S>::lanes; ++i) {
    S s;
    Element<E>::load(p + i, &s, 0);
    r.v[i] = s;
  }
  return r;
}
template <class E, class S>
SCANRNN_HD void store_contiguous(E* p, const Vec<S>& r) {
  for (int i = 0; i < Vec<S>::lanes; ++i) {
    const S s = r.v[i];
    Element<E>::store(p + i, &s, 0);
  }
}
template <>
SCANRNN_HD Vec<float> load_contiguous(const float* p) {
  return load(p);
}
template <>
SCANRNN_HD Vec<double> load_contiguous(const double* p) {
  return load(p);
}
template <>
SCANRNN_HD void store_contiguous(float* p, const Vec<float>& r) {
  store(p, r);
}
template <>
SCANRNN_HD void store_contiguous(double* p, const Vec<double>& r) {
  store(p, r);
}

#if defined(__AVX512F__)
template <>
SCANRNN_HD Vec<float> load_contiguous(const Half* p) {
  return {
      (Vec<float>::Raw)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <>
SCANRNN_HD void store_contiguous(Half* p, const Vec<float>& r) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph((__m512)r.v, _MM_FROUND_TO_NEAREST_INT));
}
template <>
SCANRNN_HD Vec<float> load_contiguous(const BFloat16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {(Vec<float>::Raw)_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16)};
}
#elif defined(__AVX2__)
template <>
SCANRNN_HD Vec<float> load_contiguous(const Half* p) {
  return {(Vec<float>::Raw)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
template <>
SCANRNN_HD void store_contiguous(Half* p, const Vec<float>& r) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph((__m256)r.v, _MM_FROUND_TO_NEAREST_INT));
}
template <>
SCANRNN_HD Vec<float> load_contiguous(const BFloat16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {(Vec<float>::Raw)_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)};
}
#endif

template <class E>
inline constexpr bool kIsComplex = false;
template <class S>
inline constexpr bool kIsComplex<Complex<S>> = true;

// Copies lanes [lane0, lanes) of steps [step0, steps), element by element.
template <class E, bool Load>
void transfer_any(const TransferArgs& g, std::ptrdiff_t step0, std::ptrdiff_t steps, int lane0,
                  int lanes) {
  using S = typename Element<E>::Scalar;
  for (std::ptrdiff_t t = step0; t < steps; ++t) {
    for (int i = lane0; i < lanes; ++i) {
      const std::ptrdiff_t at = t * g.step_stride + i * g.lane_stride;
      const std::ptrdiff_t row = t * g.row_stride + i;
      if constexpr (Load) {
        Element<E>::load(static_cast<const E*>(g.source) + at, static_cast<S*>(g.target) + row,
                         g.plane);
      } else {
        Element<E>::store(static_cast<E*>(g.target) + at, static_cast<const S*>(g.source) + row,
                          g.plane);
      }
    }
  }
}

// The last lanes of a row, fewer than a register has: halves of what a register holds.
template <class S, int N = Vec<S>::lanes / 2>
SCANRNN_HD void copy_some(S* to, const S* from, int count) {
  if ((count & N) != 0) {
    __builtin_memcpy(to, from, N * sizeof(S));
    to += N;
    from += N;
  }
  if constexpr (N > 1) copy_some<S, N / 2>(to, from, count);
}

// Lanes contiguous.
template <class E, bool Load>
void transfer_rows(const TransferArgs& g) {
  using S = typename Element<E>::Scalar;
  constexpr int n = Vec<S>::lanes;
  int whole = 0;
  if constexpr (!kIsComplex<E>) {
    whole = g.lanes / n * n;
    for (std::ptrdiff_t t = 0; t < g.steps; ++t) {
      for (int i = 0; i < whole; i += n) {
        const std::ptrdiff_t at = t * g.step_stride + i;
        const std::ptrdiff_t row = t * g.row_stride + i;
        if constexpr (Load) {
          store(static_cast<S*>(g.target) + row,
                load_contiguous(static_cast<const E*>(g.source) + at));
        } else {
          store_contiguous(static_cast<E*>(g.target) + at,
                           load(static_cast<const S*>(g.source) + row));
        }
      }
    }
  }
  if constexpr (std::is_same_v<E, S>) {
    for (std::ptrdiff_t t = 0; whole < g.lanes && t < g.steps; ++t) {
      const std::ptrdiff_t at = t * g.step_stride + whole, row = t * g.row_stride + whole;
      copy_some(static_cast<S*>(g.target) + (Load ? row : at),
                static_cast<const S*>(g.source) + (Load ? at : row), g.lanes - whole);
    }
  } else {
    transfer_any<E, Load>(g, 0, g.steps, whole, g.lanes);
  }
}

// Steps contiguous.
template <class E, bool Load>
void transfer_columns(const TransferArgs& g) {
  using S = typename Element<E>::Scalar;
  constexpr int n = Vec<S>::lanes;
  if constexpr (kIsComplex<E>) {
    transfer_any<E, Load>(g, 0, g.steps, 0, g.lanes);
  } else {
    const std::ptrdiff_t steps = g.steps / n * n;
    const int lanes = g.lanes / n * n;
    [[maybe_unused]] const bool past_cache = g.past_cache &&
                                             reinterpret_cast<std::uintptr_t>(g.target) % 16 == 0 &&
                                             g.lane_stride % kPartLanes<S> == 0;
    for (int i = 0; i < lanes; i += n) {
      for (std::ptrdiff_t t = 0; t < steps; t += n) {
        Vec<S> block[n];
        if constexpr (Load && std::is_same_v<E, S>) {
          load_transposed(static_cast<const E*>(g.source) + i * g.lane_stride + t, g.lane_stride,
                          block);
        } else {
          for (int k = 0; k < n; ++k) {
            if constexpr (Load) {
              block[k] =
                  load_contiguous(static_cast<const E*>(g.source) + (i + k) * g.lane_stride + t);
            } else {
              block[k] = load(static_cast<const S*>(g.source) + (t + k) * g.row_stride + i);
            }
          }
          transpose(block);
        }
        for (int k = 0; k < n; ++k) {
          if constexpr (Load) {
            store(static_cast<S*>(g.target) + (t + k) * g.row_stride + i, block[k]);
          } else {
            E* to = static_cast<E*>(g.target) + (i + k) * g.lane_stride + t;
            if (std::is_same_v<E, S> && past_cache) {
              store_past_cache(reinterpret_cast<S*>(to), block[k]);
            } else {
              store_contiguous(to, block[k]);
            }
          }
        }
      }
    }
    transfer_any<E, Load>(g, steps, g.steps, 0, lanes);
    transfer_any<E, Load>(g, 0, g.steps, lanes, g.lanes);
  }
}

template <class E, bool Load>
void transfer(const TransferArgs& g) {
  using S = typename Element<E>::Scalar;
  if (g.lane_stride == 1) return transfer_rows<E, Load>(g);
  if (g.step_stride == 1) return transfer_columns<E, Load>(g);
  if (g.step_stride == -1) {  // the same, from the other end
    TransferArgs flipped = g;
    const std::ptrdiff_t last = g.steps - 1;
    flipped.step_stride = 1;
    flipped.row_stride = -g.row_stride;
    if constexpr (Load) {
      flipped.source = static_cast<const E*>(g.source) - last;
      flipped.target = static_cast<S*>(g.target) + last * g.row_stride;
    } else {
      flipped.source = static_cast<const S*>(g.source) + last * g.row_stride;
      flipped.target = static_cast<E*>(g.target) - last;
    }
    return transfer_columns<E, Load>(flipped);
  }
  transfer_any<E, Load>(g, 0, g.steps, 0, g.lanes);
}

template <class E>
void add(InstructionSet& set, DType dtype) {
  set.load[static_cast<int>(dtype)] = transfer<E, true>;
  set.store[static_cast<int>(dtype)] = transfer<E, false>;
}

}  // namespace

void add_transfers(InstructionSet& set) {
  add<Half>(set, DType::f16);
  add<BFloat16>(set, DType::bf16);
  add<float>(set, DType::f32);
  add<double>(set, DType::f64);
  add<Complex<float>>(set, DType::c64);
  add<Complex<double>>(set, DType::c128);
}

}  // namespace scanrnn::cpu::SCANRNN_ISA
