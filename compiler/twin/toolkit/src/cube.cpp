// The cube: C (+)= A * B over fractals, accumulated in fp32. Fractal layout: asc-devkit docs,
// cube_compute/asc_mmad.md.
#include <bit>
#include <cstring>

#include "engine_state.h"
#include "kaas_twin/instructions.h"
#include "numbers.h"

namespace kaas_twin {

namespace {

typedef float Lanes
    __attribute__((vector_size(64)));  // 16 columns of B; the compiler splits it where registers are shorter
typedef float LanesUnaligned __attribute__((vector_size(64), aligned(4)));

// C[16][16] += sum over k of A[16][c0-blocked k] * B[k][16]. `a` is [k / c0][16][c0], `b` is [k][16].
template <int RowsAtOnce>
__attribute__((always_inline)) inline void tile(float* c, const float* a, const float* b, int k, int c0,
                                                bool zero) {
  for (int row = 0; row < 16; row += RowsAtOnce) {
    Lanes sum[RowsAtOnce];
    for (int i = 0; i < RowsAtOnce; ++i) {
      sum[i] = zero ? Lanes{} : Lanes(*reinterpret_cast<const LanesUnaligned*>(c + (row + i) * 16));
    }
    const float* right = b;
    for (int block = 0; block < k; block += c0) {
      const float* left = a + block * 16 + row * c0;
      const int depth = k - block < c0 ? k - block : c0;
      for (int step = 0; step < depth; ++step, right += 16) {
        const Lanes values = *reinterpret_cast<const Lanes*>(right);
        for (int i = 0; i < RowsAtOnce; ++i) sum[i] += left[i * c0 + step] * values;
      }
    }
    for (int i = 0; i < RowsAtOnce; ++i) *reinterpret_cast<LanesUnaligned*>(c + (row + i) * 16) = sum[i];
  }
}

using TileFunction = void (*)(float*, const float*, const float*, int, int, bool);

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void tile_512(float* c, const float* a, const float* b, int k, int c0,
                                                     bool zero) {
  if (c0 == 16) {
    tile<16>(c, a, b, k, 16, zero);
  } else {
    tile<16>(c, a, b, k, 8, zero);
  }
}
__attribute__((target("avx2,fma"))) void tile_256(float* c, const float* a, const float* b, int k, int c0,
                                                  bool zero) {
  tile<4>(c, a, b, k, c0, zero);
}
#endif
void tile_any(float* c, const float* a, const float* b, int k, int c0, bool zero) {
  tile<2>(c, a, b, k, c0, zero);
}

TileFunction pick_tile() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) return tile_512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tile_256;
#endif
  return tile_any;
}

// The fp32 operand rounded to 11 mantissa bits. The width is an assumption: the public documents do not state
// it.
float hf32(float value, int mode) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  const std::uint32_t half =
      mode == 0 ? 0x7ffu + ((bits >> 12) & 1u) : 0x800u;  // nearest even, or nearest away
  bits = (bits + half) & ~0xfffu;
  return std::bit_cast<float>(bits);
}

__attribute__((always_inline)) inline void widen_elements(float* out, const std::uint8_t* in,
                                                          std::size_t count, Element element) {
  if (element == Element::kBf16) {
    const auto* bits = reinterpret_cast<const std::uint16_t*>(in);
    auto* words = reinterpret_cast<std::uint32_t*>(out);
    for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(bits[i]) << 16;
  } else if (element == Element::kF16) {
    from_f16(out, reinterpret_cast<const std::uint16_t*>(in), count);
  } else {
    std::memcpy(out, in, count * 4);
  }
}

struct Scratch {
  std::vector<float> left, right, fractal;
};

thread_local Scratch t_scratch;

float* aligned(std::vector<float>& storage, std::size_t count) {
  if (storage.size() < count + 16) storage.resize(count + 16);
  auto address = reinterpret_cast<std::uintptr_t>(storage.data());
  return reinterpret_cast<float*>((address + 63) & ~std::uintptr_t{63});
}

// `in` holds 16 rows of c0 columns; out[column][row].
void transpose16(float* out, const float* in, int c0) {
  for (int column = 0; column < c0; ++column) {
    for (int row = 0; row < 16; ++row) out[column * 16 + row] = in[row * c0 + column];
  }
}

