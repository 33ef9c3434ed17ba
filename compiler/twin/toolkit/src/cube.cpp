// The cube: C (+)= A * B over fractals, accumulated in fp32. Fractal layout: asc-devkit docs,
// cube_compute/asc_mmad.md and asc_mmad_mx.md.
#include <bit>
#include <cstring>

#include "engine_state.h"
#include "kaas_twin/float_formats.h"
#include "kaas_twin/instructions.h"
#include "kaas_twin/scalar_types.h"
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

typedef std::int32_t Exponents __attribute__((vector_size(64)));
typedef std::int32_t ExponentsUnaligned __attribute__((vector_size(64), aligned(4)));

constexpr int kScaleGroup = 32;           // consecutive K that share a scale
constexpr std::int32_t kNoScale = 1 << 20;  // the exponent that stands for NaN

// Two factors whose product is 2^exponent, so that neither overflows where the product times a small number does
// not. Sums of exponents lie in -254 .. 254; below -252 any product of these formats is zero anyway.
__attribute__((always_inline)) inline void powers_of_two(const Exponents& exponent, Lanes& first,
                                                         Lanes& second) {
  const Exponents lowest = Exponents{} - 126, highest = Exponents{} + 127;
  Exponents head = exponent < lowest ? lowest : exponent;
  head = head > highest ? highest : head;
  Exponents rest = exponent - head;
  rest = rest < lowest ? lowest : rest;
  const Exponents no_number = exponent > (kNoScale / 2);
  first = reinterpret_cast<Lanes>((head + 127) << 23);
  second = reinterpret_cast<Lanes>(no_number ? Exponents{} + 0x7fc00000 : (rest + 127) << 23);
}

// The same as `tile` with scales: the sum over each group of 32 K is scaled, then added to C. `left_exponents`
// and `right_exponents` are [k / 32][16].
template <int RowsAtOnce>
__attribute__((always_inline)) inline void scaled_tile(float* c, const float* a, const float* b, int k, int c0,
                                                       bool zero, const std::int32_t* left_exponents,
                                                       const std::int32_t* right_exponents) {
  for (int first = 0; first < k; first += kScaleGroup) {
    const int depth = k - first < kScaleGroup ? k - first : kScaleGroup;
    const float* rows = a + first / c0 * c0 * 16 + first % c0;
    const auto columns = *reinterpret_cast<const ExponentsUnaligned*>(right_exponents + first / kScaleGroup * 16);
    for (int row = 0; row < 16; row += RowsAtOnce) {
      Lanes sum[RowsAtOnce] = {};
      const float* left = rows + row * c0;
      const float* right = b + first * 16;
      for (int step = 0; step < depth; ++step, right += 16) {
        const Lanes values = *reinterpret_cast<const Lanes*>(right);
        for (int i = 0; i < RowsAtOnce; ++i) sum[i] += left[i * c0 + step] * values;
      }
      for (int i = 0; i < RowsAtOnce; ++i) {
        Lanes head, rest;
        powers_of_two(columns + left_exponents[first / kScaleGroup * 16 + row + i], head, rest);
        auto* out = reinterpret_cast<LanesUnaligned*>(c + (row + i) * 16);
        const Lanes old = zero && first == 0 ? Lanes{} : Lanes(*out);
        *out = old + sum[i] * head * rest;
      }
    }
  }
}

struct TileFunctions {
  void (*plain)(float* c, const float* a, const float* b, int k, int c0, bool zero);
  void (*scaled)(float* c, const float* a, const float* b, int k, int c0, bool zero, const std::int32_t* left,
                 const std::int32_t* right);
};

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void tile_512(float* c, const float* a, const float* b, int k, int c0,
                                                     bool zero) {
  if (c0 == 16) {
    tile<16>(c, a, b, k, 16, zero);
  } else {
    tile<16>(c, a, b, k, c0, zero);  // 8 or 32
  }
}
__attribute__((target("avx512f,fma"))) void scaled_512(float* c, const float* a, const float* b, int k, int c0,
                                                       bool zero, const std::int32_t* left,
                                                       const std::int32_t* right) {
  scaled_tile<16>(c, a, b, k, c0, zero, left, right);
}
__attribute__((target("avx2,fma"))) void tile_256(float* c, const float* a, const float* b, int k, int c0,
                                                  bool zero) {
  tile<4>(c, a, b, k, c0, zero);
}
__attribute__((target("avx2,fma"))) void scaled_256(float* c, const float* a, const float* b, int k, int c0,
                                                    bool zero, const std::int32_t* left,
                                                    const std::int32_t* right) {
  scaled_tile<4>(c, a, b, k, c0, zero, left, right);
}
#endif
void tile_any(float* c, const float* a, const float* b, int k, int c0, bool zero) {
  tile<2>(c, a, b, k, c0, zero);
}
void scaled_any(float* c, const float* a, const float* b, int k, int c0, bool zero, const std::int32_t* left,
                const std::int32_t* right) {
  scaled_tile<2>(c, a, b, k, c0, zero, left, right);
}

