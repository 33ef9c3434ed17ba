// Vector operations that the engine's library holds ready for the element types kernels use most, so that an image's
// compile neither instantiates nor optimises them. Any other type is instantiated in the image as before.
//
// An image calls them like any other function: none of them is inlined. src/vector_operations.cpp makes them.
#pragma once

#include "kaas_twin/vector_arithmetic.h"
#include "kaas_twin/vector_convert.h"
#include "kaas_twin/vector_memory.h"
#include "kaas_twin/vector_merging.h"
#include "kaas_twin/vector_rearrange.h"
#include "kaas_twin/vector_reduce.h"

#ifdef KAAS_TWIN_MAKES_INSTANCES
#define KAAS_TWIN_INSTANCE template
#else
#define KAAS_TWIN_INSTANCE extern template __attribute__((visibility("default")))
#endif

#define KAAS_TWIN_UNARY(name, T) \
  KAAS_TWIN_INSTANCE void name<T>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&, const vector_bool&);
#define KAAS_TWIN_BINARY(name, T)                                                            \
  KAAS_TWIN_INSTANCE void name<T, T>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&, \
                                     const kaas_twin::Register<T>&, const vector_bool&);
#define KAAS_TWIN_SCALAR(name, T, Scalar)                                                                 \
  KAAS_TWIN_INSTANCE void name<T, Scalar>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&, Scalar, \
                                          const vector_bool&);
#define KAAS_TWIN_FUSED(name, T)                                                          \
  KAAS_TWIN_INSTANCE void name<T>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&, \
                                  const kaas_twin::Register<T>&, const vector_bool&);
#define KAAS_TWIN_COMPARE(name, T)                                                                            \
  KAAS_TWIN_INSTANCE void name<T>(vector_bool&, const kaas_twin::Register<T>&, const kaas_twin::Register<T>&, \
                                  const vector_bool&);                                                        \
  KAAS_TWIN_INSTANCE void name##_scalar<T, T>(vector_bool&, const kaas_twin::Register<T>&, T, const vector_bool&);
#define KAAS_TWIN_ARITHMETIC(T)                                                                       \
  KAAS_TWIN_BINARY(asc_add, T)                                                                        \
  KAAS_TWIN_BINARY(asc_sub, T)                                                                        \
  KAAS_TWIN_BINARY(asc_mul, T)                                                                        \
  KAAS_TWIN_BINARY(asc_max, T)                                                                        \
  KAAS_TWIN_BINARY(asc_min, T)                                                                        \
  KAAS_TWIN_SCALAR(asc_add_scalar, T, T)                                                              \
  KAAS_TWIN_SCALAR(asc_mul_scalar, T, T)                                                              \
  KAAS_TWIN_SCALAR(asc_max_scalar, T, T)                                                              \
  KAAS_TWIN_SCALAR(asc_min_scalar, T, T)                                                              \
  KAAS_TWIN_COMPARE(asc_eq, T)                                                                        \
  KAAS_TWIN_COMPARE(asc_ne, T)                                                                        \
  KAAS_TWIN_COMPARE(asc_gt, T)                                                                        \
  KAAS_TWIN_COMPARE(asc_ge, T)                                                                        \
  KAAS_TWIN_COMPARE(asc_lt, T)                                                                        \
  KAAS_TWIN_COMPARE(asc_le, T)                                                                        \
  KAAS_TWIN_UNARY(asc_duplicate, T)                                                                   \
  KAAS_TWIN_INSTANCE void asc_duplicate_scalar<T, T>(kaas_twin::Register<T>&, T, const vector_bool&); \
  KAAS_TWIN_INSTANCE void asc_select<T>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&,       \
                                        const kaas_twin::Register<T>&, const vector_bool&);
#define KAAS_TWIN_BITS(T)      \
  KAAS_TWIN_BINARY(asc_and, T) \
  KAAS_TWIN_BINARY(asc_or, T)  \
  KAAS_TWIN_BINARY(asc_xor, T) \
  KAAS_TWIN_UNARY(asc_not, T)
