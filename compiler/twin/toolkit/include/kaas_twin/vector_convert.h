// vcvt: conversion between registers of different element types.
//
// Between widths, R = wide / narrow: narrowing writes the result of lane i to lane i*R + part and 0 elsewhere; widening
// reads lane i*R + part. The mask counts source elements, and inactive ones give 0.
#pragma once

#include "kaas_twin/scalar_conversions.h"
#include "kaas_twin/vector_mask.h"

namespace kaas_twin::convert {

template <typename T>
constexpr bool is_float8 = std::same_as<T, float8_e4m3_t> || std::same_as<T, float8_e5m2_t>;
template <typename T>
constexpr bool is_floating = std::same_as<T, float> || SixteenBitFloat<T> || is_float8<T>;
template <typename T>
constexpr bool is_float4_pair = std::same_as<T, float4_e2m1x2_t> || std::same_as<T, float4_e1m2x2_t>;

template <typename T>
struct FormatOf;
template <>
struct FormatOf<float> {
  using type = Float32Format;
};
template <>
struct FormatOf<half> {
  using type = HalfFormat;
};
template <>
struct FormatOf<bfloat16_t> {
  using type = Bfloat16Format;
};
template <>
struct FormatOf<float8_e4m3_t> {
  using type = E4m3Format;
};
template <>
struct FormatOf<float8_e5m2_t> {
  using type = E5m2Format;
};

template <typename D>
D from_encoding(uint32_t bits) {
  using Raw = std::conditional_t<sizeof(D) == 1, uint8_t, std::conditional_t<sizeof(D) == 2, uint16_t, uint32_t>>;
  return std::bit_cast<D>(static_cast<Raw>(bits));
}

template <typename D, typename S>
D element(S value, Rounding rounding, bool saturate) {
  const Overflow overflow = saturate ? Overflow::Saturate : Overflow::ToInfinity;
  if constexpr (is_floating<S> && is_floating<D>) {
    if constexpr (std::same_as<D, float>)
      return static_cast<float>(value);
    else
      return from_encoding<D>(encode_float<typename FormatOf<D>::type>(static_cast<float>(value), rounding, overflow));
  } else if constexpr (is_floating<S>) {
    return float_to_integer<D>(round_to_integral(static_cast<float>(value), rounding), saturate);
  } else if constexpr (is_floating<D>) {
    const bool negative = value < S{0};
    const uint64_t wide = static_cast<uint64_t>(static_cast<int64_t>(value));
    return from_encoding<D>(
        encode_scaled<typename FormatOf<D>::type>(negative, negative ? ~wide + 1 : wide, 0, rounding, overflow));
  } else {
    if (saturate) {
      if (std::cmp_greater(value, std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
      if (std::cmp_less(value, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    }
    return static_cast<D>(value);
  }
}

/// The nibble whose value is nearest to `value` in the rounding mode; beyond the largest magnitude it saturates.
template <typename Pair>
uint8_t encode_nibble(float value, Rounding rounding) {
  constexpr auto decode = std::same_as<Pair, float4_e2m1x2_t> ? decode_e2m1 : decode_e1m2;
  const bool negative = std::signbit(value);
  const uint8_t sign = negative ? 8 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude != magnitude) return 0;
  if (magnitude >= decode(7)) return sign | 7;
  uint8_t below = 0;
  while (decode(below + 1u) <= magnitude) ++below;
  const float low = decode(below), high = decode(below + 1u);
  const float rest = (magnitude - low) / (high - low);  // exact: the spacing is a power of two
  const uint64_t dropped = rest == 0.0f ? 0 : rest < 0.5f ? 1 : rest == 0.5f ? 2 : 3;
  return sign | static_cast<uint8_t>(below + (rounds_up(rounding, negative, (below & 1) != 0, dropped, 2) ? 1 : 0));
}

}  // namespace kaas_twin::convert

template <typename D, typename S, typename... Controls>
void vcvt(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src, const vector_bool& mask,
          Controls... controls) {
  using namespace kaas_twin;
  constexpr int round_code = tag_value<kRound>(static_cast<int>(Rounding::NearestEven), Controls{}...);
  constexpr bool saturate = tag_value<kSaturate>(0, Controls{}...) != 0;
  constexpr int part = tag_value<kPart>(0, Controls{}...);
  ((void)controls, ...);
  if constexpr (tag_value<kMode>(0, Controls{}...) == MODE_MERGING.value) not_modelled("vcvt", "MODE_MERGING");
  if constexpr (round_code == ROUND_H.value) not_modelled("vcvt", "ROUND_H");
  constexpr auto rounding = static_cast<Rounding>(round_code == ROUND_H.value ? 0 : round_code);

  Register<D> result;
  std::memset(&result, 0, sizeof(result));
  if constexpr (convert::is_float4_pair<D>) {
    // Two bfloat16 lanes give one byte: lanes 2i, 2i+1 -> byte 4i + part.
    static_assert(std::same_as<S, bfloat16_t>);
    for (int i = 0; i < Register<S>::lanes / 2; ++i) {
      uint8_t byte = 0;
      for (int j = 0; j < 2; ++j) {
        if (!mask.active<S>(2 * i + j)) continue;
        byte |= static_cast<uint8_t>(convert::encode_nibble<D>(src.lane[2 * i + j], rounding) << (4 * j));
      }
      result.lane[4 * i + part].bits = byte;
    }
  } else if constexpr (convert::is_float4_pair<S>) {
    static_assert(std::same_as<D, bfloat16_t>);
    constexpr auto decode = std::same_as<S, float4_e2m1x2_t> ? decode_e2m1 : decode_e1m2;
    for (int i = 0; i < Register<D>::lanes / 2; ++i) {
      if (!mask.active<S>(4 * i + part)) continue;
      const uint32_t byte = src.lane[4 * i + part].bits;
      result.lane[2 * i] = bfloat16_t(decode(byte & 15u));
      result.lane[2 * i + 1] = bfloat16_t(decode(byte >> 4));
    }
  } else if constexpr (sizeof(S) >= sizeof(D)) {
    constexpr int ratio = sizeof(S) / sizeof(D);
    for (int i = 0; i < Register<S>::lanes; ++i) {
      if (mask.active<S>(i)) {
        result.lane[i * ratio + part] = convert::element<D>(src.lane[i], rounding, saturate);
      }
    }
  } else {
    constexpr int ratio = sizeof(D) / sizeof(S);
    for (int i = 0; i < Register<D>::lanes; ++i) {
      if (mask.active<S>(i * ratio + part)) {
        result.lane[i] = convert::element<D>(src.lane[i * ratio + part], rounding, saturate);
      }
    }
  }
  dst = result;
}
