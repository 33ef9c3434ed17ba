// Scalar mathematics of SIMT code. Names that the C library has (sqrtf, expf, sincosf, ...) are the host's own; this
// header adds the others. Accuracy is the host library's and not the device's.
#pragma once

#include <features.h>
#include <math.h>

#include <cmath>

#include "kaas_twin/scalar_types.h"

#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 41)
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#endif

inline float rcpf(float x) { return 1.0f / x; }
inline float sinpif(float x) { return static_cast<float>(std::sin(static_cast<double>(x) * M_PI)); }
inline float cospif(float x) { return static_cast<float>(std::cos(static_cast<double>(x) * M_PI)); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float fdividef(float x, float y) { return x / y; }

// 16-bit functions: the float function, rounded once. `x` is the operand as a float.
#define KAAS_TWIN_HALF_FUNCTION(name, expression) \
  template <kaas_twin::SixteenBitFloat T>         \
  inline T name(T operand) {                      \
    const float x = static_cast<float>(operand);  \
    return static_cast<T>(expression);            \
  }
KAAS_TWIN_HALF_FUNCTION(hsqrt, std::sqrt(x))
KAAS_TWIN_HALF_FUNCTION(hrsqrt, rsqrtf(x))
KAAS_TWIN_HALF_FUNCTION(hrcp, 1.0f / x)
KAAS_TWIN_HALF_FUNCTION(hexp, std::exp(x))
KAAS_TWIN_HALF_FUNCTION(hexp2, std::exp2(x))
KAAS_TWIN_HALF_FUNCTION(hexp10, exp10f(x))
KAAS_TWIN_HALF_FUNCTION(hlog, std::log(x))
KAAS_TWIN_HALF_FUNCTION(hlog2, std::log2(x))
KAAS_TWIN_HALF_FUNCTION(hlog10, std::log10(x))
KAAS_TWIN_HALF_FUNCTION(hlog1p, std::log1p(x))
KAAS_TWIN_HALF_FUNCTION(htanh, std::tanh(x))
KAAS_TWIN_HALF_FUNCTION(htan, std::tan(x))
KAAS_TWIN_HALF_FUNCTION(hsin, std::sin(x))
KAAS_TWIN_HALF_FUNCTION(hcos, std::cos(x))
KAAS_TWIN_HALF_FUNCTION(hatan, std::atan(x))
KAAS_TWIN_HALF_FUNCTION(herf, std::erf(x))
KAAS_TWIN_HALF_FUNCTION(hfloor, std::floor(x))
KAAS_TWIN_HALF_FUNCTION(hceil, std::ceil(x))
KAAS_TWIN_HALF_FUNCTION(hround, std::round(x))
KAAS_TWIN_HALF_FUNCTION(hrint, std::nearbyint(x))
KAAS_TWIN_HALF_FUNCTION(htrunc, std::trunc(x))
KAAS_TWIN_HALF_FUNCTION(hfabs, std::fabs(x))
KAAS_TWIN_HALF_FUNCTION(__habs, std::fabs(x))
KAAS_TWIN_HALF_FUNCTION(__hneg, -x)
#undef KAAS_TWIN_HALF_FUNCTION

#define KAAS_TWIN_HALF_BINARY(name, result_type, expression)                 \
  template <kaas_twin::SixteenBitFloat T>                                    \
  inline result_type name(T left, T right) {                                 \
    const float x = static_cast<float>(left), y = static_cast<float>(right); \
    return static_cast<result_type>(expression);                             \
  }
KAAS_TWIN_HALF_BINARY(__hadd, T, x + y)
KAAS_TWIN_HALF_BINARY(__hsub, T, x - y)
KAAS_TWIN_HALF_BINARY(__hmul, T, x* y)
KAAS_TWIN_HALF_BINARY(__hdiv, T, x / y)
KAAS_TWIN_HALF_BINARY(__hmax, T, std::fmax(x, y))
KAAS_TWIN_HALF_BINARY(__hmin, T, std::fmin(x, y))
KAAS_TWIN_HALF_BINARY(__hmax_nan, T, x != x ? x : (y != y ? y : std::fmax(x, y)))
KAAS_TWIN_HALF_BINARY(__hmin_nan, T, x != x ? x : (y != y ? y : std::fmin(x, y)))
KAAS_TWIN_HALF_BINARY(hatan2, T, std::atan2(x, y))
KAAS_TWIN_HALF_BINARY(__heq, bool, x == y)
KAAS_TWIN_HALF_BINARY(__hne, bool, x != y)
KAAS_TWIN_HALF_BINARY(__hlt, bool, x < y)
KAAS_TWIN_HALF_BINARY(__hle, bool, x <= y)
KAAS_TWIN_HALF_BINARY(__hgt, bool, x > y)
KAAS_TWIN_HALF_BINARY(__hge, bool, x >= y)
#undef KAAS_TWIN_HALF_BINARY

template <kaas_twin::SixteenBitFloat T>
inline T __hfma(T x, T y, T z) {
  return static_cast<T>(std::fma(static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)));
}
template <kaas_twin::SixteenBitFloat T>
inline bool __hisnan(T x) {
  return std::isnan(static_cast<float>(x));
}
template <kaas_twin::SixteenBitFloat T>
inline bool __hisinf(T x) {
  return std::isinf(static_cast<float>(x));
}