#define KAAS_TWIN_SHIFTS(T)                      \
  KAAS_TWIN_SCALAR(asc_shiftleft_scalar, T, int) \
  KAAS_TWIN_SCALAR(asc_shiftright_scalar, T, int)
#define KAAS_TWIN_EXTREMA(T)         \
  KAAS_TWIN_UNARY(asc_reduce_max, T) \
  KAAS_TWIN_UNARY(asc_reduce_min, T)
#define KAAS_TWIN_TRANSFER(T)                                                                                \
  KAAS_TWIN_INSTANCE void asc_loadalign<T>(kaas_twin::Register<T>&, T*, int64_t);                            \
  KAAS_TWIN_INSTANCE void asc_loadalign_brc_elem<T>(kaas_twin::Register<T>&, T*, int64_t);                   \
  KAAS_TWIN_INSTANCE void asc_storealign<T>(T*, const kaas_twin::Register<T>&, int32_t, const vector_bool&); \
  KAAS_TWIN_INSTANCE void asc_storealign_1st<T>(T*, const kaas_twin::Register<T>&, int32_t);
#define KAAS_TWIN_INDEXED(T)                                                                              \
  KAAS_TWIN_INSTANCE void asc_gather<T, T, uint32_t>(kaas_twin::Register<T>&, T*, const vector_u32&,      \
                                                     const vector_bool&);                                 \
  KAAS_TWIN_INSTANCE void asc_gather<T, uint32_t>(kaas_twin::Register<T>&, const kaas_twin::Register<T>&, \
                                                  const vector_u32&);                                     \
  KAAS_TWIN_INSTANCE void asc_scatter<T, uint32_t>(T*, const kaas_twin::Register<T>&, const vector_u32&,  \
                                                   const vector_bool&);
#define KAAS_TWIN_NARROWING(D, Saturate, Part)                                                                       \
  KAAS_TWIN_INSTANCE void vcvt(kaas_twin::Register<D>&, const vector_f32&, const vector_bool&,                       \
                               kaas_twin::Tag<kaas_twin::kRound, 0>, kaas_twin::Tag<kaas_twin::kSaturate, Saturate>, \
                               kaas_twin::Tag<kaas_twin::kPart, Part>, kaas_twin::Tag<kaas_twin::kMode, 0>);
#define KAAS_TWIN_WIDENING(S, Part)                                                            \
  KAAS_TWIN_INSTANCE void vcvt(vector_f32&, const kaas_twin::Register<S>&, const vector_bool&, \
                               kaas_twin::Tag<kaas_twin::kPart, Part>, kaas_twin::Tag<kaas_twin::kMode, 0>);

