// Data movement between GM, L1, L0 and UB. Layout facts: asc-devkit docs,
// docs/zh/api/SIMD-API/C-API/{cube,vector}_datamove.
#include <cstring>

#include "engine_state.h"
#include "kaas_twin/float_formats.h"
#include "kaas_twin/instructions.h"
#include "numbers.h"

namespace kaas_twin {

namespace {

constexpr std::uint64_t kFractalBytes = 512;

Core& core() { return Session::current()->core(); }

std::uint64_t ceil_div(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit; }

// Bytes from the first to the last byte touched by `count` pieces of `bytes`, `pitch` apart.
std::uint64_t extent(std::uint64_t count, std::uint64_t bytes, std::uint64_t pitch) {
  return count == 0 ? 0 : (count - 1) * pitch + bytes;
}

void issue(pipe_t pipe, const char* name, UnitFlag unit_flag, std::uint64_t accumulator, Task task) {
  Instruction instruction;
  instruction.name = name;
  instruction.unit_flag = unit_flag;
  instruction.accumulator = static_cast<std::uint32_t>(accumulator);
  instruction.task = std::move(task);
  issue_step(pipe, std::move(instruction));
}

template <int Bytes>
void gather_transposed(std::uint8_t* target, const std::uint8_t* source, std::uint64_t pitch, int count) {
  for (int i = 0; i < count; ++i)
    std::memcpy(target + i * Bytes, source + static_cast<std::uint64_t>(i) * pitch, Bytes);
}

// A square of 32x32 bytes: two fractals one below the other, before and after.
void transpose_bytes(std::uint8_t* const* target_parts, const std::uint8_t* const* source_parts) {
  for (int row = 0; row < 32; ++row) {
    for (int column = 0; column < 32; ++column)
      target_parts[row / 16][row % 16 * 32 + column] = source_parts[column / 16][column % 16 * 32 + row];
  }
}

// A square of 64x64 values of four bits: four fractals one below the other, before and after.
void transpose_nibbles(std::uint8_t* const* target_parts, const std::uint8_t* const* source_parts) {
  const auto value = [&](int row, int column) {
    const int pair = source_parts[row / 16][row % 16 * 32 + column / 2];
    return column % 2 == 0 ? pair & 15 : pair >> 4;
  };
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; column += 2) {
      target_parts[row / 16][row % 16 * 32 + column / 2] =
          static_cast<std::uint8_t>(value(column, row) | value(column + 1, row) << 4);
    }
  }
}

template <typename T, int Rows, int Columns>
void transpose_square(std::uint8_t* const* target_parts, const std::uint8_t* const* source_parts) {
  // A square of 16x16 elements made of fractals with `Columns` columns each, side by side.
  constexpr int kParts = 16 / Columns;
  static_assert(Rows == 16);
  T square[16][16];
  for (int part = 0; part < kParts; ++part) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(&square[row][part * Columns],
                  source_parts[part] + row * Columns * static_cast<int>(sizeof(T)), sizeof(T) * Columns);
    }
  }
  for (int part = 0; part < kParts; ++part) {
    T out[16][Columns];
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < Columns; ++column)
        out[row][column] = square[part * Columns + column][row];
    }
    std::memcpy(target_parts[part], out, sizeof(out));
  }
}

}  // namespace

