#include "numbers.h"

#include <bit>
#include <cstring>

#include "kaas_twin/float_formats.h"

namespace kaas_twin {

namespace {

std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float bf16_value(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Branch-free enough for the vectoriser: scale, let the float adder round, rebias.
std::uint16_t f16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal half: the sum with 0.5 rounds at 2^-24
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float f16_value(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t rest = bits & 0x7fffu;
  std::uint32_t magnitude = 0;
  if (rest >= 0x7c00u) {
    magnitude = 0x7f800000u | ((rest & 0x3ffu) << 13);
  } else if (rest >= 0x400u) {
    magnitude = (rest << 13) + 0x38000000u;
  } else {
    magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(rest) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | magnitude);
}

template <typename T>
T combine(T old, T value, int operation) {
  switch (operation) {
    case 1: return static_cast<T>(old + value);
    case 2: return value > old ? value : old;
    default: return value < old ? value : old;
  }
}

template <typename Bits, typename Value, Value (*Decode)(Bits), Bits (*Encode)(Value)>
void atomic_elements(void* out, const void* in, std::size_t bytes, int operation) {
  auto* target = static_cast<Bits*>(out);
  const auto* source = static_cast<const Bits*>(in);
  for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
    Bits old = __atomic_load_n(target + i, __ATOMIC_RELAXED);
    Bits next;
    Bits value;
    std::memcpy(&value, source + i, sizeof(value));
    do {
      next = Encode(combine(Decode(old), Decode(value), operation));
    } while (!__atomic_compare_exchange_n(target + i, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  }
}

float f32_value(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t f32_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
template <typename T>
T same(T value) {
  return value;
}

}  // namespace

void to_bf16(std::uint16_t* out, const float* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = bf16_bits(in[i]);
}

void to_f16(std::uint16_t* out, const float* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f16_bits(in[i]);
}

void from_f16(float* out, const std::uint16_t* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = f16_value(in[i]);
}

void atomic_store(const char* name, void* out, const void* in, std::size_t bytes, int operation,
                  Element element) {
  switch (element) {
    case Element::kF32:
      atomic_elements<std::uint32_t, float, f32_value, f32_bits>(out, in, bytes, operation);
      return;
    case Element::kF16:
      atomic_elements<std::uint16_t, float, f16_value, f16_bits>(out, in, bytes, operation);
      return;
    case Element::kBf16:
      atomic_elements<std::uint16_t, float, bf16_value, bf16_bits>(out, in, bytes, operation);
      return;
    case Element::kS32:
      atomic_elements<std::int32_t, std::int32_t, same<std::int32_t>, same<std::int32_t>>(out, in, bytes,
                                                                                          operation);
      return;
    case Element::kS16:
      atomic_elements<std::int16_t, std::int16_t, same<std::int16_t>, same<std::int16_t>>(out, in, bytes,
                                                                                          operation);
      return;
    case Element::kS8:
      atomic_elements<std::int8_t, std::int8_t, same<std::int8_t>, same<std::int8_t>>(out, in, bytes,
                                                                                      operation);
      return;
    default: break;
  }
  not_modelled(name, "atomic stores of this type");
}

}  // namespace kaas_twin
