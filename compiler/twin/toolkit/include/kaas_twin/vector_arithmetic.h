// Element-wise intrinsics: arithmetic, logic, compound operations, comparison and selection.
//
// Inactive lanes of a result are zero (asc_select excepted, which takes them from its second source).
#pragma once

#include "kaas_twin/vector_mask.h"

namespace kaas_twin {

template <typename T, typename Scalar>
Register<T> broadcast(Scalar value) {
  Register<T> result;
  for (T& lane : result.lane) lane = static_cast<T>(value);
  return result;
}

}  // namespace kaas_twin

#define KAAS_TWIN_UNARY(name, Operation)                                                               \
  template <typename T>                                                                                \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask) { \
    kaas_twin::lanes::map(dst, src, mask, kaas_twin::lanes::Operation{});                              \
  }
KAAS_TWIN_UNARY(asc_abs, Absolute)
KAAS_TWIN_UNARY(asc_neg, Negate)
KAAS_TWIN_UNARY(asc_relu, Relu)
KAAS_TWIN_UNARY(asc_not, Not)
KAAS_TWIN_UNARY(asc_exp, Exponential)
KAAS_TWIN_UNARY(asc_ln, Logarithm)
KAAS_TWIN_UNARY(asc_sqrt, SquareRoot)
#undef KAAS_TWIN_UNARY

#define KAAS_TWIN_BINARY(name, Operation)                                                                  \
  template <typename T, typename B>                                                                        \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const kaas_twin::Register<B>& b, \
            const vector_bool& mask) {                                                                     \
    kaas_twin::lanes::zip(dst, a, b, mask, kaas_twin::lanes::Operation{});                                 \
  }
KAAS_TWIN_BINARY(asc_add, Add)
KAAS_TWIN_BINARY(asc_sub, Subtract)
KAAS_TWIN_BINARY(asc_mul, Multiply)
KAAS_TWIN_BINARY(asc_div, Divide)
KAAS_TWIN_BINARY(asc_max, Maximum)
KAAS_TWIN_BINARY(asc_min, Minimum)
KAAS_TWIN_BINARY(asc_and, And)
KAAS_TWIN_BINARY(asc_or, Or)
KAAS_TWIN_BINARY(asc_xor, Xor)
KAAS_TWIN_BINARY(asc_shiftleft, ShiftLeft)
KAAS_TWIN_BINARY(asc_shiftright, ShiftRight)
KAAS_TWIN_BINARY(asc_abs_sub, AbsoluteDifference)
KAAS_TWIN_BINARY(asc_prelu, LeakyRelu)
#undef KAAS_TWIN_BINARY

#define KAAS_TWIN_SCALAR(name, Operation, Amount)                                                                \
  template <typename T, typename Scalar>                                                                         \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, Scalar scalar,                       \
            const vector_bool& mask) {                                                                           \
    const auto operand = static_cast<Amount>(scalar);                                                            \
    kaas_twin::lanes::map(dst, src, mask, [&](T lane) { return kaas_twin::lanes::Operation{}(lane, operand); }); \
  }
KAAS_TWIN_SCALAR(asc_add_scalar, Add, T)
KAAS_TWIN_SCALAR(asc_mul_scalar, Multiply, T)
KAAS_TWIN_SCALAR(asc_max_scalar, Maximum, T)
KAAS_TWIN_SCALAR(asc_min_scalar, Minimum, T)
KAAS_TWIN_SCALAR(asc_leakyrelu, LeakyRelu, T)
KAAS_TWIN_SCALAR(asc_shiftleft_scalar, ShiftLeft, int64_t)
KAAS_TWIN_SCALAR(asc_shiftright_scalar, ShiftRight, int64_t)
#undef KAAS_TWIN_SCALAR

#define KAAS_TWIN_COMPARE(name, op)                                                             \
  template <typename T>                                                                         \
  void name(vector_bool& dst, const kaas_twin::Register<T>& a, const kaas_twin::Register<T>& b, \
            const vector_bool& mask) {                                                          \
    dst = kaas_twin::lanes::where<T>(mask, [&](int i) { return a.lane[i] op b.lane[i]; });      \
  }                                                                                             \
  template <typename T, typename Scalar>                                                        \
  void name##_scalar(vector_bool& dst, const kaas_twin::Register<T>& src, Scalar scalar,        \
                     const vector_bool& mask) {                                                 \
    const T operand = static_cast<T>(scalar);                                                   \
    dst = kaas_twin::lanes::where<T>(mask, [&](int i) { return src.lane[i] op operand; });      \
  }
KAAS_TWIN_COMPARE(asc_eq, ==)
KAAS_TWIN_COMPARE(asc_ne, !=)
KAAS_TWIN_COMPARE(asc_gt, >)
KAAS_TWIN_COMPARE(asc_ge, >=)
KAAS_TWIN_COMPARE(asc_lt, <)
KAAS_TWIN_COMPARE(asc_le, <=)
#undef KAAS_TWIN_COMPARE