void copy_gm_to_l1(const char* name, std::uint64_t target, const void* source, int element_bytes,
                   std::uint64_t pitch_bytes, std::uint64_t rows, std::uint64_t columns, bool transposed) {
  const Registers& r = core().registers;
  if (r.nz_count != 1) not_modelled(name, "more than one matrix per copy");
  if (rows == 0 || columns == 0) return;  // documented as a no-op
  const auto c0 = static_cast<std::uint64_t>(32 / element_bytes);
  const std::uint64_t column_blocks = ceil_div(columns, c0);
  const std::uint64_t row_stride = r.nz_row_stride;
  const std::uint64_t column_stride = r.nz_column_stride;
  submit(PIPE_MTE2, name, [=] {
    const std::uint64_t bytes = extent(column_blocks, extent(rows, 32, row_stride * 32), column_stride * 32);
    std::uint8_t* l1 = onchip(Memory::kL1, target, bytes, name, kBlockBytes);
    const auto* gm = static_cast<const std::uint8_t*>(source);
    if (running_check != nullptr) {
      const auto element = static_cast<std::uint64_t>(element_bytes);
      for (std::uint64_t line = 0; line < (transposed ? columns : rows); ++line)
        reads(gm + line * pitch_bytes, (transposed ? rows : columns) * element);
    }
    for (std::uint64_t row = 0; row < rows; ++row) {
      for (std::uint64_t block = 0; block < column_blocks; ++block) {
        std::uint8_t* to = l1 + (block * column_stride + row * row_stride) * 32;
        writes(to, 32);
        const std::uint64_t first = block * c0;
        const int count = static_cast<int>(std::min<std::uint64_t>(c0, columns - first));
        if (!transposed) {
          const std::uint8_t* from =
              gm + row * pitch_bytes + first * static_cast<std::uint64_t>(element_bytes);
          if (count == static_cast<int>(c0)) {
            std::memcpy(to, from, 32);
          } else {
            std::memcpy(to, from, static_cast<std::size_t>(count * element_bytes));
            std::memset(to + count * element_bytes, 0, static_cast<std::size_t>(32 - count * element_bytes));
          }
          continue;
        }
        const std::uint8_t* from = gm + first * pitch_bytes + row * static_cast<std::uint64_t>(element_bytes);
        switch (element_bytes) {
          case 1: gather_transposed<1>(to, from, pitch_bytes, count); break;
          case 2: gather_transposed<2>(to, from, pitch_bytes, count); break;
          default: gather_transposed<4>(to, from, pitch_bytes, count); break;
        }
        std::memset(to + count * element_bytes, 0, static_cast<std::size_t>(32 - count * element_bytes));
      }
    }
  });
}

void fill_l1(const char* name, std::uint64_t target, std::uint32_t pattern, int pattern_bytes,
             std::uint64_t repeats, std::uint64_t blocks, std::uint64_t gap_blocks) {
  if (repeats == 0 || blocks == 0) return;
  submit(PIPE_MTE2, name, [=] {
    const std::uint64_t pitch = (blocks + gap_blocks) * 32;
    std::uint8_t* l1 = onchip(Memory::kL1, target, extent(repeats, blocks * 32, pitch), name, kBlockBytes);
    std::uint8_t block[32];
    for (int at = 0; at < 32; at += pattern_bytes)
      std::memcpy(block + at, &pattern, static_cast<std::size_t>(pattern_bytes));
    for (std::uint64_t i = 0; i < repeats; ++i) {
      if (pattern == 0) {
        clears(l1 + i * pitch, blocks * 32);
      } else {
        writes(l1 + i * pitch, blocks * 32);
      }
      for (std::uint64_t b = 0; b < blocks; ++b) std::memcpy(l1 + i * pitch + b * 32, block, 32);
    }
  });
}

