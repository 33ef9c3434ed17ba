// Vector and predicate registers of the SIMD dialect, and the empty tag values that select a variant of an operation.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kaas_twin/scalar_types.h"

namespace kaas_twin {

inline constexpr int kVectorBytes = 256;
inline constexpr int kPredicateBits = 256;

/// A 256-byte vector register. `may_alias`, because the dialect reinterprets registers by reference.
template <typename T>
struct __attribute__((may_alias, aligned(16))) Register {
  using element = T;
  static constexpr int lanes = kVectorBytes / static_cast<int>(sizeof(T));
  T lane[lanes];
};

/// A predicate register: one bit per byte of a vector register; an element of W bytes owns bit `index * W`.
struct Predicate {
  uint64_t word[4];

  bool bit(int position) const { return ((word[position >> 6] >> (position & 63)) & 1u) != 0; }
  void set(int position, bool value = true) {
    const uint64_t flag = uint64_t{1} << (position & 63);
    word[position >> 6] = value ? (word[position >> 6] | flag) : (word[position >> 6] & ~flag);
  }
  template <typename T>
  bool active(int element) const {
    return bit(element * static_cast<int>(sizeof(T)));
  }
  static constexpr Predicate none() { return {{0, 0, 0, 0}}; }
};

/// True when every element of `T` is active.
template <typename T>
bool all_active(const Predicate& mask) {
  constexpr uint64_t pattern = sizeof(T) == 1   ? ~uint64_t{0}
                               : sizeof(T) == 2 ? 0x5555555555555555u
                               : sizeof(T) == 4 ? 0x1111111111111111u
                                                : 0x0101010101010101u;
  return ((mask.word[0] & mask.word[1] & mask.word[2] & mask.word[3]) & pattern) == pattern;
}

/// An empty type per named token, so that `if constexpr (mode == MODE_ZEROING)` works on function parameters.
template <int Kind, int Value>
struct Tag {
  static constexpr int value = Value;
};
template <int Kind, int A, int B>
constexpr bool operator==(Tag<Kind, A>, Tag<Kind, B>) {
  return A == B;
}

enum TagKind {
  kMode,
  kPattern,
  kRound,
  kSaturate,
  kPart,
  kPosition,
  kOrder,
  kHalf,
  kBin,
  kPost,
  kBarrier,
  kDeinterleave
};

template <int Kind, typename T>
struct IsTag : std::false_type {};
template <int Kind, int Value>
struct IsTag<Kind, Tag<Kind, Value>> : std::true_type {};
template <int Kind, typename T>
inline constexpr bool is_tag = IsTag<Kind, std::remove_cvref_t<T>>::value;

template <int Kind>
constexpr int tag_value(int fallback) {
  return fallback;
}
/// Value of the tag of this kind among `tags`, or the fallback.
template <int Kind, typename First, typename... Rest>
constexpr int tag_value(int fallback, First, Rest... rest) {
  if constexpr (is_tag<Kind, First>) {
    return First::value;
  } else {
    return tag_value<Kind>(fallback, rest...);
  }
}

}  // namespace kaas_twin

using vector_bool = kaas_twin::Predicate;

using vector_f32 = kaas_twin::Register<float>;
using vector_f16 = kaas_twin::Register<half>;
using vector_bf16 = kaas_twin::Register<bfloat16_t>;
using vector_f8e4m3 = kaas_twin::Register<float8_e4m3_t>;
using vector_f8e5m2 = kaas_twin::Register<float8_e5m2_t>;
using vector_f8e8m0 = kaas_twin::Register<float8_e8m0_t>;
using vector_f4e2m1x2 = kaas_twin::Register<float4_e2m1x2_t>;
using vector_f4e1m2x2 = kaas_twin::Register<float4_e1m2x2_t>;
using vector_u8 = kaas_twin::Register<uint8_t>;
using vector_u16 = kaas_twin::Register<uint16_t>;
using vector_u32 = kaas_twin::Register<uint32_t>;
using vector_u64 = kaas_twin::Register<uint64_t>;
using vector_s8 = kaas_twin::Register<int8_t>;
using vector_s16 = kaas_twin::Register<int16_t>;
using vector_s32 = kaas_twin::Register<int32_t>;
using vector_s64 = kaas_twin::Register<int64_t>;

using vector_float = vector_f32;
using vector_half = vector_f16;
using vector_bfloat16_t = vector_bf16;
using vector_fp8_e4m3fn_t = vector_f8e4m3;
using vector_fp8_e5m2_t = vector_f8e5m2;
using vector_fp8_e8m0_t = vector_f8e8m0;
using vector_fp4x2_e2m1_t = vector_f4e2m1x2;
using vector_fp4x2_e1m2_t = vector_f4e1m2x2;
using vector_uint8_t = vector_u8;
using vector_uint16_t = vector_u16;
using vector_uint32_t = vector_u32;
using vector_uint64_t = vector_u64;
using vector_int8_t = vector_s8;
using vector_int16_t = vector_s16;
using vector_int32_t = vector_s32;
using vector_int64_t = vector_s64;

