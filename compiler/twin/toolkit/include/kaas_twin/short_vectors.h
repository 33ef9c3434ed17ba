// Short vectors of the SIMT dialect (float2, uint4, half2, ...) and their make_* functions.
#pragma once

#include <cstdint>

#include "kaas_twin/scalar_types.h"

// Generated code reads local arrays of small elements through these types, so they ask for at most 8-byte alignment.
#define KAAS_TWIN_SHORT_VECTORS(name, element)                                                          \
  struct alignas(sizeof(element)) name##1 { element x; };                                               \
  struct alignas(2 * sizeof(element) < 8 ? 2 * sizeof(element) : 8) name##2 { element x, y; };          \
  struct name##3 { element x, y, z; };                                                                  \
  struct alignas(4 * sizeof(element) < 8 ? 4 * sizeof(element) : 8) name##4 { element x, y, z, w; };    \
  constexpr name##1 make_##name##1(element x) { return {x}; }                                           \
  constexpr name##2 make_##name##2(element x, element y) { return {x, y}; }                             \
  constexpr name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }               \
  constexpr name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; } \
  KAAS_TWIN_SHORT_VECTOR_OPERATOR(name, element, +)                                                     \
  KAAS_TWIN_SHORT_VECTOR_OPERATOR(name, element, -)                                                     \
  KAAS_TWIN_SHORT_VECTOR_OPERATOR(name, element, *)                                                     \
  KAAS_TWIN_SHORT_VECTOR_OPERATOR(name, element, /)

// Element by element.
#define KAAS_TWIN_SHORT_VECTOR_OPERATOR(name, element, op)                                                        \
  constexpr name##2 operator op(name##2 a, name##2 b) {                                                           \
    return {static_cast<element>(a.x op b.x), static_cast<element>(a.y op b.y)};                                  \
  }                                                                                                               \
  constexpr name##4 operator op(name##4 a, name##4 b) {                                                           \
    return {static_cast<element>(a.x op b.x), static_cast<element>(a.y op b.y), static_cast<element>(a.z op b.z), \
            static_cast<element>(a.w op b.w)};                                                                    \
  }

KAAS_TWIN_SHORT_VECTORS(char, int8_t)
KAAS_TWIN_SHORT_VECTORS(uchar, uint8_t)
KAAS_TWIN_SHORT_VECTORS(short, int16_t)
KAAS_TWIN_SHORT_VECTORS(ushort, uint16_t)
KAAS_TWIN_SHORT_VECTORS(int, int32_t)
KAAS_TWIN_SHORT_VECTORS(uint, uint32_t)
KAAS_TWIN_SHORT_VECTORS(long, int32_t)  // the SIMT dialect's `long` vectors hold 32-bit elements
KAAS_TWIN_SHORT_VECTORS(ulong, uint32_t)
KAAS_TWIN_SHORT_VECTORS(longlong, int64_t)
KAAS_TWIN_SHORT_VECTORS(ulonglong, uint64_t)
KAAS_TWIN_SHORT_VECTORS(float, float)
#undef KAAS_TWIN_SHORT_VECTORS
#undef KAAS_TWIN_SHORT_VECTOR_OPERATOR

struct alignas(4) half2 {
  half x, y;
};
struct alignas(4) bfloat16x2_t {
  bfloat16_t x, y;
};
using bfloat162 = bfloat16x2_t;

struct alignas(2) float8_e4m3x2_t {
  float8_e4m3_t x, y;
};
struct alignas(2) float8_e5m2x2_t {
  float8_e5m2_t x, y;
};

constexpr half2 make_half2(half x, half y) { return {x, y}; }
constexpr bfloat16x2_t make_bfloat162(bfloat16_t x, bfloat16_t y) { return {x, y}; }

static_assert(sizeof(float2) == 8 && sizeof(float4) == 16 && sizeof(uint3) == 12 && sizeof(ulonglong4) == 32);
static_assert(sizeof(half2) == 4 && sizeof(bfloat16x2_t) == 4 && sizeof(float8_e4m3x2_t) == 2);
