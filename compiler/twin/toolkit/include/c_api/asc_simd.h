// The Ascend C interface of scalar code: data movement, cube, synchronisation, special registers, cache
// control. Argument order is that of the code TileLang generates, which is newer than the published
// documents.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "kaas_twin/engine.h"
#include "kaas_twin/instructions.h"
#include "kaas_twin/minmax.h"
#include "kaas_twin/scalar_types.h"
#if __has_include("kaas_twin/vector_intrinsics.h")
#include "kaas_twin/vector_intrinsics.h"
#endif

namespace AscendC {}
namespace __asc_aicore {}
namespace __asc_simt_vf {}
using namespace __asc_aicore;  // debug helpers are called unqualified

#define ASC_IS_AIC (::kaas_twin::core_kind() == ::kaas_twin::CoreKind::kAic)
#define ASC_IS_AIV (::kaas_twin::core_kind() == ::kaas_twin::CoreKind::kAiv)
#define block_idx (::kaas_twin::block_index())
#define block_num (::kaas_twin::block_count())

// Modes that the generated code passes as numbers.
enum asc_load_l2_cache_mode : uint8_t {};
enum asc_store_l2_cache_mode : uint8_t {};
enum asc_unit_flag_mode : uint8_t {};
enum asc_quant_mode : uint16_t {};
enum asc_relu_pre_mode : uint8_t {};
enum asc_dual_dst_mode : uint8_t {};
enum class asc_hf32_round_mode : uint8_t { NEAREST_EVEN = 0, NEAREST_AWAY = 1 };
enum ascMutexExecuteMode : uint8_t { ASC_LOCK_BLOCK = 0, ASC_LOCK_NON_BLOCK = 1 };

struct asc_fill_value_config {
  uint64_t repeat = 0;
  uint64_t blk_num = 0;
  uint64_t dst_gap = 0;
};

