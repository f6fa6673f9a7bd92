// SPDX-License-Identifier: Apache-2.0
// Where sequences lie in the (B,T) plane, arithmetic on indices, plans in the caller's workspace:
// what executors share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "scanrnn/error.hpp"
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

/// A plan in the caller's workspace.
template <class Plan>
struct Placed {
  Plan plan;
  char* base;
};

/// Bytes of `make_plan(threads)`. By the time of the call there may be other threads than now, and
/// fewer of them may take wider blocks: one alone must have room, too.
template <class MakePlan>
std::size_t bytes_of(const MakePlan& make_plan) {
  const auto plan = make_plan(num_threads());
  return plan.threads == 1 ? plan.total_bytes
                           : std::max(plan.total_bytes, make_plan(1).total_bytes);
}

/// `make_plan(threads)` with as many threads as there is room for.
template <class MakePlan>
auto placed(const char* call, Workspace workspace, const MakePlan& make_plan) {
  auto plan = make_plan(num_threads());
  // Their number may have changed since the caller asked for the size.
  while (plan.total_bytes > workspace.bytes && plan.threads > 1) plan = make_plan(plan.threads - 1);
  if (plan.total_bytes > workspace.bytes || workspace.data == nullptr) {
    throw InvalidArgument(std::string(call) + ": workspace has " + std::to_string(workspace.bytes) +
                          " bytes, expected " + std::to_string(plan.total_bytes));
  }
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(workspace.data);
  return Placed<decltype(plan)>{plan,
                                static_cast<char*>(workspace.data) + (aligned(address) - address)};
}

}  // namespace scanrnn::cpu