// Tells a checked run what a product touches. A small one may start before the one before it has ended, so that
// accumulating on it takes a barrier.
void note_product(const std::uint8_t* a, const std::uint8_t* b, const std::uint8_t* c, std::size_t m_blocks,
                  std::size_t n_blocks, std::size_t k_blocks) {
  if (running_check == nullptr) return;
  constexpr std::size_t kOrderedFractals = 10;
  reads(a, m_blocks * k_blocks * 512);
  reads(b, n_blocks * k_blocks * 512);
  const std::size_t bytes = m_blocks * n_blocks * 1024;
  if (m_blocks * n_blocks < kOrderedFractals) {
    running_check->touch_overlapping(c, bytes, Access::kWrite);
  } else {
    writes(c, bytes);
  }
}

}  // namespace

void multiply(const char* name, Element element, std::uint64_t accumulator, std::uint64_t left,
              std::uint64_t right, const CubeShape& s) {
  if (element != Element::kF32 && element != Element::kF16 && element != Element::kBf16) {
    not_modelled(name, "operands other than fp32, fp16 and bf16");
  }
  UnitFlag unit_flag = UnitFlag::kNone;
  if (s.unit_flag == 2) unit_flag = UnitFlag::kAccumulate;
  if (s.unit_flag == 3) unit_flag = UnitFlag::kComplete;
  if (s.unit_flag == 1 || s.unit_flag > 3) fail("%s: unit flag mode %d is reserved", name, s.unit_flag);
  if (s.m == 0 || s.k == 0 || s.n == 0) return;  // documented as a no-op
  const bool use_hf32 = Session::current()->core().registers.hf32 && element == Element::kF32;
  const int hf32_mode = Session::current()->core().registers.hf32_rounding;

  auto work = [=] {
    static const TileFunction run_tile = pick_tile();
    const int element_bytes = element == Element::kF32 ? 4 : 2;
    const std::uint32_t c0 = 32 / static_cast<std::uint32_t>(element_bytes);
    const std::uint32_t m_blocks = (s.m + 15) / 16;
    const std::uint32_t n_blocks = (s.n + 15) / 16;
    const std::uint32_t k_blocks = (s.k + c0 - 1) / c0;
    const std::size_t fractal = 16 * c0;
    const std::uint8_t* a = onchip(Memory::kL0A, left, std::uint64_t{m_blocks} * k_blocks * 512, name, 512);
    const std::uint8_t* b = onchip(Memory::kL0B, right, std::uint64_t{n_blocks} * k_blocks * 512, name, 512);
    std::uint8_t* c = onchip(Memory::kL0C, accumulator, std::uint64_t{m_blocks} * n_blocks * 1024, name, 64);
    note_product(a, b, c, m_blocks, n_blocks, k_blocks);

    float* left_panel = aligned(t_scratch.left, m_blocks * k_blocks * fractal);
    float* right_panel = aligned(t_scratch.right, n_blocks * k_blocks * fractal);
    float* one = aligned(t_scratch.fractal, fractal);
    for (std::uint32_t m = 0; m < m_blocks; ++m) {
      for (std::uint32_t k = 0; k < k_blocks; ++k) {
        widen_elements(left_panel + (std::size_t{m} * k_blocks + k) * fractal,
                       a + (std::size_t{k} * m_blocks + m) * 512, fractal, element);
      }
    }
    for (std::uint32_t n = 0; n < n_blocks; ++n) {
      for (std::uint32_t k = 0; k < k_blocks; ++k) {
        widen_elements(one, b + (std::size_t{k} * n_blocks + n) * 512, fractal, element);
        transpose16(right_panel + (std::size_t{n} * k_blocks + k) * fractal, one, static_cast<int>(c0));
      }
    }
    if (use_hf32) {
      for (std::size_t i = 0; i < m_blocks * k_blocks * fractal; ++i)
        left_panel[i] = hf32(left_panel[i], hf32_mode);
      for (std::size_t i = 0; i < n_blocks * k_blocks * fractal; ++i)
        right_panel[i] = hf32(right_panel[i], hf32_mode);
    }
    for (std::uint32_t n = 0; n < n_blocks; ++n) {
      const float* right_columns = right_panel + std::size_t{n} * k_blocks * fractal;
      for (std::uint32_t m = 0; m < m_blocks; ++m) {
        auto* out = reinterpret_cast<float*>(c + (std::size_t{n} * m_blocks + m) * 1024);
        run_tile(out, left_panel + std::size_t{m} * k_blocks * fractal, right_columns, static_cast<int>(s.k),
                 static_cast<int>(c0), s.start_at_zero);
      }
    }
  };
  Instruction instruction;
  instruction.name = name;
  instruction.unit_flag = unit_flag;
  instruction.accumulator = static_cast<std::uint32_t>(accumulator);
  instruction.task = Task(work);
  issue_step(PIPE_M, std::move(instruction));
}

}  // namespace kaas_twin