namespace kaas_twin {

template <typename T>
constexpr Element element_of() {
  if constexpr (std::is_same_v<T, float>) return Element::kF32;
  if constexpr (std::is_same_v<T, half>) return Element::kF16;
  if constexpr (std::is_same_v<T, bfloat16_t>) return Element::kBf16;
  if constexpr (std::is_same_v<T, int32_t>) return Element::kS32;
  if constexpr (std::is_same_v<T, int16_t>) return Element::kS16;
  if constexpr (std::is_same_v<T, int8_t>) return Element::kS8;
  if constexpr (std::is_same_v<T, float8_e4m3_t>) return Element::kE4m3;
  if constexpr (std::is_same_v<T, float8_e5m2_t>) return Element::kE5m2;
  if constexpr (std::is_same_v<T, float4_e2m1x2_t>) return Element::kE2m1;
  if constexpr (std::is_same_v<T, float4_e1m2x2_t>) return Element::kE1m2;
  return Element::kOther;
}

template <typename T>
constexpr int bits_of() {
  constexpr Element element = element_of<T>();
  return element == Element::kE2m1 || element == Element::kE1m2 ? 4 : static_cast<int>(8 * sizeof(T));
}

template <typename T>
uint64_t offset_of(T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace kaas_twin

// ---- identity
// -----------------------------------------------------------------------------------------------------------
inline void asc_init() {}
inline int64_t asc_get_block_idx() { return kaas_twin::block_index(); }
inline int64_t asc_get_block_num() { return kaas_twin::block_count(); }
inline int64_t asc_get_sub_block_id() { return kaas_twin::sub_block_index(); }
inline int64_t asc_get_sub_block_num() { return kaas_twin::sub_block_count(); }

// ---- synchronisation
// ----------------------------------------------------------------------------------------------------
inline void asc_sync_notify(pipe_t from, pipe_t to, int id) { kaas_twin::sync_notify(from, to, id); }
inline void asc_sync_wait(pipe_t from, pipe_t to, int id) { kaas_twin::sync_wait(from, to, id); }
inline void asc_lock(pipe_t pipe, int id, ascMutexExecuteMode mode = ASC_LOCK_BLOCK) {
  if (mode != ASC_LOCK_BLOCK) kaas_twin::not_modelled("asc_lock", "a mode that does not block");
  kaas_twin::mutex_lock(pipe, id);
}
inline void asc_unlock(pipe_t pipe, int id, ascMutexExecuteMode mode = ASC_LOCK_BLOCK) {
  if (mode != ASC_LOCK_BLOCK) kaas_twin::not_modelled("asc_unlock", "a mode that does not block");
  kaas_twin::mutex_unlock(pipe, id);
}
inline void asc_sync_pipe(pipe_t pipe) { kaas_twin::sync_pipe(pipe); }
inline void asc_sync_intra_arrive(pipe_t pipe, uint64_t id) { kaas_twin::sync_intra_arrive(pipe, id); }
inline void asc_sync_intra_wait(pipe_t pipe, uint64_t id) { kaas_twin::sync_intra_wait(pipe, id); }
inline void asc_sync_inter_arrive(pipe_t pipe, uint64_t id) { kaas_twin::sync_inter_arrive(pipe, id); }
inline void asc_sync_inter_wait(pipe_t pipe, uint64_t id) { kaas_twin::sync_inter_wait(pipe, id); }

// ---- special registers
// --------------------------------------------------------------------------------------------------
inline void asc_set_gm2l1_nz_para(uint64_t matrices, uint64_t row_stride, uint64_t column_stride,
                                  uint64_t matrix_stride) {
  kaas_twin::set_nz_parameters(matrices, row_stride, column_stride, matrix_stride);
}
inline void asc_set_l0c_copy_nz_para(uint64_t matrices, uint64_t source_stride, uint64_t target_stride) {
  kaas_twin::set_l0c_parameters(matrices, source_stride, target_stride);
}
template <typename T>
inline void asc_set_copy_pad_val(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  kaas_twin::set_pad_value(bits);
}
inline void asc_enable_hf32() { kaas_twin::set_hf32(true); }
inline void asc_disable_hf32() { kaas_twin::set_hf32(false); }
inline void asc_set_hf32_round_mode(asc_hf32_round_mode mode) {
  kaas_twin::set_hf32_rounding(static_cast<int>(mode));
}
// The order in which the cube walks its fractals: of no effect on the result.
inline void asc_set_mmad_direction_m() {}
inline void asc_set_mmad_direction_n() {}

#define KAAS_TWIN_ATOMIC(operation, number)                   \
  inline void asc_set_atomic_##operation##_float() {          \
    kaas_twin::set_atomic(number, kaas_twin::Element::kF32);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_float16() {        \
    kaas_twin::set_atomic(number, kaas_twin::Element::kF16);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_half() {           \
    kaas_twin::set_atomic(number, kaas_twin::Element::kF16);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_bfloat() {         \
    kaas_twin::set_atomic(number, kaas_twin::Element::kBf16); \
  }                                                           \
  inline void asc_set_atomic_##operation##_bfloat16() {       \
    kaas_twin::set_atomic(number, kaas_twin::Element::kBf16); \
  }                                                           \
  inline void asc_set_atomic_##operation##_int() {            \
    kaas_twin::set_atomic(number, kaas_twin::Element::kS32);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_int32() {          \
    kaas_twin::set_atomic(number, kaas_twin::Element::kS32);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_int16() {          \
    kaas_twin::set_atomic(number, kaas_twin::Element::kS16);  \
  }                                                           \
  inline void asc_set_atomic_##operation##_int8() { kaas_twin::set_atomic(number, kaas_twin::Element::kS8); }
KAAS_TWIN_ATOMIC(add, 1)
KAAS_TWIN_ATOMIC(max, 2)
KAAS_TWIN_ATOMIC(min, 3)
#undef KAAS_TWIN_ATOMIC
inline void asc_set_atomic_none() { kaas_twin::set_atomic(0, kaas_twin::Element::kOther); }

// ---- caches: GM is coherent on the host
// -----------------------------------------------------------------------------------
template <typename... Arguments>
inline void asc_dcci(Arguments...) {}
template <typename... Arguments>
inline void asc_dcci_entire(Arguments...) {}
template <typename... Arguments>
inline void asc_sync_data_barrier(Arguments...) {}
template <typename T>
inline T asc_load_dev(const __gm__ T* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}
template <typename T>
inline void asc_store_dev(__gm__ T* address, T value) {
  std::memcpy(address, &value, sizeof(T));
}

// ---- GM -> L1, inside L1
// ----------------------------------------------------------------------------------------------------
template <typename T>
inline void asc_copy_gm2l1_nd2nz(__cbuf__ T* target, const __gm__ T* source, uint64_t pitch_bytes,
                                 asc_load_l2_cache_mode, uint64_t rows, uint64_t columns,
                                 uint64_t outer_pitch, bool small_c0) {
  if (outer_pitch != 0) kaas_twin::not_modelled("asc_copy_gm2l1_nd2nz", "an outer loop");
  if (small_c0) kaas_twin::not_modelled("asc_copy_gm2l1_nd2nz", "the small C0 mode");
  if constexpr (sizeof(T) <= 4) {
    kaas_twin::copy_gm_to_l1("asc_copy_gm2l1_nd2nz", kaas_twin::offset_of(target), source, sizeof(T),
                             pitch_bytes, rows, columns, false);
  } else {
    kaas_twin::not_modelled("asc_copy_gm2l1_nd2nz", "elements of 8 bytes");
  }
}
template <typename T>
inline void asc_copy_gm2l1_dn2nz(__cbuf__ T* target, const __gm__ T* source, uint64_t pitch_bytes,
                                 asc_load_l2_cache_mode, uint64_t rows, uint64_t columns,
                                 uint64_t outer_pitch, bool small_c0) {
  if (outer_pitch != 0) kaas_twin::not_modelled("asc_copy_gm2l1_dn2nz", "an outer loop");
  if (small_c0) kaas_twin::not_modelled("asc_copy_gm2l1_dn2nz", "the small C0 mode");
  if constexpr (sizeof(T) <= 4) {
    kaas_twin::copy_gm_to_l1("asc_copy_gm2l1_dn2nz", kaas_twin::offset_of(target), source, sizeof(T),
                             pitch_bytes, rows, columns, true);
  } else {
    kaas_twin::not_modelled("asc_copy_gm2l1_dn2nz", "elements of 8 bytes");
  }
}
template <typename T>
inline void asc_fill_l1(__cbuf__ T* target, uint32_t value, const asc_fill_value_config& config) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  kaas_twin::fill_l1("asc_fill_l1", kaas_twin::offset_of(target), value, sizeof(T), config.repeat,
                     config.blk_num, config.dst_gap);
}

// ---- L1 -> L0A, L0B
// ---------------------------------------------------------------------------------------------------------
#define KAAS_TWIN_L1_TO_L0(intrinsic, memory, to_l0b, transpose)                                        \
  template <typename T>                                                                                 \
  inline void intrinsic(memory T* target, const __cbuf__ T* source, uint32_t row_start,                 \
                        uint32_t column_start, uint32_t rows, uint32_t columns, uint32_t source_stride, \
                        uint32_t target_stride) {                                                       \
    kaas_twin::copy_l1_to_l0(#intrinsic, to_l0b, transpose, kaas_twin::bits_of<T>(),                     \
                             kaas_twin::offset_of(target), kaas_twin::offset_of(source),                \
                             {row_start, column_start, rows, columns, source_stride, target_stride});   \
  }
KAAS_TWIN_L1_TO_L0(asc_copy_l12l0a, __ca__, false, false)
KAAS_TWIN_L1_TO_L0(asc_copy_l12l0a_transpose, __ca__, false, true)
KAAS_TWIN_L1_TO_L0(asc_copy_l12l0b, __cb__, true, false)
KAAS_TWIN_L1_TO_L0(asc_copy_l12l0b_transpose, __cb__, true, true)
#undef KAAS_TWIN_L1_TO_L0

// `target` is the L0 address divided by 16.
#define KAAS_TWIN_SCALES_TO_L0(intrinsic, to_l0b)                                                              \
  inline void intrinsic(uint64_t target, const __cbuf__ float8_e8m0_t* source, uint32_t x_start,              \
                        uint32_t y_start, uint32_t x_steps, uint32_t y_steps, uint32_t source_stride,         \
                        uint32_t target_stride) {                                                             \
    kaas_twin::copy_scales_to_l0(#intrinsic, to_l0b, target, kaas_twin::offset_of(source),                    \
                                 {x_start, y_start, x_steps, y_steps, source_stride, target_stride});         \
  }
KAAS_TWIN_SCALES_TO_L0(asc_copy_l12l0a_mx, false)
KAAS_TWIN_SCALES_TO_L0(asc_copy_l12l0b_mx, true)
#undef KAAS_TWIN_SCALES_TO_L0

// ---- cube
// -------------------------------------------------------------------------------------------------------------------
namespace kaas_twin {

// Both operands of the same type, or two of the same width where the cube takes them mixed.
template <typename Left, typename Right>
constexpr bool multipliable() {
  if (std::is_same_v<Left, Right>) return element_of<Left>() != Element::kOther;
  const auto in = [](Element element, Element one, Element other) { return element == one || element == other; };
  return (in(element_of<Left>(), Element::kE4m3, Element::kE5m2) &&
          in(element_of<Right>(), Element::kE4m3, Element::kE5m2)) ||
         (in(element_of<Left>(), Element::kE2m1, Element::kE1m2) &&
          in(element_of<Right>(), Element::kE2m1, Element::kE1m2));
}

template <typename Accumulator, typename Left, typename Right>
void check_product(const char* name, bool matrix_vector, bool bias_from_table) {
  if constexpr (!std::is_same_v<Accumulator, float> || !multipliable<Left, Right>())
    not_modelled(name, "integer accumulation, or operands of these two types");
  if (matrix_vector) not_modelled(name, "the matrix-vector mode");
  if (bias_from_table) not_modelled(name, "a bias from the table buffer");
}

}  // namespace kaas_twin

template <typename Accumulator, typename Left, typename Right>
inline void asc_mmad(__cc__ Accumulator* accumulator, const __ca__ Left* left, const __cb__ Right* right,
                     uint32_t m, uint32_t k, uint32_t n, int unit_flag, bool gemv_off, bool bias_from_table,
                     bool start_at_zero) {
  kaas_twin::check_product<Accumulator, Left, Right>("asc_mmad", !gemv_off && m == 1, bias_from_table);
  kaas_twin::multiply("asc_mmad", kaas_twin::element_of<Left>(), kaas_twin::element_of<Right>(),
                      kaas_twin::offset_of(accumulator), kaas_twin::offset_of(left),
                      kaas_twin::offset_of(right), {m, k, n, unit_flag, start_at_zero});
}
template <typename Accumulator, typename Left, typename Right>
inline void asc_mmad_mx(__cc__ Accumulator* accumulator, const __ca__ Left* left, const __cb__ Right* right,
                        uint32_t m, uint32_t k, uint32_t n, int unit_flag, bool gemv_off,
                        bool bias_from_table, bool start_at_zero) {
  kaas_twin::check_product<Accumulator, Left, Right>("asc_mmad_mx", !gemv_off && m == 1, bias_from_table);
  kaas_twin::multiply_scaled("asc_mmad_mx", kaas_twin::element_of<Left>(), kaas_twin::element_of<Right>(),
                             kaas_twin::offset_of(accumulator), kaas_twin::offset_of(left),
                             kaas_twin::offset_of(right), {m, k, n, unit_flag, start_at_zero});
}

// ---- L0C -> GM, UB
// ------------------------------------------------------------------------------------------------------------
template <typename T, typename Accumulator>
inline void asc_copy_l0c2gm(__gm__ T* target, const __cc__ Accumulator* source, uint32_t columns,
                            uint32_t rows, uint32_t target_pitch, uint32_t source_stride,
                            asc_store_l2_cache_mode, asc_unit_flag_mode unit_flag, asc_quant_mode quant,
                            asc_relu_pre_mode relu, bool split, bool to_rows, uint64_t reserved0,
                            uint64_t reserved1) {
  if (reserved0 != 0 || reserved1 != 0)
    kaas_twin::not_modelled("asc_copy_l0c2gm", "non-zero trailing arguments");
  kaas_twin::copy_l0c_to_gm("asc_copy_l0c2gm", target, kaas_twin::element_of<T>(),
                            kaas_twin::offset_of(source),
                            {columns, rows, target_pitch, source_stride, static_cast<int>(unit_flag),
                             static_cast<int>(quant), static_cast<int>(relu), split, to_rows});
}
template <typename T, typename Accumulator>
inline void asc_copy_l0c2ub(__ubuf__ T* target, const __cc__ Accumulator* source, uint32_t columns,
                            uint32_t rows, uint32_t target_pitch, uint32_t source_stride, int sub_block,
                            asc_dual_dst_mode dual, asc_unit_flag_mode unit_flag, asc_quant_mode quant,
                            asc_relu_pre_mode relu, bool split, bool to_rows, uint64_t reserved0,
                            uint64_t reserved1) {
  if (reserved0 != 0 || reserved1 != 0)
    kaas_twin::not_modelled("asc_copy_l0c2ub", "non-zero trailing arguments");
  kaas_twin::copy_l0c_to_ub("asc_copy_l0c2ub", target, kaas_twin::element_of<T>(),
                            kaas_twin::offset_of(source),
                            {columns, rows, target_pitch, source_stride, static_cast<int>(unit_flag),
                             static_cast<int>(quant), static_cast<int>(relu), split, to_rows},
                            sub_block, static_cast<int>(dual));
}

// ---- GM <-> UB, UB -> L1
// --------------------------------------------------------------------------------------------------------
template <typename T>
inline void asc_copy_gm2ub_align(__ubuf__ T* target, const __gm__ T* source, uint64_t bursts, uint64_t bytes,
                                 int left_padding, int right_padding, bool constant_padding,
                                 asc_load_l2_cache_mode, uint64_t source_pitch, uint64_t target_pitch) {
  kaas_twin::copy_gm_to_ub("asc_copy_gm2ub_align", target, source, sizeof(T),
                           {bursts, bytes, source_pitch, target_pitch}, left_padding, right_padding,
                           constant_padding);
}
template <typename T>
inline void asc_copy_ub2gm_align(__gm__ T* target, const __ubuf__ T* source, uint64_t bursts, uint64_t bytes,
                                 asc_store_l2_cache_mode, uint64_t target_pitch, uint64_t source_pitch) {
  kaas_twin::copy_ub_to_gm("asc_copy_ub2gm_align", target, source, kaas_twin::element_of<T>(),
                           {bursts, bytes, source_pitch, target_pitch});
}
template <typename T, typename U>
inline void asc_copy_ub2l1(__cbuf__ T* target, const __ubuf__ U* source, uint64_t bursts, uint64_t blocks,
                           uint64_t source_gap, uint64_t target_gap) {
  kaas_twin::copy_ub_to_l1("asc_copy_ub2l1", kaas_twin::offset_of(target), source, bursts, blocks, source_gap,
                           target_gap);
}
