// min and max as the device language's built-ins: scalar and SIMT code call them unqualified.
#pragma once

#include <cmath>
#include <type_traits>

#include "kaas_twin/scalar_types.h"

namespace kaas_twin {
template <typename T>
inline constexpr bool is_small_float = std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>;
}

// Of two operands one of which is NaN, the other is the result (as fmax).
template <typename A, typename B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename T>
  requires(kaas_twin::is_small_float<T>)
inline T max(T a, T b) {
  return static_cast<T>(std::fmax(static_cast<float>(a), static_cast<float>(b)));
}
template <typename T>
  requires(kaas_twin::is_small_float<T>)
inline T min(T a, T b) {
  return static_cast<T>(std::fmin(static_cast<float>(a), static_cast<float>(b)));
}