/// dst = mask ? a : b.
template <typename T>
void asc_select(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const kaas_twin::Register<T>& b,
                const vector_bool& mask) {
  kaas_twin::Register<T> result;
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    result.lane[i] = mask.active<T>(i) ? a.lane[i] : b.lane[i];
  }
  dst = result;
}

/// exp(a - b) in one step.
inline void asc_exp_sub(vector_f32& dst, const vector_f32& a, const vector_f32& b, const vector_bool& mask) {
  kaas_twin::lanes::zip(dst, a, b, mask, [](float x, float y) { return kaas_twin::lanes::Exponential{}(x - y); });
}

/// Fused: dst = dst * a + b.
template <typename T>
void asc_madd(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const kaas_twin::Register<T>& b,
              const vector_bool& mask) {
  const kaas_twin::Register<T> old = dst;
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    dst.lane[i] = mask.active<T>(i) ? kaas_twin::lanes::FusedMultiplyAdd{}(old.lane[i], a.lane[i], b.lane[i]) : T{};
  }
}
/// Fused: dst = dst + a * b.
template <typename T>
void asc_mula(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const kaas_twin::Register<T>& b,
              const vector_bool& mask) {
  const kaas_twin::Register<T> old = dst;
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    dst.lane[i] = mask.active<T>(i) ? kaas_twin::lanes::FusedMultiplyAdd{}(a.lane[i], b.lane[i], old.lane[i]) : T{};
  }
}
/// Fused: dst = src * scalar + dst.
template <typename T, typename Scalar>
void asc_axpy(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, Scalar scalar,
              const vector_bool& mask) {
  asc_mula(dst, src, kaas_twin::broadcast<T>(scalar), mask);
}

/// 32 x 32 -> 64 bits: low halves and high halves.
template <typename T>
void asc_mull(kaas_twin::Register<T>& low, kaas_twin::Register<T>& high, const kaas_twin::Register<T>& a,
              const kaas_twin::Register<T>& b, const vector_bool& mask) {
  static_assert(sizeof(T) == 4 && std::is_integral_v<T>);
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const auto product = [](T x, T y) { return static_cast<uint64_t>(static_cast<Wide>(x) * static_cast<Wide>(y)); };
  const kaas_twin::Register<T> x = a, y = b;
  kaas_twin::lanes::zip(low, x, y, mask, [&](T p, T q) { return static_cast<T>(product(p, q)); });
  kaas_twin::lanes::zip(high, x, y, mask, [&](T p, T q) { return static_cast<T>(product(p, q) >> 32); });
}

namespace kaas_twin {

/// Add or subtract with carry, as unsigned: `step` gives the wide result of one lane and sets its carry bit.
template <typename T, typename Step>
void with_carry(Predicate& carry, Register<T>& dst, const Register<T>& a, const Register<T>& b,
                const Predicate& carry_in, const Predicate& mask, Step step) {
  static_assert(sizeof(T) == 4 && std::is_integral_v<T>);
  Register<T> result;
  Predicate carries = Predicate::none();
  for (int i = 0; i < Register<T>::lanes; ++i) {
    result.lane[i] = T{};
    if (!mask.active<T>(i)) continue;
    bool carried = false;
    const uint64_t x = static_cast<uint32_t>(a.lane[i]), y = static_cast<uint32_t>(b.lane[i]);
    result.lane[i] = static_cast<T>(step(x, y, carry_in.active<T>(i) ? 1u : 0u, carried));
    if (carried) carries.set(i * static_cast<int>(sizeof(T)));
  }
  dst = result;
  carry = carries;
}

inline uint64_t add_step(uint64_t x, uint64_t y, uint64_t carry_in, bool& carried) {
  const uint64_t sum = x + y + carry_in;
  carried = (sum >> 32) != 0;
  return sum;
}
/// The carry of a subtraction is set where no borrow happens.
inline uint64_t subtract_step(uint64_t x, uint64_t y, uint64_t borrow_in, bool& carried) {
  carried = x >= y + borrow_in;
  return x - y - borrow_in;
}

}  // namespace kaas_twin

#define KAAS_TWIN_CARRY(without_input, with_input, step)                                                   \
  template <typename T>                                                                                    \
  void without_input(vector_bool& carry, kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a,     \
                     const kaas_twin::Register<T>& b, const vector_bool& mask) {                           \
    kaas_twin::with_carry(carry, dst, a, b, vector_bool::none(), mask, kaas_twin::step);                   \
  }                                                                                                        \
  template <typename T>                                                                                    \
  void with_input(vector_bool& carry, kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a,        \
                  const kaas_twin::Register<T>& b, const vector_bool& carry_in, const vector_bool& mask) { \
    kaas_twin::with_carry(carry, dst, a, b, carry_in, mask, kaas_twin::step);                              \
  }
KAAS_TWIN_CARRY(asc_add, asc_addc, add_step)
KAAS_TWIN_CARRY(asc_sub, asc_subc, subtract_step)
#undef KAAS_TWIN_CARRY