void copy_l1_to_l0(const char* name, bool to_l0b, bool transpose, int element_bits, std::uint64_t target,
                   std::uint64_t source, const FractalCopy& s) {
  if (s.rows == 0 || s.columns == 0) return;
  if (transpose && element_bits == 32 && s.columns % 2 != 0) {
    fail("%s: transposing 4-byte elements takes an even number of fractal columns, not %u", name, s.columns);
  }
  // Narrow elements are transposed in squares as wide as a fractal's row: several fractals one below the other.
  const std::uint32_t high = transpose && element_bits < 16 ? 16 / static_cast<std::uint32_t>(element_bits) : 1;
  if (s.rows % high != 0) {
    fail("%s: transposing %d-bit elements takes a multiple of %u fractal rows, not %u", name, element_bits, high,
         s.rows);
  }
  submit(PIPE_MTE1, name, [=] {
    const Memory memory = to_l0b ? Memory::kL0B : Memory::kL0A;
    auto from = [&](std::uint64_t row, std::uint64_t column) {
      const std::uint64_t fractal = (s.column_start + column) * s.source_stride + s.row_start + row;
      const std::uint8_t* at =
          onchip(Memory::kL1, source + fractal * kFractalBytes, kFractalBytes, name, kBlockBytes);
      reads(at, kFractalBytes);
      return at;
    };
    auto to = [&](std::uint64_t fractal) {
      std::uint8_t* at = onchip(memory, target + fractal * kFractalBytes, kFractalBytes, name, kFractalBytes);
      writes(at, kFractalBytes);
      return at;
    };
    for (std::uint32_t row = 0; row < s.rows; row += high) {
      if (!transpose) {
        for (std::uint32_t column = 0; column < s.columns; ++column) {
          std::memcpy(to(std::uint64_t{column} * s.target_stride + row), from(row, column), kFractalBytes);
        }
      } else if (high > 1) {
        for (std::uint32_t column = 0; column < s.columns; ++column) {
          const std::uint8_t* source_parts[4];
          std::uint8_t* target_parts[4];
          for (std::uint32_t part = 0; part < high; ++part) {
            source_parts[part] = from(row + part, column);
            target_parts[part] =
                to(std::uint64_t{row / high} * s.target_stride + std::uint64_t{column} * high + part);
          }
          if (element_bits == 8) {
            transpose_bytes(target_parts, source_parts);
          } else {
            transpose_nibbles(target_parts, source_parts);
          }
        }
      } else if (element_bits == 16) {
        for (std::uint32_t column = 0; column < s.columns; ++column) {
          const std::uint8_t* source_parts[1] = {from(row, column)};
          std::uint8_t* target_parts[1] = {to(std::uint64_t{row} * s.target_stride + column)};
          transpose_square<std::uint16_t, 16, 16>(target_parts, source_parts);
        }
      } else {
        for (std::uint32_t column = 0; column < s.columns; column += 2) {
          const std::uint8_t* source_parts[2] = {from(row, column), from(row, column + 1)};
          const std::uint64_t first = 2 * std::uint64_t{row} * s.target_stride + column / 2;
          std::uint8_t* target_parts[2] = {to(first), to(first + s.target_stride)};
          transpose_square<std::uint32_t, 16, 8>(target_parts, source_parts);
        }
      }
    }
  });
}

void copy_scales_to_l0(const char* name, bool to_l0b, std::uint64_t target, std::uint64_t source,
                       const ScaleCopy& s) {
  if (s.x_steps == 0 || s.y_steps == 0) return;
  if (s.x_steps > 255 || s.y_steps > 255) fail("%s: more than 255 steps", name);
  submit(PIPE_MTE1, name, [=] {
    const Memory memory = to_l0b ? Memory::kL0BScales : Memory::kL0AScales;
    for (std::uint64_t x = 0; x < s.x_steps; ++x) {
      const std::uint64_t from = source + ((s.x_start + x) * s.source_stride + s.y_start) * kBlockBytes;
      const std::uint64_t to = target + x * s.target_stride * kBlockBytes;
      const std::uint64_t bytes = s.y_steps * kBlockBytes;
      const std::uint8_t* l1 = onchip(Memory::kL1, from, bytes, name, kBlockBytes);
      std::uint8_t* l0 = onchip(memory, to, bytes, name, kBlockBytes);
      reads(l1, bytes);
      writes(l0, bytes);
      std::memcpy(l0, l1, bytes);
    }
  });
}