TileFunctions pick_tile() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) return {tile_512, scaled_512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {tile_256, scaled_256};
#endif
  return {tile_any, scaled_any};
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

int element_bits(Element element) {
  switch (element) {
    case Element::kF32: return 32;
    case Element::kE4m3:
    case Element::kE5m2: return 8;
    case Element::kE2m1:
    case Element::kE1m2: return 4;
    default: return 16;
  }
}

template <typename Format>
std::vector<float> table_of_bytes() {
  std::vector<float> values(256);
  for (std::uint32_t bits = 0; bits < 256; ++bits) values[bits] = decode_float<Format>(bits);
  return values;
}

// The values of both halves of every byte.
template <float (*Decode)(std::uint32_t)>
std::vector<float> table_of_pairs() {
  std::vector<float> values(512);
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    values[2 * bits] = Decode(bits & 15);
    values[2 * bits + 1] = Decode(bits >> 4);
  }
  return values;
}

// The values of one fractal of 512 bytes.
__attribute__((always_inline)) inline void widen_elements(float* out, const std::uint8_t* in,
                                                          std::size_t count, Element element) {
  static const std::vector<float> e4m3 = table_of_bytes<E4m3Format>(), e5m2 = table_of_bytes<E5m2Format>();
  static const std::vector<float> e2m1 = table_of_pairs<decode_e2m1>(), e1m2 = table_of_pairs<decode_e1m2>();
  switch (element) {
    case Element::kBf16: {
      const auto* bits = reinterpret_cast<const std::uint16_t*>(in);
      auto* words = reinterpret_cast<std::uint32_t*>(out);
      for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(bits[i]) << 16;
      return;
    }
    case Element::kF16: from_f16(out, reinterpret_cast<const std::uint16_t*>(in), count); return;
    case Element::kE4m3:
    case Element::kE5m2: {
      const float* values = element == Element::kE4m3 ? e4m3.data() : e5m2.data();
      for (std::size_t i = 0; i < count; ++i) out[i] = values[in[i]];
      return;
    }
    case Element::kE2m1:
    case Element::kE1m2: {
      const float* values = element == Element::kE2m1 ? e2m1.data() : e1m2.data();
      for (std::size_t i = 0; i < count / 2; ++i) std::memcpy(out + 2 * i, values + 2 * in[i], 8);
      return;
    }
    default: std::memcpy(out, in, count * 4); return;
  }
}

struct Scratch {
  std::vector<float> left, right, fractal;
  std::vector<std::int32_t> left_exponents, right_exponents;
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

// The exponents of `blocks` times 16 rows, [block][groups][16], out of pairs of scales: [block][pair][16][2].
void read_scales(std::vector<std::int32_t>& out, Memory memory, std::uint64_t tile, std::uint32_t blocks,
                 std::uint32_t k, const char* name) {
  const std::uint32_t pairs = (k + 2 * kScaleGroup - 1) / (2 * kScaleGroup);
  const std::size_t bytes = std::size_t{blocks} * pairs * kBlockBytes;
  const std::uint8_t* scales = onchip(memory, tile / 16, bytes, name, kBlockBytes);
  reads(scales, bytes);
  out.resize(bytes);
  for (std::size_t fractal = 0; fractal < std::size_t{blocks} * pairs; ++fractal) {
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint8_t scale = scales[fractal * 32 + i];
      out[(fractal * 2 + i % 2) * 16 + i / 2] = scale == 0xff ? kNoScale : std::int32_t{scale} - 127;
    }
  }
}

