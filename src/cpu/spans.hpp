// SPDX-License-Identifier: Apache-2.0
// Where sequences lie in the (B,T) plane, and arithmetic on indices: what executors share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scanrnn/types.hpp"

namespace scanrnn::cpu {

using Index = std::int64_t;

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

inline Index read_index(const ConstArray<1>& array, Index i) {
  const char* p = static_cast<const char*>(array.data);
  const Index at = i * array.stride[0];
  if (array.dtype == DType::i32) {
    return *reinterpret_cast<const std::int32_t*>(p + at * 4);
  }
  return *reinterpret_cast<const std::int64_t*>(p + at * 8);
}

/// Steps [begin, end) of row `row` are a sequence; [0, begin) and [end, time) of that row, where
/// they belong to no other sequence, are padding.
struct Span {
  Index row, begin, end;
  Index length() const { return end - begin; }
};

/// Sequence n of a problem.
template <class AnyProblem>  // Problem or SolveProblem
Span span_of(const AnyProblem& p, Index n) {
  if (p.layout.cu_seqlens) {
    return {0, read_index(p.layout.cu_seqlens, n), read_index(p.layout.cu_seqlens, n + 1)};
  }
  if (!p.layout.lengths) return {n, 0, p.time};
  const Index length = read_index(p.layout.lengths, n);
  return p.layout.left_padded ? Span{n, p.time - length, p.time} : Span{n, 0, length};
}

}  // namespace scanrnn::cpu