namespace {

// What the fixpipe makes of an fp32 accumulator value.
enum class Conversion { kNone, kBf16, kF16 };

Conversion conversion_of(const char* name, int quant, Element target) {
  switch (quant) {
    case 0:
      if (target != Element::kF32 && target != Element::kS32)
        not_modelled(name, "storing the accumulator unconverted into another type");
      return Conversion::kNone;
    case 1: return Conversion::kF16;
    case 16: return Conversion::kBf16;
    default: break;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "quantisation mode %d", quant);
  not_modelled(name, text);
}

UnitFlag unit_flag_of(const char* name, int mode) {
  switch (mode) {
    case 0: return UnitFlag::kNone;
    case 2: return UnitFlag::kReadKeep;
    case 3: return UnitFlag::kReadRelease;
    default: break;
  }
  fail("%s: unit flag mode %d is reserved", name, mode);
}

void check_fixpipe(const char* name, const FixpipeCopy& s) {
  if (s.relu != 0 && s.relu != 1) not_modelled(name, "this relu mode");
  if (s.split_channels) not_modelled(name, "channel split");
  if (!s.to_rows) not_modelled(name, "keeping the NZ layout");
  if (core().registers.l0c_matrices != 1) not_modelled(name, "more than one matrix per copy");
}

// One row of the accumulator, columns first .. first+count, into `out` (fp32).
void read_row(float* out, const std::uint8_t* l0c, std::uint64_t row, std::uint64_t first,
              std::uint64_t count, std::uint64_t source_stride, bool relu) {
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t column = first + done;
    const std::uint64_t within = column % 16;
    const std::uint64_t take = std::min<std::uint64_t>(16 - within, count - done);
    const std::uint64_t at = column / 16 * source_stride * 16 + row * 16 + within;
    std::memcpy(out + done, l0c + at * 4, take * 4);
    done += take;
  }
  if (relu) {
    for (std::uint64_t i = 0; i < count; ++i) out[i] = out[i] > 0 ? out[i] : 0.0f;
  }
}

void convert_row(std::uint8_t* out, const float* row, std::uint64_t count, Conversion conversion) {
  switch (conversion) {
    case Conversion::kNone: std::memcpy(out, row, count * 4); return;
    case Conversion::kBf16: to_bf16(reinterpret_cast<std::uint16_t*>(out), row, count); return;
    case Conversion::kF16: to_f16(reinterpret_cast<std::uint16_t*>(out), row, count); return;
  }
}

// Tells a checked run what a copy reads of the accumulator.
void read_accumulator(const std::uint8_t* l0c, const FixpipeCopy& s) {
  for (std::uint64_t first = 0; first < s.columns; first += 16)
    reads(l0c + first * s.source_stride * 4, std::uint64_t{s.rows} * 64);
}

std::uint64_t accumulator_extent(const FixpipeCopy& s) {
  const std::uint64_t last_block = (std::uint64_t{s.columns} - 1) / 16;
  return (last_block * s.source_stride * 16 + (std::uint64_t{s.rows} - 1) * 16 + 16) * 4;
}

}  // namespace

void copy_l0c_to_gm(const char* name, void* target, Element target_element, std::uint64_t source,
                    const FixpipeCopy& s) {
  check_fixpipe(name, s);
  const Conversion conversion = conversion_of(name, s.quant, target_element);
  const UnitFlag unit_flag = unit_flag_of(name, s.unit_flag);
  if (s.rows == 0 || s.columns == 0) return;
  const Registers registers = core().registers;
  auto work = [=] {
    const std::uint8_t* l0c = onchip(Memory::kL0C, source, accumulator_extent(s), name, 64);
    read_accumulator(l0c, s);
    const std::uint64_t element_bytes = conversion == Conversion::kNone ? 4 : 2;
    std::vector<float> row(s.columns);
    std::vector<std::uint8_t> converted(s.columns * element_bytes);
    for (std::uint64_t m = 0; m < s.rows; ++m) {
      read_row(row.data(), l0c, m, 0, s.columns, s.source_stride, s.relu == 1);
      std::uint8_t* out = static_cast<std::uint8_t*>(target) + m * s.target_pitch * element_bytes;
      if (registers.atomic_op == 0) {
        writes(out, s.columns * element_bytes);
        convert_row(out, row.data(), s.columns, conversion);
      } else {
        updates(out, converted.size());
        convert_row(converted.data(), row.data(), s.columns, conversion);
        atomic_store(name, out, converted.data(), converted.size(), registers.atomic_op,
                     static_cast<Element>(registers.atomic_element));
      }
    }
  };
  issue(PIPE_FIX, name, unit_flag, source, Task(work));
}

