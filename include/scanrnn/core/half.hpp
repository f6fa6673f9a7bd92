// SPDX-License-Identifier: Apache-2.0
// Storage types of 16 bits. Arithmetic never happens in them: values are widened to float on load
// and rounded to nearest even on store.
#pragma once

#include <cstdint>

#include "scanrnn/core/config.hpp"

namespace scanrnn {

struct Half {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

namespace detail {

SCANRNN_HD float bits_to_float(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

SCANRNN_HD std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace detail

SCANRNN_HD float to_float(BFloat16 value) {
  return detail::bits_to_float(static_cast<std::uint32_t>(value.bits) << 16);
}

SCANRNN_HD float to_float(Half value) {
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  // A subnormal number is its fraction in units of 2^-24. No float is subnormal on the way: a
  // caller may run in threads that take those for 0.
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const float normal = detail::bits_to_float((magnitude << 13) + 0x38000000u);
  const float finite = magnitude < 0x400u ? subnormal : normal;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;
  const std::uint32_t bits = magnitude >= 0x7c00u ? special : detail::float_to_bits(finite);
  return detail::bits_to_float(bits | (static_cast<std::uint32_t>(value.bits & 0x8000u) << 16));
}

SCANRNN_HD BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = detail::float_to_bits(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? quiet : rounded)};
}

SCANRNN_HD Half to_half(float value) {
  const std::uint32_t bits = detail::float_to_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the target is a fixed-point number with unit 2^-24: adding 0.5 aligns the float's
  // own rounding with it.
  const std::uint32_t subnormal =
      detail::float_to_bits(detail::bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const std::uint32_t result = magnitude >= 0x47800000u ? special : finite;
  return {static_cast<std::uint16_t>(sign | result)};
}

}  // namespace scanrnn
