// Predicate registers: creation from a pattern or a count, logic, packing, interleaving.
#pragma once

#include "kaas_twin/vector_lanes.h"

namespace kaas_twin {

/// Elements of `element_bytes` each: index < count are active.
inline Predicate first_elements(int element_bytes, uint32_t count) {
  Predicate result = Predicate::none();
  const uint32_t lanes = static_cast<uint32_t>(kVectorBytes / element_bytes);
  for (uint32_t i = 0; i < count && i < lanes; ++i) result.set(static_cast<int>(i) * element_bytes);
  return result;
}

template <int Pattern>
inline Predicate pattern_mask(int element_bytes, const char* intrinsic) {
  assert_on_pipe_v(intrinsic);
  const int lanes = kVectorBytes / element_bytes;
  if constexpr (Pattern == PAT_M3.value || Pattern == PAT_M4.value) {
    Predicate result = Predicate::none();
    constexpr int step = Pattern == PAT_M3.value ? 3 : 4;
    for (int i = 0; i < lanes; i += step) result.set(i * element_bytes);
    return result;
  } else {
    constexpr int counts[16] = {kVectorBytes, 1, 2, 3, 4, 8, 16, 32, 64, 128, 0, 0, -2, -4, 0, 0};
    constexpr int count = counts[Pattern];
    return first_elements(element_bytes, static_cast<uint32_t>(count < 0 ? lanes / -count : count));
  }
}

/// The first min(value, lanes) elements; value loses one register's worth of elements.
inline Predicate counted_mask(int element_bytes, uint32_t& value, const char* intrinsic) {
  assert_on_pipe_v(intrinsic);
  const uint32_t lanes = static_cast<uint32_t>(kVectorBytes / element_bytes);
  const Predicate result = first_elements(element_bytes, value);
  value = value < lanes ? 0 : value - lanes;
  return result;
}

/// Predicates as two registers of elements `width` bits wide: element i of the pair of sources.
template <int Width>
inline void interleave_predicates(Predicate& dst0, Predicate& dst1, const Predicate& a, const Predicate& b) {
  Predicate low = Predicate::none(), high = Predicate::none();
  constexpr int elements = kPredicateBits / Width;
  for (int i = 0; i < elements; ++i) {
    Predicate& target = i < elements / 2 ? low : high;
    const int base = (2 * i) % elements * Width;
    for (int j = 0; j < Width; ++j) {
      target.set(base + j, a.bit(i * Width + j));
      target.set(base + Width + j, b.bit(i * Width + j));
    }
  }
  dst0 = low;
  dst1 = high;
}

template <int Width>
inline void deinterleave_predicates(Predicate& dst0, Predicate& dst1, const Predicate& a, const Predicate& b) {
  Predicate even = Predicate::none(), odd = Predicate::none();
  constexpr int elements = kPredicateBits / Width;
  for (int i = 0; i < elements; ++i) {
    const Predicate& source = i < elements / 2 ? a : b;
    const int base = (2 * i) % elements * Width;
    for (int j = 0; j < Width; ++j) {
      even.set(i * Width + j, source.bit(base + j));
      odd.set(i * Width + j, source.bit(base + Width + j));
    }
  }
  dst0 = even;
  dst1 = odd;
}

}  // namespace kaas_twin

#define KAAS_TWIN_MASK_WIDTH(bits)                                                           \
  template <int Pattern>                                                                     \
  inline vector_bool asc_create_mask_b##bits(kaas_twin::Tag<kaas_twin::kPattern, Pattern>) { \
    return kaas_twin::pattern_mask<Pattern>(bits / 8, "asc_create_mask_b" #bits);            \
  }                                                                                          \
  inline vector_bool asc_update_mask_b##bits(uint32_t& value) {                              \
    return kaas_twin::counted_mask(bits / 8, value, "asc_update_mask_b" #bits);              \
  }
KAAS_TWIN_MASK_WIDTH(8)
KAAS_TWIN_MASK_WIDTH(16)
KAAS_TWIN_MASK_WIDTH(32)
KAAS_TWIN_MASK_WIDTH(64)
#undef KAAS_TWIN_MASK_WIDTH

#define KAAS_TWIN_PREDICATE_INTERLEAVE(bits)                                                            \
  inline void asc_intlv_b##bits(vector_bool& dst0, vector_bool& dst1, vector_bool a, vector_bool b) {   \
    kaas_twin::interleave_predicates<bits / 8>(dst0, dst1, a, b);                                       \
  }                                                                                                     \
  inline void asc_deintlv_b##bits(vector_bool& dst0, vector_bool& dst1, vector_bool a, vector_bool b) { \
    kaas_twin::deinterleave_predicates<bits / 8>(dst0, dst1, a, b);                                     \
  }
KAAS_TWIN_PREDICATE_INTERLEAVE(8)
KAAS_TWIN_PREDICATE_INTERLEAVE(16)
KAAS_TWIN_PREDICATE_INTERLEAVE(32)
#undef KAAS_TWIN_PREDICATE_INTERLEAVE

#define KAAS_TWIN_PREDICATE_LOGIC(name, Operation)                                                          \
  inline void name(vector_bool& dst, const vector_bool& a, const vector_bool& b, const vector_bool& mask) { \
    for (int i = 0; i < 4; ++i) {                                                                           \
      dst.word[i] = kaas_twin::lanes::Operation{}.word(a.word[i], b.word[i]) & mask.word[i];                \
    }                                                                                                       \
  }
KAAS_TWIN_PREDICATE_LOGIC(asc_and, And)
KAAS_TWIN_PREDICATE_LOGIC(asc_or, Or)
KAAS_TWIN_PREDICATE_LOGIC(asc_xor, Xor)
#undef KAAS_TWIN_PREDICATE_LOGIC

inline void asc_not(vector_bool& dst, const vector_bool& src, const vector_bool& mask) {
  for (int i = 0; i < 4; ++i) dst.word[i] = ~src.word[i] & mask.word[i];
}

/// dst = mask ? a : b, bit by bit.
inline void asc_select(vector_bool& dst, const vector_bool& a, const vector_bool& b, const vector_bool& mask) {
  for (int i = 0; i < 4; ++i) dst.word[i] = (a.word[i] & mask.word[i]) | (b.word[i] & ~mask.word[i]);
}

/// Every second bit, gathered in the low (high) half: the predicate of elements half as wide. The other half is 0.
inline void asc_pack_to_low(vector_bool& dst, const vector_bool& src) {
  vector_bool result = vector_bool::none();
  for (int i = 0; i < kaas_twin::kPredicateBits / 2; ++i) result.set(i, src.bit(2 * i));
  dst = result;
}
inline void asc_pack_to_high(vector_bool& dst, const vector_bool& src) {
  vector_bool result = vector_bool::none();
  for (int i = 0; i < kaas_twin::kPredicateBits / 2; ++i) result.set(128 + i, src.bit(2 * i));
  dst = result;
}
/// The low (high) half, one bit to every second bit: the predicate of elements twice as wide.
inline void asc_unpack_lower(vector_bool& dst, const vector_bool& src) {
  vector_bool result = vector_bool::none();
  for (int i = 0; i < kaas_twin::kPredicateBits / 2; ++i) result.set(2 * i, src.bit(i));
  dst = result;
}
inline void asc_unpack_upper(vector_bool& dst, const vector_bool& src) {
  vector_bool result = vector_bool::none();
  for (int i = 0; i < kaas_twin::kPredicateBits / 2; ++i) result.set(2 * i, src.bit(128 + i));
  dst = result;
}