KAAS_TWIN_ARITHMETIC(float)
KAAS_TWIN_ARITHMETIC(int32_t)
KAAS_TWIN_ARITHMETIC(uint32_t)
KAAS_TWIN_BINARY(asc_div, float)
KAAS_TWIN_UNARY(asc_abs, float)
KAAS_TWIN_UNARY(asc_neg, float)
KAAS_TWIN_UNARY(asc_relu, float)
KAAS_TWIN_UNARY(asc_exp, float)
KAAS_TWIN_UNARY(asc_ln, float)
KAAS_TWIN_UNARY(asc_sqrt, float)
KAAS_TWIN_FUSED(asc_mula, float)
KAAS_TWIN_FUSED(asc_madd, float)
KAAS_TWIN_BITS(int32_t)
KAAS_TWIN_BITS(uint32_t)
KAAS_TWIN_BITS(uint16_t)
KAAS_TWIN_BITS(uint8_t)
KAAS_TWIN_SHIFTS(int32_t)
KAAS_TWIN_SHIFTS(uint32_t)
KAAS_TWIN_EXTREMA(float)
KAAS_TWIN_EXTREMA(int32_t)
KAAS_TWIN_INSTANCE void asc_reduce_sum<float, float>(vector_f32&, const vector_f32&, const vector_bool&);
KAAS_TWIN_INSTANCE void asc_reduce_sum<int32_t, int32_t>(vector_s32&, const vector_s32&, const vector_bool&);
KAAS_TWIN_INSTANCE void asc_arange<int32_t, int32_t>(vector_s32&, int32_t);
KAAS_TWIN_INSTANCE void asc_arange<int16_t, int16_t>(vector_s16&, int16_t);
KAAS_TWIN_INSTANCE void asc_duplicate_scalar<uint16_t, uint16_t>(vector_u16&, uint16_t, const vector_bool&);
KAAS_TWIN_INSTANCE void asc_intlv<int32_t>(vector_s32&, vector_s32&, const vector_s32&, const vector_s32&);
KAAS_TWIN_INSTANCE void asc_pack_to_low<uint16_t, uint32_t>(vector_u16&, const vector_u32&);
KAAS_TWIN_INSTANCE void asc_pack_to_low<uint8_t, uint16_t>(vector_u8&, const vector_u16&);
KAAS_TWIN_TRANSFER(float)
KAAS_TWIN_TRANSFER(int32_t)
KAAS_TWIN_TRANSFER(uint32_t)
KAAS_TWIN_TRANSFER(uint16_t)
KAAS_TWIN_TRANSFER(bfloat16_t)
KAAS_TWIN_TRANSFER(float8_e4m3_t)
KAAS_TWIN_INDEXED(float)
KAAS_TWIN_INDEXED(int32_t)
KAAS_TWIN_INSTANCE void asc_loadalign_unpack<bfloat16_t>(vector_bf16&, bfloat16_t*, int64_t);
KAAS_TWIN_INSTANCE void asc_loadalign_unpack4<float8_e4m3_t>(vector_f8e4m3&, float8_e4m3_t*, int64_t);
KAAS_TWIN_INSTANCE void asc_loadalign_brc_elem2datablock<float>(vector_f32&, float*, int64_t);
KAAS_TWIN_INSTANCE void asc_loadalign_deintlv<int32_t>(vector_s32&, vector_s32&, int32_t*, int64_t);
KAAS_TWIN_INSTANCE void asc_storealign_pack<uint32_t>(uint32_t*, const vector_u32&, int32_t, const vector_bool&);
KAAS_TWIN_INSTANCE void asc_storealign_pack_quarter<uint32_t>(uint32_t*, const vector_u32&, int32_t,
                                                              const vector_bool&);
KAAS_TWIN_NARROWING(bfloat16_t, 0, 0)
KAAS_TWIN_NARROWING(bfloat16_t, 0, 1)
KAAS_TWIN_NARROWING(half, 0, 0)
KAAS_TWIN_NARROWING(float8_e4m3_t, 1, 0)
KAAS_TWIN_NARROWING(float8_e4m3_t, 1, 1)
KAAS_TWIN_NARROWING(float8_e4m3_t, 1, 2)
KAAS_TWIN_NARROWING(float8_e4m3_t, 1, 3)
KAAS_TWIN_WIDENING(bfloat16_t, 0)
KAAS_TWIN_WIDENING(bfloat16_t, 1)
KAAS_TWIN_WIDENING(half, 0)
KAAS_TWIN_WIDENING(float8_e4m3_t, 0)
KAAS_TWIN_WIDENING(float8_e4m3_t, 1)
KAAS_TWIN_WIDENING(float8_e4m3_t, 2)
KAAS_TWIN_WIDENING(float8_e4m3_t, 3)

#undef KAAS_TWIN_UNARY
#undef KAAS_TWIN_BINARY
#undef KAAS_TWIN_SCALAR
#undef KAAS_TWIN_FUSED
#undef KAAS_TWIN_COMPARE
#undef KAAS_TWIN_ARITHMETIC
#undef KAAS_TWIN_BITS
#undef KAAS_TWIN_SHIFTS
#undef KAAS_TWIN_EXTREMA
#undef KAAS_TWIN_TRANSFER
#undef KAAS_TWIN_INDEXED
#undef KAAS_TWIN_NARROWING
#undef KAAS_TWIN_WIDENING
#undef KAAS_TWIN_INSTANCE
