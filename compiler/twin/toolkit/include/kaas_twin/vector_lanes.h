// How an operation runs over the lanes of a register: the three loops every element-wise intrinsic is made of, and the
// numeric rules of one lane (wrapping integers, NaN-aware extrema, units that flush subnormal numbers).
#pragma once

#include <cmath>
#include <concepts>
#include <limits>

#include "kaas_twin/engine.h"
#include "kaas_twin/vector_register.h"

namespace kaas_twin::lanes {

/// dst[i] = operation(a[i]) for active lanes, 0 for the others.
template <typename D, typename S, typename Operation>
void map(Register<D>& dst, const Register<S>& a, const Predicate& mask, Operation operation) {
  static_assert(sizeof(D) == sizeof(S));
  Register<D> result;
  if (all_active<D>(mask)) {
    for (int i = 0; i < Register<D>::lanes; ++i) result.lane[i] = operation(a.lane[i]);
  } else {
    for (int i = 0; i < Register<D>::lanes; ++i) result.lane[i] = mask.active<D>(i) ? operation(a.lane[i]) : D{};
  }
  dst = result;
}

/// dst[i] = operation(a[i], b[i]) for active lanes, 0 for the others.
template <typename D, typename A, typename B, typename Operation>
void zip(Register<D>& dst, const Register<A>& a, const Register<B>& b, const Predicate& mask,
         Operation operation) {
  static_assert(sizeof(D) == sizeof(A) && sizeof(D) == sizeof(B));
  Register<D> result;
  if (all_active<D>(mask)) {
    for (int i = 0; i < Register<D>::lanes; ++i) result.lane[i] = operation(a.lane[i], b.lane[i]);
  } else {
    for (int i = 0; i < Register<D>::lanes; ++i) {
      result.lane[i] = mask.active<D>(i) ? operation(a.lane[i], b.lane[i]) : D{};
    }
  }
  dst = result;
}

/// A predicate of the active lanes where relation(i) holds.
template <typename T, typename Relation>
Predicate where(const Predicate& mask, Relation relation) {
  Predicate result = Predicate::none();
  for (int i = 0; i < Register<T>::lanes; ++i) {
    if (mask.active<T>(i) && relation(i)) result.set(i * static_cast<int>(sizeof(T)));
  }
  return result;
}

template <typename T>
constexpr bool is_real = std::same_as<T, float> || SixteenBitFloat<T>;

/// An integer operation done modulo 2^width.
template <typename T, typename Operation>
constexpr T wrapping(T a, T b, Operation operation) {
  using Unsigned = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  return static_cast<T>(static_cast<Unsigned>(
      operation(static_cast<Wide>(static_cast<Unsigned>(a)), static_cast<Wide>(static_cast<Unsigned>(b)))));
}

template <typename T>
bool is_nan(T value) {
  if constexpr (is_real<T>) {
    const float number = static_cast<float>(value);
    return number != number;
  } else {
    return false;
  }
}

template <typename T>
bool is_negative(T value) {
  if constexpr (is_real<T>) {
    return std::signbit(static_cast<float>(value));
  } else if constexpr (std::is_signed_v<T>) {
    return value < 0;
  } else {
    return false;
  }
}

/// Results and operands of the exp/ln/sqrt units: a subnormal float counts as zero.
inline float flush_subnormal(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

#define KAAS_TWIN_LANE_OPERATION(name, op)                                     \
  struct name {                                                                \
    template <typename T>                                                      \
    T operator()(T a, T b) const {                                             \
      if constexpr (is_real<T>) {                                              \
        return static_cast<T>(static_cast<float>(a) op static_cast<float>(b)); \
      } else {                                                                 \
        return wrapping(a, b, [](auto x, auto y) { return x op y; });          \
      }                                                                        \
    }                                                                          \
  };
KAAS_TWIN_LANE_OPERATION(Add, +)
KAAS_TWIN_LANE_OPERATION(Subtract, -)
KAAS_TWIN_LANE_OPERATION(Multiply, *)
#undef KAAS_TWIN_LANE_OPERATION

struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (is_real<T>) {
      return static_cast<T>(static_cast<float>(a) / static_cast<float>(b));
    } else {
      if (b == 0) fail("asc_div: integer division by zero in an active lane");
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return wrapping(T{0}, a, [](auto x, auto y) { return x - y; });
      }
      return static_cast<T>(a / b);
    }
  }
};

