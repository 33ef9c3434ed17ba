// Bit-exact conversion between numbers and the small floating-point formats of the Ascend 950.
//
// Everything is integer arithmetic on the host, so results depend neither on F16C nor on the host's rounding mode.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace kaas_twin {

/// Rounding modes of the vector conversions; `Odd` is round-to-odd (truncate, then set the last bit if inexact).
enum class Rounding : uint8_t { NearestEven, NearestAway, Down, Up, TowardZero, Odd };

/// What a conversion does with a value beyond the largest finite one.
/// `Saturate`: the largest finite value, and NaN becomes 0. `Clamp`: the largest finite value, NaN stays NaN.
enum class Overflow : uint8_t { ToInfinity, Saturate, Clamp };

/// A binary floating-point format with `ExponentBits` + `MantissaBits` + 1 sign bit.
/// `FiniteOnly` formats have no infinity and a single NaN mantissa (float8 e4m3).
template <int ExponentBits, int MantissaBits, bool FiniteOnly = false>
struct FloatFormat {
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr bool finite_only = FiniteOnly;
  static constexpr uint32_t sign_mask = 1u << (ExponentBits + MantissaBits);
  static constexpr uint32_t mantissa_mask = (1u << MantissaBits) - 1;
  static constexpr uint32_t exponent_mask = ((1u << ExponentBits) - 1) << MantissaBits;
  static constexpr uint32_t infinity = exponent_mask;
  static constexpr uint32_t quiet_nan =
      FiniteOnly ? (exponent_mask | mantissa_mask) : (exponent_mask | (1u << (MantissaBits - 1)));
  static constexpr uint32_t largest = FiniteOnly ? (exponent_mask | mantissa_mask) - 1 : exponent_mask - 1;
};

using Float32Format = FloatFormat<8, 23>;
using HalfFormat = FloatFormat<5, 10>;
using Bfloat16Format = FloatFormat<8, 7>;
using E4m3Format = FloatFormat<4, 3, true>;
using E5m2Format = FloatFormat<5, 2>;

/// Whether the bits kept should be incremented, given the bits that rounding drops.
constexpr bool rounds_up(Rounding rounding, bool negative, bool kept_is_odd, uint64_t dropped, uint64_t half_way) {
  switch (rounding) {
    case Rounding::NearestEven:
      return dropped > half_way || (dropped == half_way && kept_is_odd);
    case Rounding::NearestAway:
      return dropped >= half_way;
    case Rounding::Down:
      return negative && dropped != 0;
    case Rounding::Up:
      return !negative && dropped != 0;
    case Rounding::Odd:
      return dropped != 0 && !kept_is_odd;
    case Rounding::TowardZero:
      return false;
  }
  return false;
}

template <typename Format>
constexpr uint32_t overflowed_bits(bool negative, Overflow overflow) {
  const uint32_t sign = negative ? Format::sign_mask : 0;
  if (overflow != Overflow::ToInfinity) return sign | Format::largest;
  return sign | (Format::finite_only ? Format::quiet_nan : Format::infinity);
}

/// Bits of `(-1)^negative * significand * 2^exponent` in `Format`, rounded once.
template <typename Format>
constexpr uint32_t encode_scaled(bool negative, uint64_t significand, int exponent, Rounding rounding,
                                 Overflow overflow) {
  const uint32_t sign = negative ? Format::sign_mask : 0;
  if (significand == 0) return sign;
  const int top = exponent + 63 - std::countl_zero(significand);  // value lies in [2^top, 2^(top+1))
  const int smallest_normal = 1 - Format::bias;
  const bool subnormal = top < smallest_normal;
  // The last kept bit weighs 2^last.
  const int last = (subnormal ? smallest_normal : top) - Format::mantissa_bits;
  const int shift = last - exponent;
  uint64_t kept;
  if (shift <= 0) {
    kept = significand << -shift;
  } else if (shift >= 64) {
    // Everything is dropped and lies below half of the last kept bit (or just at it, for shift == 64).
    const bool at_least_half = shift == 64 && (significand >> 63) != 0;
    const uint64_t dropped = at_least_half ? 2 + ((significand << 1) != 0) : 1;
    kept = rounds_up(rounding, negative, false, dropped, 2) ? 1 : 0;
  } else {
    kept = significand >> shift;
    const uint64_t dropped = significand & ((uint64_t{1} << shift) - 1);
    if (rounds_up(rounding, negative, (kept & 1) != 0, dropped, uint64_t{1} << (shift - 1))) ++kept;
  }
  // A normal number's `kept` holds its implicit bit, which adds one to the exponent field below.
  const uint64_t exponent_field = subnormal ? 0 : static_cast<uint64_t>(top + Format::bias - 1);
  const uint64_t magnitude = (exponent_field << Format::mantissa_bits) + kept;
  if (magnitude > Format::largest) return overflowed_bits<Format>(negative, overflow);
  return sign | static_cast<uint32_t>(magnitude);
}

/// Bits of `value` in `Format`; NaN keeps its sign and becomes the format's quiet NaN.
template <typename Format>
constexpr uint32_t encode_float(float value, Rounding rounding = Rounding::NearestEven,
                                Overflow overflow = Overflow::ToInfinity) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool negative = (bits >> 31) != 0;
  const uint32_t sign = negative ? Format::sign_mask : 0;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return overflow == Overflow::Saturate ? 0 : (sign | Format::quiet_nan);
  if (magnitude == 0x7f800000u) return overflowed_bits<Format>(negative, overflow);
  const uint32_t exponent_field = magnitude >> 23;
  const uint32_t mantissa = magnitude & 0x7fffffu;
  if (exponent_field == 0) return encode_scaled<Format>(negative, mantissa, -149, rounding, overflow);
  return encode_scaled<Format>(negative, mantissa | 0x800000u, static_cast<int>(exponent_field) - 150, rounding,
                               overflow);
}

/// The exact value of `bits` as a float (every format here is a subset of float).
template <typename Format>
constexpr float decode_float(uint32_t bits) {
  const uint32_t sign = (bits & Format::sign_mask) != 0 ? 0x80000000u : 0;
  const uint32_t magnitude = bits & (Format::sign_mask - 1);
  constexpr int widen = 23 - Format::mantissa_bits;
  if constexpr (Format::finite_only) {
    if (magnitude == Format::quiet_nan) return std::bit_cast<float>(sign | 0x7fc00000u);
  } else if (magnitude >= Format::infinity) {
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & Format::mantissa_mask) << widen));
  }
  if constexpr (Format::exponent_bits == 8) {
    return std::bit_cast<float>(sign | (magnitude << widen));
  } else {
    // Placing the fields in a float leaves the exponent too small by the difference of the biases; one exact
    // multiplication by a power of two corrects it, for subnormal numbers too.
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - Format::bias) << 23);
    const float unsigned_value = std::bit_cast<float>(magnitude << widen) * scale;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(unsigned_value) | sign);
  }
}

/// Round-to-nearest-even float -> bfloat16, the hot path of every bf16 store.
constexpr uint16_t encode_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7fc0u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Round-to-nearest-even float -> half, the hot path of every fp16 store.
constexpr uint16_t encode_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x38800000u && magnitude < 0x477ff000u) {  // normal in both formats, and does not round to infinity
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
  }
  return static_cast<uint16_t>(encode_float<HalfFormat>(value));
}

}  // namespace kaas_twin