void copy_l0c_to_ub(const char* name, void* target, Element target_element, std::uint64_t source,
                    const FixpipeCopy& s, int sub_block, int dual) {
  check_fixpipe(name, s);
  const Conversion conversion = conversion_of(name, s.quant, target_element);
  const UnitFlag unit_flag = unit_flag_of(name, s.unit_flag);
  if (dual < 0 || dual > 2) not_modelled(name, "this dual destination mode");
  if (dual == 1 && s.rows % 2 != 0)
    fail("%s: an odd number of rows (%u) cannot be split over two AIVs", name, s.rows);
  if (dual == 2 && s.columns % 2 != 0) {
    fail("%s: an odd number of columns (%u) cannot be split over two AIVs", name, s.columns);
  }
  if (dual == 0 && (sub_block < 0 || sub_block > 1)) fail("%s: AIV%d does not exist", name, sub_block);
  if (s.rows == 0 || s.columns == 0) return;
  const auto offset = static_cast<std::uint64_t>(static_cast<std::uint8_t*>(target) - core().ub);
  auto work = [=] {
    const std::uint8_t* l0c = onchip(Memory::kL0C, source, accumulator_extent(s), name, 64);
    read_accumulator(l0c, s);
    const std::uint64_t element_bytes = conversion == Conversion::kNone ? 4 : 2;
    const std::uint64_t rows = dual == 1 ? s.rows / 2 : s.rows;
    const std::uint64_t columns = dual == 2 ? s.columns / 2 : s.columns;
    std::vector<float> row(columns);
    Block& block = *core().block;
    for (int sub = dual == 0 ? sub_block : 0; sub <= (dual == 0 ? sub_block : 1); ++sub) {
      Core* aiv = block.aiv[static_cast<std::size_t>(sub)];
      if (aiv == nullptr) fail("%s: this kernel has no AIV%d", name, sub);
      const std::uint64_t pitch = s.target_pitch * element_bytes;
      const std::uint64_t bytes = (rows - 1) * pitch + columns * element_bytes;
      if (offset > kUbBytes || bytes > kUbBytes - offset) {
        fail("%s: out of range on UB of AIV%d: offset %lld + %llu bytes exceeds its %zu bytes", name, sub,
             static_cast<long long>(offset), static_cast<unsigned long long>(bytes), kUbBytes);
      }
      if (offset % kBlockBytes != 0) {
        fail("%s: misaligned on UB: offset %llu is no multiple of %zu", name,
             static_cast<unsigned long long>(offset), kBlockBytes);
      }
      for (std::uint64_t m = 0; m < rows; ++m) {
        const std::uint64_t source_row = dual == 1 ? static_cast<std::uint64_t>(sub) * rows + m : m;
        const std::uint64_t first = dual == 2 ? static_cast<std::uint64_t>(sub) * columns : 0;
        read_row(row.data(), l0c, source_row, first, columns, s.source_stride, s.relu == 1);
        writes(aiv->ub + offset + m * pitch, columns * element_bytes);
        convert_row(aiv->ub + offset + m * pitch, row.data(), columns, conversion);
      }
    }
  };
  issue(PIPE_FIX, name, unit_flag, source, Task(work));
}