#define KAAS_TWIN_TAG(kind, name, value) inline constexpr kaas_twin::Tag<kaas_twin::kind, value> name{};
KAAS_TWIN_TAG(kMode, MODE_ZEROING, 0)
KAAS_TWIN_TAG(kMode, MODE_MERGING, 1)
KAAS_TWIN_TAG(kMode, MODE_STORED, 2)
KAAS_TWIN_TAG(kMode, MODE_UNKNOWN, 3)
KAAS_TWIN_TAG(kPattern, PAT_ALL, 0)
KAAS_TWIN_TAG(kPattern, PAT_VL1, 1)
KAAS_TWIN_TAG(kPattern, PAT_VL2, 2)
KAAS_TWIN_TAG(kPattern, PAT_VL3, 3)
KAAS_TWIN_TAG(kPattern, PAT_VL4, 4)
KAAS_TWIN_TAG(kPattern, PAT_VL8, 5)
KAAS_TWIN_TAG(kPattern, PAT_VL16, 6)
KAAS_TWIN_TAG(kPattern, PAT_VL32, 7)
KAAS_TWIN_TAG(kPattern, PAT_VL64, 8)
KAAS_TWIN_TAG(kPattern, PAT_VL128, 9)
KAAS_TWIN_TAG(kPattern, PAT_M3, 10)
KAAS_TWIN_TAG(kPattern, PAT_M4, 11)
KAAS_TWIN_TAG(kPattern, PAT_H, 12)
KAAS_TWIN_TAG(kPattern, PAT_Q, 13)
KAAS_TWIN_TAG(kPattern, PAT_ALLF, 15)
KAAS_TWIN_TAG(kRound, ROUND_R, static_cast<int>(kaas_twin::Rounding::NearestEven))
KAAS_TWIN_TAG(kRound, ROUND_A, static_cast<int>(kaas_twin::Rounding::NearestAway))
KAAS_TWIN_TAG(kRound, ROUND_F, static_cast<int>(kaas_twin::Rounding::Down))
KAAS_TWIN_TAG(kRound, ROUND_C, static_cast<int>(kaas_twin::Rounding::Up))
KAAS_TWIN_TAG(kRound, ROUND_Z, static_cast<int>(kaas_twin::Rounding::TowardZero))
KAAS_TWIN_TAG(kRound, ROUND_O, static_cast<int>(kaas_twin::Rounding::Odd))
KAAS_TWIN_TAG(kRound, ROUND_H, 6)
KAAS_TWIN_TAG(kSaturate, RS_DISABLE, 0)
KAAS_TWIN_TAG(kSaturate, RS_ENABLE, 1)
KAAS_TWIN_TAG(kPart, PART_EVEN, 0)
KAAS_TWIN_TAG(kPart, PART_ODD, 1)
KAAS_TWIN_TAG(kPart, PART_P0, 0)
KAAS_TWIN_TAG(kPart, PART_P1, 1)
KAAS_TWIN_TAG(kPart, PART_P2, 2)
KAAS_TWIN_TAG(kPart, PART_P3, 3)
KAAS_TWIN_TAG(kPosition, POS_LOWEST, 0)
KAAS_TWIN_TAG(kPosition, POS_HIGHEST, 1)
KAAS_TWIN_TAG(kOrder, INC_ORDER, 0)
KAAS_TWIN_TAG(kOrder, DEC_ORDER, 1)
KAAS_TWIN_TAG(kHalf, LOWER, 0)
KAAS_TWIN_TAG(kHalf, HIGHER, 1)
KAAS_TWIN_TAG(kBin, Bin_N0, 0)
KAAS_TWIN_TAG(kBin, Bin_N1, 1)
KAAS_TWIN_TAG(kPost, NO_POST_UPDATE, 0)
KAAS_TWIN_TAG(kPost, POST_UPDATE, 1)
KAAS_TWIN_TAG(kBarrier, VV_ALL, 0)
KAAS_TWIN_TAG(kBarrier, VST_VLD, 1)
KAAS_TWIN_TAG(kBarrier, VLD_VST, 2)
KAAS_TWIN_TAG(kBarrier, VST_VST, 3)
KAAS_TWIN_TAG(kBarrier, VS_ALL, 4)
KAAS_TWIN_TAG(kBarrier, VST_LD, 5)
KAAS_TWIN_TAG(kBarrier, VLD_ST, 6)
KAAS_TWIN_TAG(kBarrier, VST_ST, 7)
KAAS_TWIN_TAG(kBarrier, SV_ALL, 8)
KAAS_TWIN_TAG(kBarrier, ST_VLD, 9)
KAAS_TWIN_TAG(kBarrier, LD_VST, 10)
KAAS_TWIN_TAG(kBarrier, ST_VST, 11)
KAAS_TWIN_TAG(kDeinterleave, DINTLV_B8, 1)
KAAS_TWIN_TAG(kDeinterleave, DINTLV_B16, 2)
KAAS_TWIN_TAG(kDeinterleave, DINTLV_B32, 4)
#undef KAAS_TWIN_TAG

static_assert(sizeof(vector_f32) == 256 && sizeof(vector_bf16) == 256 && sizeof(vector_u8) == 256);
static_assert(sizeof(vector_bool) == 32 && std::is_trivial_v<vector_bool> && std::is_trivial_v<vector_f32>);
