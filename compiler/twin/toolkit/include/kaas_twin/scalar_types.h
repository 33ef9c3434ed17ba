// Scalar element types of the Ascend C dialect: half, bfloat16_t, the float8 and the packed float4 types.
//
// They are trivially copyable, have the size of the device type, and compute through float with one rounding per
// operation (exact for + - * / because float carries more than twice the mantissa bits).
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "kaas_twin/float_formats.h"

struct half {
  uint16_t bits;

  half() = default;
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  constexpr half(Number value) : bits(kaas_twin::encode_half(static_cast<float>(value))) {}
  constexpr operator float() const { return kaas_twin::decode_float<kaas_twin::HalfFormat>(bits); }
  static constexpr half from_bits(uint16_t raw) {
    half result{};
    result.bits = raw;
    return result;
  }
};

struct bfloat16_t {
  uint16_t bits;

  bfloat16_t() = default;
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  constexpr bfloat16_t(Number value) : bits(kaas_twin::encode_bfloat16(static_cast<float>(value))) {}
  constexpr explicit bfloat16_t(half value) : bfloat16_t(static_cast<float>(value)) {}
  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static constexpr bfloat16_t from_bits(uint16_t raw) {
    bfloat16_t result{};
    result.bits = raw;
    return result;
  }
};

namespace kaas_twin {

template <typename T>
concept SixteenBitFloat = std::same_as<T, half> || std::same_as<T, bfloat16_t>;

/// An 8-bit float; conversion from float saturates to the largest finite value and keeps NaN.
template <typename Format, int Tag>
struct Float8 {
  uint8_t bits;

  Float8() = default;
  constexpr explicit Float8(float value)
      : bits(static_cast<uint8_t>(encode_float<Format>(value, Rounding::NearestEven, Overflow::Clamp))) {}
  constexpr operator float() const { return decode_float<Format>(bits); }
  static constexpr Float8 from_bits(uint8_t raw) {
    Float8 result{};
    result.bits = raw;
    return result;
  }
};

/// Two 4-bit values in one byte, the first in the low half.
template <int Tag>
struct Float4Pair {
  uint8_t bits;
};

}  // namespace kaas_twin

// Templated on both operands so that `half + float` stays float arithmetic instead of becoming ambiguous.
#define KAAS_TWIN_FLOAT16_OPERATOR(op)                                      \
  template <typename A, typename B>                                         \
    requires(kaas_twin::SixteenBitFloat<A> && std::same_as<A, B>)           \
  constexpr A operator op(A a, B b) {                                       \
    return A(static_cast<float>(a) op static_cast<float>(b));               \
  }                                                                         \
  template <typename A, typename B>                                         \
    requires kaas_twin::SixteenBitFloat<A> && std::convertible_to<B, float> \
  constexpr A& operator op## = (A & a, B b) {                               \
    return a = A(static_cast<float>(a) op static_cast<float>(b));           \
  }
KAAS_TWIN_FLOAT16_OPERATOR(+)
KAAS_TWIN_FLOAT16_OPERATOR(-)
KAAS_TWIN_FLOAT16_OPERATOR(*)
KAAS_TWIN_FLOAT16_OPERATOR(/)
#undef KAAS_TWIN_FLOAT16_OPERATOR

template <kaas_twin::SixteenBitFloat A>
constexpr A operator-(A a) {
  return A::from_bits(static_cast<uint16_t>(a.bits ^ 0x8000u));
}

using half_t = half;
using float8_e4m3_t = kaas_twin::Float8<kaas_twin::E4m3Format, 0>;
using float8_e5m2_t = kaas_twin::Float8<kaas_twin::E5m2Format, 1>;
using fp8_e4m3fn_t = float8_e4m3_t;
using fp8_e5m2_t = float8_e5m2_t;

/// A power of two as its biased exponent; 255 is NaN.
struct float8_e8m0_t {
  uint8_t bits;

  constexpr operator float() const {
    if (bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
    if (bits == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
  }
};
using fp8_e8m0_t = float8_e8m0_t;

using float4_e2m1x2_t = kaas_twin::Float4Pair<0>;
using float4_e1m2x2_t = kaas_twin::Float4Pair<1>;
using fp4x2_e2m1_t = float4_e2m1x2_t;
using fp4x2_e1m2_t = float4_e1m2x2_t;

namespace kaas_twin {

/// Formats of the 4-bit halves. e1m2 has one exponent bit with bias 1: its values are multiples of 1/4.
constexpr float decode_e2m1(uint32_t nibble) {
  constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = magnitudes[nibble & 7u];
  return (nibble & 8u) != 0 ? -value : value;
}

constexpr float decode_e1m2(uint32_t nibble) {
  const float value = static_cast<float>(nibble & 7u) * 0.25f;
  return (nibble & 8u) != 0 ? -value : value;
}

}  // namespace kaas_twin

static_assert(sizeof(half) == 2 && std::is_trivially_copyable_v<half> && std::is_trivial_v<half>);
static_assert(sizeof(bfloat16_t) == 2 && std::is_trivially_copyable_v<bfloat16_t> && std::is_trivial_v<bfloat16_t>);
static_assert(sizeof(float8_e4m3_t) == 1 && std::is_trivial_v<float8_e4m3_t>);
static_assert(sizeof(float8_e5m2_t) == 1 && std::is_trivial_v<float8_e5m2_t>);
static_assert(sizeof(float8_e8m0_t) == 1 && sizeof(float4_e2m1x2_t) == 1 && sizeof(float4_e1m2x2_t) == 1);
