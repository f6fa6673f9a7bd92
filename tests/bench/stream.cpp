// SPDX-License-Identifier: Apache-2.0
// What cpu.py compares the scan with, independent of the library: a streaming loop that moves the
// same bytes and computes nothing to speak of, and the plain loop over time that one would write in
// C++.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

// One cache line. The operands of the loop are integers, so no value is slow (subnormal numbers
// are).
typedef std::uint64_t Line __attribute__((vector_size(64), may_alias));

// Past the caches, and so without reading the line first. The streamed bytes are written once a
// call and not read again before the call is over, as a scan's outputs are.
inline void store_past_caches(Line* to, const Line& value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<const __m512i&>(value));
#elif defined(__SSE2__)
  __m128i parts[4];
  std::memcpy(parts, &value, sizeof parts);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
#else
  *to = value;
#endif
}

// Runs f(begin, end) on slices of [0, n), one a thread.
template <class F>
void in_slices(std::ptrdiff_t n, int threads, const F& f) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(f, n * i / threads, n * (i + 1) / threads);
  f(0, n / threads);
  for (std::thread& other : others) other.join();
}

template <int Reads, int Writes, bool PastCaches>
void stream(const void* const* in, void* const* out, std::ptrdiff_t lines, int threads) {
  in_slices(lines, threads, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      Line value = static_cast<const Line*>(in[0])[i];
      for (int k = 1; k < Reads; ++k) value ^= static_cast<const Line*>(in[k])[i];
      for (int k = 0; k < Writes; ++k) {
        Line* to = static_cast<Line*>(out[k]) + i;
        if constexpr (PastCaches)
          store_past_caches(to, value);
        else
          *to = value;
      }
    }
#if defined(__SSE2__)
    if constexpr (PastCaches) _mm_sfence();
#endif
  });
}

template <int Reads, int Writes>
void stream(const void* const* in, void* const* out, std::ptrdiff_t lines, int threads,
            int past_caches) {
  if (past_caches)
    stream<Reads, Writes, true>(in, out, lines, threads);
  else
    stream<Reads, Writes, false>(in, out, lines, threads);
}

}  // namespace

extern "C" {

// Reads `reads` arrays and writes `writes` arrays of `bytes` bytes each. The arrays start at
// multiples of 64 and their sizes are multiples of 64. Returns whether the combination is compiled
// in.
int stream_bytes(int reads, int writes, const void* const* in, void* const* out, std::size_t bytes,
                 int threads, int past_caches) {
  const auto lines = static_cast<std::ptrdiff_t>(bytes / sizeof(Line));
  switch (10 * reads + writes) {
#define STREAM(Reads, Writes)                                    \
  case 10 * Reads + Writes:                                      \
    stream<Reads, Writes>(in, out, lines, threads, past_caches); \
    return 1;
    STREAM(2, 1)  // the scan and cells with two inputs
    STREAM(3, 2)  // the scan's gradient
    STREAM(3, 1)  // cells with three inputs, and with four
    STREAM(4, 1)
    STREAM(4, 2)  // their gradients: every input, its gradient, that of the output, and the output
    STREAM(4, 3)  // where that is the state
    STREAM(5, 3)
    STREAM(5, 4)
#undef STREAM
    default:
      return 0;
  }
}

// h_t = a_t h_{t-1} + x_t, all (B,T,D): time after time, channels innermost; threads share out the
// rows, or the channels when there are fewer rows than threads.
void loop_forward(const float* a, const float* x, float* h, std::ptrdiff_t B, std::ptrdiff_t T,
                  std::ptrdiff_t D, int threads) {
  const std::ptrdiff_t parts = B < threads ? std::min<std::ptrdiff_t>(threads, D) : 1;
  in_slices(B * parts, threads, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      const std::ptrdiff_t from = D * (i % parts) / parts, to = D * (i % parts + 1) / parts;
      for (std::ptrdiff_t t = 0; t < T; ++t) {
        const std::ptrdiff_t row = (i / parts * T + t) * D;
        if (t == 0)
          std::copy(x + row + from, x + row + to, h + row + from);
        else
          for (std::ptrdiff_t d = from; d < to; ++d)
            h[row + d] = a[row + d] * h[row + d - D] + x[row + d];
      }
    }
  });
}

// Its gradient from dh: dx_t = dh_t + a_{t+1} dx_{t+1} and da_t = dx_t h_{t-1}.
void loop_backward(const float* a, const float* h, const float* dh, float* da, float* dx,
                   std::ptrdiff_t B, std::ptrdiff_t T, std::ptrdiff_t D, int threads) {
  const std::ptrdiff_t parts = B < threads ? std::min<std::ptrdiff_t>(threads, D) : 1;
  in_slices(B * parts, threads, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      const std::ptrdiff_t from = D * (i % parts) / parts, to = D * (i % parts + 1) / parts;
      for (std::ptrdiff_t t = T - 1; t >= 0; --t) {
        const std::ptrdiff_t row = (i / parts * T + t) * D;
        for (std::ptrdiff_t d = row + from; d < row + to; ++d) {
          dx[d] = t == T - 1 ? dh[d] : dh[d] + a[d + D] * dx[d + D];
          da[d] = t == 0 ? 0 : dx[d] * h[d - D];
        }
      }
    }
  });
}

}  // extern "C"