UnitFlag unit_flag_of(const char* name, int mode) {
  switch (mode) {
    case 0: return UnitFlag::kNone;
    case 2: return UnitFlag::kAccumulate;
    case 3: return UnitFlag::kComplete;
    default: fail("%s: unit flag mode %d is reserved", name, mode);
  }
}

void multiply_panels(const char* name, Element left_element, Element right_element, std::uint64_t accumulator,
                     std::uint64_t left, std::uint64_t right, const CubeShape& s, bool scaled) {
  const UnitFlag unit_flag = unit_flag_of(name, s.unit_flag);
  if (s.m == 0 || s.k == 0 || s.n == 0) return;  // documented as a no-op
  const Registers& registers = Session::current()->core().registers;
  const bool use_hf32 = registers.hf32 && left_element == Element::kF32;
  const int hf32_mode = registers.hf32_rounding;

  auto work = [=] {
    static const TileFunctions functions = pick_tile();
    const auto c0 = static_cast<std::uint32_t>(256 / element_bits(left_element));
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
                       a + (std::size_t{k} * m_blocks + m) * 512, fractal, left_element);
      }
    }
    for (std::uint32_t n = 0; n < n_blocks; ++n) {
      for (std::uint32_t k = 0; k < k_blocks; ++k) {
        widen_elements(one, b + (std::size_t{k} * n_blocks + n) * 512, fractal, right_element);
        transpose16(right_panel + (std::size_t{n} * k_blocks + k) * fractal, one, static_cast<int>(c0));
      }
    }
    if (use_hf32) {
      for (std::size_t i = 0; i < m_blocks * k_blocks * fractal; ++i)
        left_panel[i] = hf32(left_panel[i], hf32_mode);
      for (std::size_t i = 0; i < n_blocks * k_blocks * fractal; ++i)
        right_panel[i] = hf32(right_panel[i], hf32_mode);
    }
    if (scaled) {
      read_scales(t_scratch.left_exponents, Memory::kL0AScales, left, m_blocks, s.k, name);
      read_scales(t_scratch.right_exponents, Memory::kL0BScales, right, n_blocks, s.k, name);
    }
    const std::size_t exponents = scaled ? t_scratch.left_exponents.size() / m_blocks : 0;  // of 16 rows
    for (std::uint32_t n = 0; n < n_blocks; ++n) {
      const float* columns = right_panel + std::size_t{n} * k_blocks * fractal;
      for (std::uint32_t m = 0; m < m_blocks; ++m) {
        auto* out = reinterpret_cast<float*>(c + (std::size_t{n} * m_blocks + m) * 1024);
        const float* rows = left_panel + std::size_t{m} * k_blocks * fractal;
        const int k = static_cast<int>(s.k), depth = static_cast<int>(c0);
        if (scaled) {
          functions.scaled(out, rows, columns, k, depth, s.start_at_zero,
                           t_scratch.left_exponents.data() + m * exponents,
                           t_scratch.right_exponents.data() + n * exponents);
        } else {
          functions.plain(out, rows, columns, k, depth, s.start_at_zero);
        }
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

}  // namespace

void multiply(const char* name, Element left_element, Element right_element, std::uint64_t accumulator,
              std::uint64_t left, std::uint64_t right, const CubeShape& shape) {
  for (const Element element : {left_element, right_element}) {
    switch (element) {
      case Element::kF32:
      case Element::kF16:
      case Element::kBf16:
      case Element::kE4m3:
      case Element::kE5m2: break;
      default: not_modelled(name, "operands other than fp32, fp16, bf16 and fp8");
    }
  }
  multiply_panels(name, left_element, right_element, accumulator, left, right, shape, false);
}

void multiply_scaled(const char* name, Element left_element, Element right_element, std::uint64_t accumulator,
                     std::uint64_t left, std::uint64_t right, const CubeShape& shape) {
  if (element_bits(left_element) > 8) fail("%s: operands are fp8 or fp4", name);
  multiply_panels(name, left_element, right_element, accumulator, left, right, shape, true);
}

}  // namespace kaas_twin