/// NaN wins; +0 is greater than -0.
struct Maximum {
  template <typename T>
  T operator()(T a, T b) const {
    if (is_nan(a)) return a;
    if (is_nan(b)) return b;
    if (a == b) return is_negative(a) ? b : a;
    return a > b ? a : b;
  }
};
struct Minimum {
  template <typename T>
  T operator()(T a, T b) const {
    if (is_nan(a)) return a;
    if (is_nan(b)) return b;
    if (a == b) return is_negative(a) ? a : b;
    return a < b ? a : b;
  }
};

struct Negate {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::same_as<T, float>) {
      return std::bit_cast<float>(std::bit_cast<uint32_t>(a) ^ 0x80000000u);
    } else if constexpr (SixteenBitFloat<T>) {
      return -a;
    } else {
      return wrapping(T{0}, a, [](auto x, auto y) { return x - y; });
    }
  }
};
struct Absolute {
  template <typename T>
  T operator()(T a) const {
    return is_negative(a) ? Negate{}(a) : a;
  }
};
struct AbsoluteDifference {
  template <typename T>
  T operator()(T a, T b) const {
    return Absolute{}(Subtract{}(a, b));
  }
};
struct Relu {
  template <typename T>
  T operator()(T a) const {
    return Maximum{}(a, T{});
  }
};
struct LeakyRelu {
  template <typename T>
  T operator()(T a, T slope) const {
    return static_cast<float>(a) >= 0.0f || is_nan(a) ? a : Multiply{}(a, slope);
  }
};

struct Exponential {
  template <typename T>
  T operator()(T a) const {
    const float result = std::exp(static_cast<float>(a));
    return static_cast<T>(std::same_as<T, float> ? flush_subnormal(result) : result);
  }
};
struct Logarithm {
  template <typename T>
  T operator()(T a) const {
    const float operand = static_cast<float>(a);
    return static_cast<T>(std::log(std::same_as<T, float> ? flush_subnormal(operand) : operand));
  }
};
struct SquareRoot {
  template <typename T>
  T operator()(T a) const {
    const float operand = static_cast<float>(a);
    return static_cast<T>(std::sqrt(std::same_as<T, float> ? flush_subnormal(operand) : operand));
  }
};

/// a * b + c with one rounding.
struct FusedMultiplyAdd {
  template <typename T>
  T operator()(T a, T b, T c) const {
    if constexpr (is_real<T>) {
      return static_cast<T>(std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)));
    } else {
      return Add{}(Multiply{}(a, b), c);
    }
  }
};

template <typename T>
using Bits = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

#define KAAS_TWIN_BIT_OPERATION(name, op)                                       \
  struct name {                                                                 \
    template <typename T>                                                       \
    T operator()(T a, T b) const {                                              \
      const auto bits = std::bit_cast<Bits<T>>(a) op std::bit_cast<Bits<T>>(b); \
      return std::bit_cast<T>(static_cast<Bits<T>>(bits));                      \
    }                                                                           \
    uint64_t word(uint64_t a, uint64_t b) const { return a op b; }              \
  };
KAAS_TWIN_BIT_OPERATION(And, &)
KAAS_TWIN_BIT_OPERATION(Or, |)
KAAS_TWIN_BIT_OPERATION(Xor, ^)
#undef KAAS_TWIN_BIT_OPERATION

struct Not {
  template <typename T>
  T operator()(T a) const {
    return std::bit_cast<T>(static_cast<Bits<T>>(~std::bit_cast<Bits<T>>(a)));
  }
};

/// Shifts beyond the width give 0, or the sign for a right shift of a signed type. A negative amount is undefined on
/// the device and an error here.
struct ShiftLeft {
  template <typename T, typename S>
  T operator()(T a, S amount) const {
    if (is_negative(amount)) fail("asc_shiftleft: negative shift amount");
    if (static_cast<uint64_t>(amount) >= sizeof(T) * 8) return T{0};
    return static_cast<T>(static_cast<uint64_t>(a) << amount);
  }
};
struct ShiftRight {
  template <typename T, typename S>
  T operator()(T a, S amount) const {
    if (is_negative(amount)) fail("asc_shiftright: negative shift amount");
    if (static_cast<uint64_t>(amount) >= sizeof(T) * 8) return is_negative(a) ? T(-1) : T{0};
    return static_cast<T>(a >> amount);
  }
};

}  // namespace kaas_twin::lanes
