// SPDX-License-Identifier: Apache-2.0
// What Clang's CUDA headers lack of NVIDIA's: stores that leave the caches first, and nan().
// Included ahead of everything (-include) by clang.py.
#pragma once

#define SCANRNN_STCS(Type, instruction, ...)                                     \
  __device__ inline void __stcs(Type* at, Type v) {                              \
    asm volatile("st.global.cs." instruction ::"l"(at), __VA_ARGS__ : "memory"); \
  }
SCANRNN_STCS(unsigned short, "u16 [%0], %1;", "h"(v))
SCANRNN_STCS(unsigned, "u32 [%0], %1;", "r"(v))
SCANRNN_STCS(float, "f32 [%0], %1;", "f"(v))
SCANRNN_STCS(uint2, "v2.u32 [%0], {%1, %2};", "r"(v.x), "r"(v.y))
SCANRNN_STCS(uint4, "v4.u32 [%0], {%1, %2, %3, %4};", "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w))
#undef SCANRNN_STCS

__device__ inline double nan(const char*) { return __longlong_as_double(0x7ff8000000000000); }