void copy_gm_to_ub(const char* name, void* target, const void* source, int element_bytes, const Bursts& b,
                   int left_padding, int right_padding, bool constant_padding) {
  if (b.count == 0 || b.bytes == 0) return;
  const std::uint64_t pad = core().registers.pad_value;
  const std::uint64_t left =
      static_cast<std::uint64_t>(left_padding) * static_cast<std::uint64_t>(element_bytes);
  const std::uint64_t right =
      static_cast<std::uint64_t>(right_padding) * static_cast<std::uint64_t>(element_bytes);
  if (left > 32 || right > 32) fail("%s: more than 32 bytes of padding on one side", name);
  submit(PIPE_MTE2, name, [=] {
    const std::uint64_t row = left + b.bytes + right;
    std::uint8_t* ub = ub_range(target, extent(b.count, row, b.target_pitch), name, kBlockBytes);
    if (b.count > 1 && b.target_pitch % kBlockBytes != 0) {
      fail("%s: misaligned on UB: bursts %llu bytes apart, no multiple of %zu", name,
           static_cast<unsigned long long>(b.target_pitch), kBlockBytes);
    }
    const auto* gm = static_cast<const std::uint8_t*>(source);
    for (std::uint64_t i = 0; i < b.count; ++i) {
      std::uint8_t* to = ub + i * b.target_pitch;
      const std::uint8_t* from = gm + i * b.source_pitch;
      writes(to, row);
      reads(from, b.bytes);
      const std::uint8_t* filler = constant_padding ? reinterpret_cast<const std::uint8_t*>(&pad) : from;
      const auto element = static_cast<std::size_t>(element_bytes);
      for (std::uint64_t at = 0; at < left; at += element) std::memcpy(to + at, filler, element);
      std::memcpy(to + left, from, b.bytes);
      for (std::uint64_t at = 0; at < right; at += element)
        std::memcpy(to + left + b.bytes + at, filler, element);
    }
  });
}

void copy_ub_to_gm(const char* name, void* target, const void* source, Element element, const Bursts& b) {
  if (b.count == 0 || b.bytes == 0) return;
  (void)element;
  const Registers registers = core().registers;
  submit(PIPE_MTE3, name, [=] {
    const std::uint8_t* ub = ub_range(source, extent(b.count, b.bytes, b.source_pitch), name, kBlockBytes);
    if (b.count > 1 && b.source_pitch % kBlockBytes != 0) {
      fail("%s: misaligned on UB: bursts %llu bytes apart, no multiple of %zu", name,
           static_cast<unsigned long long>(b.source_pitch), kBlockBytes);
    }
    auto* gm = static_cast<std::uint8_t*>(target);
    for (std::uint64_t i = 0; i < b.count; ++i) {
      std::uint8_t* to = gm + i * b.target_pitch;
      const std::uint8_t* from = ub + i * b.source_pitch;
      reads(from, b.bytes);
      if (registers.atomic_op == 0) {
        writes(to, b.bytes);
        std::memcpy(to, from, b.bytes);
      } else {
        updates(to, b.bytes);
        atomic_store(name, to, from, b.bytes, registers.atomic_op,
                     static_cast<Element>(registers.atomic_element));
      }
    }
  });
}

void copy_ub_to_l1(const char* name, std::uint64_t target, const void* source, std::uint64_t bursts,
                   std::uint64_t blocks, std::uint64_t source_gap, std::uint64_t target_gap) {
  if (bursts == 0 || blocks == 0) return;
  submit(PIPE_MTE3, name, [=] {
    const std::uint64_t bytes = blocks * 32;
    const std::uint64_t source_pitch = bytes + source_gap * 32;
    const std::uint64_t target_pitch = bytes + target_gap * 32;
    const std::uint8_t* ub = ub_range(source, extent(bursts, bytes, source_pitch), name, kBlockBytes);
    Core* aic = core().block->aic;
    if (aic == nullptr) fail("%s: this kernel has no AIC", name);
    const std::uint64_t reach = extent(bursts, bytes, target_pitch);
    if (target > kL1Bytes || reach > kL1Bytes - target) {
      fail("%s: out of range on L1: offset %llu + %llu bytes exceeds its %zu bytes", name,
           static_cast<unsigned long long>(target), static_cast<unsigned long long>(reach), kL1Bytes);
    }
    if (target % kBlockBytes != 0) {
      fail("%s: misaligned on L1: offset %llu is no multiple of %zu", name,
           static_cast<unsigned long long>(target), kBlockBytes);
    }
    for (std::uint64_t i = 0; i < bursts; ++i) {
      reads(ub + i * source_pitch, bytes);
      writes(aic->l1 + target + i * target_pitch, bytes);
      std::memcpy(aic->l1 + target + i * target_pitch, ub + i * source_pitch, bytes);
    }
  });
}

}  // namespace kaas_twin
