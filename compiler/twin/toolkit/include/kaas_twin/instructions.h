// The data-movement and cube instructions as the engine implements them, free of templates. c_api/asc_simd.h
// maps the generated calls onto these. Addresses of L1, L0A, L0B and L0C are byte offsets; GM and UB
// addresses are host pointers. Every function samples the special registers, checks its operands' ranges and
// queues one instruction.
#pragma once

#include <cstdint>

#include "kaas_twin/engine.h"

namespace kaas_twin {

enum class Element : int {
  kOther = 0,
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kS32 = 4,
  kS16 = 5,
  kS8 = 6,
  kE4m3 = 7,
  kE5m2 = 8,
  kE2m1 = 9,  // two to a byte, the first in the low half; so too kE1m2
  kE1m2 = 10,
};

// Special registers, written in program order by scalar code.
void set_nz_parameters(std::uint64_t matrices, std::uint64_t row_stride, std::uint64_t column_stride,
                       std::uint64_t matrix_stride);
void set_l0c_parameters(std::uint64_t matrices, std::uint64_t source_stride, std::uint64_t target_stride);
void set_pad_value(std::uint64_t bits);
void set_atomic(int operation, Element element);  // 0 none, 1 add, 2 max, 3 min
void set_hf32(bool enabled);
void set_hf32_rounding(int mode);

// Synchronisation.
void sync_notify(pipe_t from, pipe_t to, int id);
void sync_wait(pipe_t from, pipe_t to, int id);
void mutex_lock(pipe_t pipe, int id);
void mutex_unlock(pipe_t pipe, int id);
void sync_pipe(pipe_t pipe);
void sync_intra_arrive(pipe_t pipe, std::uint64_t id);
void sync_intra_wait(pipe_t pipe, std::uint64_t id);
void sync_inter_arrive(pipe_t pipe, std::uint64_t id);
void sync_inter_wait(pipe_t pipe, std::uint64_t id);

// GM -> L1 into NZ layout: `rows` x `columns` elements, source rows (or, transposed, columns) `pitch_bytes`
// apart.
void copy_gm_to_l1(const char* name, std::uint64_t target, const void* source, int element_bytes,
                   std::uint64_t pitch_bytes, std::uint64_t rows, std::uint64_t columns, bool transposed);

void fill_l1(const char* name, std::uint64_t target, std::uint32_t pattern, int pattern_bytes,
             std::uint64_t repeats, std::uint64_t blocks, std::uint64_t gap_blocks);

// L1 -> L0A/L0B in fractals of 512 B; positions and steps in fractals of the source.
struct FractalCopy {
  std::uint32_t row_start, column_start, rows, columns, source_stride, target_stride;
};
// `element_bits` counts only when the elements are transposed.
void copy_l1_to_l0(const char* name, bool to_l0b, bool transpose, int element_bits, std::uint64_t target,
                   std::uint64_t source, const FractalCopy& shape);

// L1 -> the scales of L0A/L0B, in fractals of 32 B: 16 rows of two e8m0 scales. A position is x * stride + y; x
// counts 16 rows, y pairs of scales. The scales of the tile at L0 address a lie at a / 16 of a memory of their
// own.
struct ScaleCopy {
  std::uint32_t x_start, y_start, x_steps, y_steps, source_stride, target_stride;
};
void copy_scales_to_l0(const char* name, bool to_l0b, std::uint64_t target, std::uint64_t source,
                       const ScaleCopy& shape);

struct CubeShape {
  std::uint32_t m, k, n;
  int unit_flag;
  bool start_at_zero;
};
void multiply(const char* name, Element left_element, Element right_element, std::uint64_t accumulator,
              std::uint64_t left, std::uint64_t right, const CubeShape& shape);
// The same with 32 consecutive K of a row of either operand times that row's scale.
void multiply_scaled(const char* name, Element left_element, Element right_element, std::uint64_t accumulator,
                     std::uint64_t left, std::uint64_t right, const CubeShape& shape);

// L0C -> GM or UB: `columns` x `rows` of the accumulator's NZ layout, converted and stored row by row.
struct FixpipeCopy {
  std::uint32_t columns, rows, target_pitch, source_stride;
  int unit_flag, quant, relu;
  bool split_channels, to_rows;
};
void copy_l0c_to_gm(const char* name, void* target, Element target_element, std::uint64_t source,
                    const FixpipeCopy& shape);
// dual: 0 to one AIV (`sub_block`), 1 the rows split over both, 2 the columns split over both.
void copy_l0c_to_ub(const char* name, void* target, Element target_element, std::uint64_t source,
                    const FixpipeCopy& shape, int sub_block, int dual);

struct Bursts {
  std::uint64_t count, bytes;
  std::uint64_t source_pitch, target_pitch;  // from start to start, bytes
};
void copy_gm_to_ub(const char* name, void* target, const void* source, int element_bytes,
                   const Bursts& bursts, int left_padding, int right_padding, bool constant_padding);
void copy_ub_to_gm(const char* name, void* target, const void* source, Element element, const Bursts& bursts);
// Lengths and gaps (from end to start) in blocks of 32 B.
void copy_ub_to_l1(const char* name, std::uint64_t target, const void* source, std::uint64_t bursts,
                   std::uint64_t blocks, std::uint64_t source_gap, std::uint64_t target_gap);

}  // namespace kaas_twin
