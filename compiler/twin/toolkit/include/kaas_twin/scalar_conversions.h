// Named scalar conversions of the SIMT dialect: __float2half_rn, __bfloat1622float2, __asc_cvt_float2_to_fp8x2, ...
#pragma once

#include <cmath>
#include <cstdint>

#include "kaas_twin/short_vectors.h"

namespace kaas_twin {

template <typename To>
constexpr To narrow(float value, Rounding rounding, Overflow overflow = Overflow::ToInfinity) {
  using Format = std::conditional_t<std::same_as<To, half>, HalfFormat, Bfloat16Format>;
  return To::from_bits(static_cast<uint16_t>(encode_float<Format>(value, rounding, overflow)));
}

/// `value` rounded to an integral float.
inline float round_to_integral(float value, Rounding rounding) {
  switch (rounding) {
    case Rounding::NearestEven: {
      const float truncated = std::trunc(value);
      const float rest = std::fabs(value - truncated);
      const bool odd = std::fmod(truncated, 2.0f) != 0.0f;
      if (rest > 0.5f || (rest == 0.5f && odd)) return truncated + std::copysign(1.0f, value);
      return truncated;
    }
    case Rounding::NearestAway:
      return std::round(value);
    case Rounding::Down:
      return std::floor(value);
    case Rounding::Up:
      return std::ceil(value);
    case Rounding::TowardZero:
      return std::trunc(value);
    case Rounding::Odd: {
      const float truncated = std::trunc(value);
      const bool even = std::fmod(truncated, 2.0f) == 0.0f;
      return truncated != value && even ? truncated + std::copysign(1.0f, value) : truncated;
    }
  }
  return value;
}

/// `value` as an integer: NaN gives 0 and infinities the limits; beyond the range `saturate` clamps, else bits are cut.
template <typename To>
constexpr To float_to_integer(float integral, bool saturate) {
  using Limits = std::numeric_limits<To>;
  if (integral != integral) return 0;
  const bool infinite =
      integral == std::numeric_limits<float>::infinity() || integral == -std::numeric_limits<float>::infinity();
  // Both limits are exact or round away from zero as floats, so `>=`/`<=` decide correctly.
  if (saturate || infinite) {
    if (integral >= static_cast<float>(Limits::max())) return Limits::max();
    if (integral <= static_cast<float>(Limits::min())) return Limits::min();
  }
  if (integral >= 18446744073709551616.0f || integral <= -18446744073709551616.0f) return 0;
  const uint64_t magnitude = static_cast<uint64_t>(integral < 0 ? -integral : integral);
  return static_cast<To>(integral < 0 ? ~magnitude + 1 : magnitude);
}

}  // namespace kaas_twin

#define KAAS_TWIN_ROUNDED_CONVERSIONS(suffix, rounding)                                                              \
  constexpr half __float2half_##suffix(float x) { return kaas_twin::narrow<half>(x, rounding); }                     \
  constexpr half __float2half_##suffix##_sat(float x) {                                                              \
    return kaas_twin::narrow<half>(x, rounding, kaas_twin::Overflow::Saturate);                                      \
  }                                                                                                                  \
  constexpr half2 __float22half2_##suffix(float2 x) {                                                                \
    return {__float2half_##suffix(x.x), __float2half_##suffix(x.y)};                                                 \
  }                                                                                                                  \
  constexpr bfloat16_t __float2bfloat16_##suffix(float x) { return kaas_twin::narrow<bfloat16_t>(x, rounding); }     \
  constexpr bfloat16x2_t __float22bfloat162_##suffix(float2 x) {                                                     \
    return {__float2bfloat16_##suffix(x.x), __float2bfloat16_##suffix(x.y)};                                         \
  }                                                                                                                  \
  constexpr half __bfloat162half_##suffix(bfloat16_t x) { return __float2half_##suffix(static_cast<float>(x)); }     \
  constexpr bfloat16_t __half2bfloat16_##suffix(half x) { return __float2bfloat16_##suffix(static_cast<float>(x)); } \
  inline int32_t __float2int_##suffix(float x) {                                                                     \
    return kaas_twin::float_to_integer<int32_t>(kaas_twin::round_to_integral(x, rounding), true);                    \
  }                                                                                                                  \
  inline uint32_t __float2uint_##suffix(float x) {                                                                   \
    return kaas_twin::float_to_integer<uint32_t>(kaas_twin::round_to_integral(x, rounding), true);                   \
  }                                                                                                                  \
  inline int64_t __float2ll_##suffix(float x) {                                                                      \
    return kaas_twin::float_to_integer<int64_t>(kaas_twin::round_to_integral(x, rounding), true);                    \
  }                                                                                                                  \
  inline uint64_t __float2ull_##suffix(float x) {                                                                    \
    return kaas_twin::float_to_integer<uint64_t>(kaas_twin::round_to_integral(x, rounding), true);                   \
  }                                                                                                                  \
  inline int32_t __half2int_##suffix(half x) { return __float2int_##suffix(x); }                                     \
  inline uint32_t __half2uint_##suffix(half x) { return __float2uint_##suffix(x); }                                  \
  inline int32_t __bfloat162int_##suffix(bfloat16_t x) { return __float2int_##suffix(x); }                           \
  inline uint32_t __bfloat162uint_##suffix(bfloat16_t x) { return __float2uint_##suffix(x); }

KAAS_TWIN_ROUNDED_CONVERSIONS(rn, kaas_twin::Rounding::NearestEven)
KAAS_TWIN_ROUNDED_CONVERSIONS(rna, kaas_twin::Rounding::NearestAway)
KAAS_TWIN_ROUNDED_CONVERSIONS(rz, kaas_twin::Rounding::TowardZero)
KAAS_TWIN_ROUNDED_CONVERSIONS(rd, kaas_twin::Rounding::Down)
KAAS_TWIN_ROUNDED_CONVERSIONS(ru, kaas_twin::Rounding::Up)
#undef KAAS_TWIN_ROUNDED_CONVERSIONS

constexpr half __float2half(float x) { return half(x); }
constexpr bfloat16_t __float2bfloat16(float x) { return bfloat16_t(x); }
constexpr float __half2float(half x) { return x; }
constexpr float __bfloat162float(bfloat16_t x) { return x; }
constexpr float2 __half22float2(half2 x) { return {x.x, x.y}; }
constexpr float2 __bfloat1622float2(bfloat16x2_t x) { return {x.x, x.y}; }
constexpr float2 __e4m3x22float2(float8_e4m3x2_t x) { return {x.x, x.y}; }
constexpr float2 __e5m2x22float2(float8_e5m2x2_t x) { return {x.x, x.y}; }

using __asc_fp8_storage_t = uint8_t;
using __asc_fp8x2_storage_t = uint16_t;
enum __asc_saturation_t { __ASC_NOSAT, __ASC_SATFINITE };
enum __asc_fp8_interpretation_t { __ASC_E4M3, __ASC_E5M2 };

/// Two floats as two fp8 values, x in the low byte. SATFINITE clamps finite and infinite overflow; NaN stays NaN.
constexpr __asc_fp8x2_storage_t __asc_cvt_float2_to_fp8x2(float2 x, __asc_saturation_t saturation,
                                                          __asc_fp8_interpretation_t interpretation) {
  const auto overflow = saturation == __ASC_SATFINITE ? kaas_twin::Overflow::Clamp : kaas_twin::Overflow::ToInfinity;
  const auto encode = [&](float value) {
    constexpr auto nearest = kaas_twin::Rounding::NearestEven;
    return interpretation == __ASC_E4M3 ? kaas_twin::encode_float<kaas_twin::E4m3Format>(value, nearest, overflow)
                                        : kaas_twin::encode_float<kaas_twin::E5m2Format>(value, nearest, overflow);
  };
  return static_cast<__asc_fp8x2_storage_t>(encode(x.x) | (encode(x.y) << 8));
}

constexpr __asc_fp8_storage_t __asc_cvt_float_to_fp8(float x, __asc_saturation_t saturation,
                                                     __asc_fp8_interpretation_t interpretation) {
  return static_cast<__asc_fp8_storage_t>(__asc_cvt_float2_to_fp8x2({x, 0.0f}, saturation, interpretation));
}
