// Loads and stores between the unified buffer (UB) and vector or predicate registers.
//
// Every access is range-checked against the running core's UB and refused outside PIPE_V. Offsets count elements of the
// pointer's type, except for predicates, where they count bytes.
#pragma once

#include "kaas_twin/vector_mask.h"

namespace kaas_twin {

template <typename T>
const T* ub_source(const T* address, int64_t offset, int64_t elements, const char* intrinsic,
                          std::size_t alignment) {
  return reinterpret_cast<const T*>(
      vector_load(address + offset, static_cast<std::size_t>(elements) * sizeof(T), intrinsic, alignment));
}

template <typename T>
T* ub_target(T* address, int64_t offset, int64_t elements, const char* intrinsic, std::size_t alignment) {
  return reinterpret_cast<T*>(
      vector_store(address + offset, static_cast<std::size_t>(elements) * sizeof(T), intrinsic, alignment));
}

/// The same for a store of `count` elements of `width` bytes of which a mask leaves some out.
template <typename T>
uint8_t* ub_masked_target(void* address, int count, std::size_t width, const Predicate& mask, int first_lane,
                                 const char* intrinsic) {
  uint8_t* to =
      vector_store_unnoted(address, static_cast<std::size_t>(count) * width, intrinsic, kBlockBytes);
  if (accesses_are_checked()) {
    for (int i = 0; i < count; ++i) {
      if (mask.active<T>(first_lane + i)) note_vector_store(to + static_cast<std::size_t>(i) * width, width, intrinsic);
    }
  }
  return to;
}

/// One past the last active element, so that a masked tail may end at the end of UB.
template <typename T>
int active_extent(const Predicate& mask) {
  int extent = Register<T>::lanes;
  while (extent > 0 && !mask.active<T>(extent - 1)) --extent;
  return extent;
}

namespace load {

template <typename T>
void norm(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  std::memcpy(&dst, ub_source(src, offset, Register<T>::lanes, intrinsic, kBlockBytes), sizeof(dst));
}

template <typename T>
void brc_elem(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  const T value = *ub_source(src, offset, 1, intrinsic, sizeof(T));
  for (T& lane : dst.lane) lane = value;
}

/// Each of lanes/2 elements twice.
template <typename T>
void upsample(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  const T* from = ub_source(src, offset, Register<T>::lanes / 2, intrinsic, kBlockBytes);
  for (int i = 0; i < Register<T>::lanes; ++i) dst.lane[i] = from[i / 2];
}

/// Every second of 2*lanes elements.
template <typename T>
void downsample(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  const T* from = ub_source(src, offset, Register<T>::lanes * 2, intrinsic, kBlockBytes);
  for (int i = 0; i < Register<T>::lanes; ++i) dst.lane[i] = from[2 * i];
}

/// Elements spread over slots `Factor` times as wide, upper bits zero.
template <int Factor, typename T>
void spread(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  const T* from = ub_source(src, offset, Register<T>::lanes / Factor, intrinsic, kBlockBytes);
  Register<T> result;
  std::memset(&result, 0, sizeof(result));
  for (int i = 0; i < Register<T>::lanes / Factor; ++i) result.lane[i * Factor] = from[i];
  dst = result;
}
template <typename T>
void unpack(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  spread<2>(dst, src, offset, intrinsic);
}
template <typename T>
void unpack4(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  spread<4>(dst, src, offset, intrinsic);
}

/// One 32-byte block in all eight blocks.
template <typename T>
void brc_datablock(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  constexpr int per_block = static_cast<int>(kBlockBytes / sizeof(T));
  const T* from = ub_source(src, offset, per_block, intrinsic, kBlockBytes);
  for (int i = 0; i < Register<T>::lanes; ++i) dst.lane[i] = from[i % per_block];
}

/// Eight elements, each filling one 32-byte block.
template <typename T>
void brc_elem2datablock(Register<T>& dst, const T* src, int64_t offset, const char* intrinsic) {
  constexpr int per_block = static_cast<int>(kBlockBytes / sizeof(T));
  const T* from = ub_source(src, offset, 8, intrinsic, 8 * sizeof(T));
  for (int i = 0; i < Register<T>::lanes; ++i) dst.lane[i] = from[i / per_block];
}

// Predicates: 32 bytes; 16 bytes with every bit twice; 64 bytes with every second bit.
inline void norm(Predicate& dst, const uint32_t* src, int64_t offset, const char* intrinsic) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(src);
  std::memcpy(&dst, ub_source(bytes, offset, 32, intrinsic, kBlockBytes), sizeof(dst));
}
inline void upsample(Predicate& dst, const uint32_t* src, int64_t offset, const char* intrinsic) {
  const auto* bytes = ub_source(reinterpret_cast<const uint8_t*>(src), offset, 16, intrinsic, 16);
  for (int i = 0; i < kPredicateBits; ++i) dst.set(i, ((bytes[i / 16] >> (i / 2 % 8)) & 1) != 0);
}
inline void downsample(Predicate& dst, const uint32_t* src, int64_t offset, const char* intrinsic) {
  const auto* bytes = ub_source(reinterpret_cast<const uint8_t*>(src), offset, 64, intrinsic, kBlockBytes);
  for (int i = 0; i < kPredicateBits; ++i) dst.set(i, ((bytes[i / 4] >> (2 * i % 8)) & 1) != 0);
}

}  // namespace load

namespace store {

/// 32-byte aligned and masked, lane i to element i.
template <typename T>
void norm(T* dst, const Register<T>& src, int64_t offset, const Predicate& mask, const char* intrinsic) {
  if (all_active<T>(mask)) {
    std::memcpy(ub_target(dst, offset, Register<T>::lanes, intrinsic, kBlockBytes), &src, sizeof(src));
    return;
  }
  const int extent = active_extent<T>(mask);
  T* to = reinterpret_cast<T*>(ub_masked_target<T>(dst + offset, extent, sizeof(T), mask, 0, intrinsic));
  for (int i = 0; i < extent; ++i) {
    if (mask.active<T>(i)) to[i] = src.lane[i];
  }
}

/// The low 1/Factor of the bits of each active lane i, to narrow element i.
template <int Factor, typename T>
void narrow(T* dst, const Register<T>& src, int64_t offset, const Predicate& mask, const char* intrinsic) {
  constexpr std::size_t width = sizeof(T) / Factor;
  const int extent = active_extent<T>(mask);
  auto* bytes = reinterpret_cast<uint8_t*>(dst) + offset * static_cast<int64_t>(sizeof(T));
  uint8_t* to = ub_masked_target<T>(bytes, extent, width, mask, 0, intrinsic);
  for (int i = 0; i < extent; ++i) {
    if (mask.active<T>(i)) std::memcpy(to + static_cast<std::size_t>(i) * width, &src.lane[i], width);
  }
}

/// Eight 32-byte blocks, block k to dst + k * block_stride blocks.
template <typename T>
void blocks(T* dst, const Register<T>& src, uint16_t block_stride, const Predicate& mask, const char* intrinsic) {
  constexpr int per_block = static_cast<int>(kBlockBytes / sizeof(T));
  for (int block = 0; block < 8; ++block) {
    int extent = per_block;
    while (extent > 0 && !mask.active<T>(block * per_block + extent - 1)) --extent;
    if (extent == 0) continue;
    T* to = reinterpret_cast<T*>(ub_masked_target<T>(dst + int64_t{block} * block_stride * per_block, extent,
                                                     sizeof(T), mask, block * per_block, intrinsic));
    for (int i = 0; i < extent; ++i) {
      if (mask.active<T>(block * per_block + i)) to[i] = src.lane[block * per_block + i];
    }
  }
}

}  // namespace store

/// An address register holds an offset that advances with the hardware loop around it; the twin has no such loop.
struct AddressRegister {};

}  // namespace kaas_twin

using addr_reg = kaas_twin::AddressRegister;

#define KAAS_TWIN_ADDRESS_REGISTER(bits)                    \
  template <typename... Strides>                            \
  addr_reg asc_update_addr_reg_b##bits(Strides...) {        \
    kaas_twin::not_modelled("asc_update_addr_reg_b" #bits); \
  }                                                         \
  template <typename... Strides>                            \
  addr_reg asc_create_addr_reg_b##bits(Strides...) {        \
    kaas_twin::not_modelled("asc_create_addr_reg_b" #bits); \
  }
KAAS_TWIN_ADDRESS_REGISTER(8)
KAAS_TWIN_ADDRESS_REGISTER(16)
KAAS_TWIN_ADDRESS_REGISTER(32)
#undef KAAS_TWIN_ADDRESS_REGISTER

// Each load distribution in three forms: no offset, an offset, and an advancing pointer (loads from the old address).
#define KAAS_TWIN_LOAD(name, distribution)                                       \
  template <typename T>                                                          \
  void name(kaas_twin::Register<T>& dst, T* src, int64_t offset = 0) {           \
    kaas_twin::load::distribution(dst, src, offset, #name);                      \
  }                                                                              \
  template <typename T>                                                          \
  void name(kaas_twin::Register<T>&, T*, addr_reg) {                             \
    kaas_twin::not_modelled(#name, "offset in an address register");             \
  }                                                                              \
  template <typename T>                                                          \
  void name##_postupdate(kaas_twin::Register<T>& dst, T*& src, int32_t offset) { \
    kaas_twin::load::distribution(dst, src, 0, #name "_postupdate");             \
    src += offset;                                                               \
  }
KAAS_TWIN_LOAD(asc_loadalign, norm)
KAAS_TWIN_LOAD(asc_loadalign_brc_elem, brc_elem)
KAAS_TWIN_LOAD(asc_loadalign_upsample, upsample)
KAAS_TWIN_LOAD(asc_loadalign_downsample, downsample)
KAAS_TWIN_LOAD(asc_loadalign_unpack, unpack)
KAAS_TWIN_LOAD(asc_loadalign_unpack4, unpack4)
KAAS_TWIN_LOAD(asc_loadalign_brc_datablock, brc_datablock)
KAAS_TWIN_LOAD(asc_loadalign_brc_elem2datablock, brc_elem2datablock)
#undef KAAS_TWIN_LOAD

#define KAAS_TWIN_PREDICATE_LOAD(name, distribution)                      \
  inline void name(vector_bool& dst, uint32_t* src, int64_t offset = 0) { \
    kaas_twin::load::distribution(dst, src, offset, #name);               \
  }
KAAS_TWIN_PREDICATE_LOAD(asc_loadalign, norm)
KAAS_TWIN_PREDICATE_LOAD(asc_loadalign_upsample, upsample)
KAAS_TWIN_PREDICATE_LOAD(asc_loadalign_downsample, downsample)
#undef KAAS_TWIN_PREDICATE_LOAD

/// 512 bytes: even elements to dst0, odd ones to dst1.
template <typename T>
void asc_loadalign_deintlv(kaas_twin::Register<T>& dst0, kaas_twin::Register<T>& dst1, T* src,
                           int64_t offset = 0) {
  constexpr int lanes = kaas_twin::Register<T>::lanes;
  const T* from = kaas_twin::ub_source(src, offset, 2 * lanes, "asc_loadalign_deintlv", kaas_twin::kBlockBytes);
  for (int i = 0; i < lanes; ++i) {
    dst0.lane[i] = from[2 * i];
    dst1.lane[i] = from[2 * i + 1];
  }
}
template <typename T>
void asc_loadalign_deintlv(kaas_twin::Register<T>&, kaas_twin::Register<T>&, T*, addr_reg) {
  kaas_twin::not_modelled("asc_loadalign_deintlv", "offset in an address register");
}

template <typename T>
void asc_storealign(T* dst, const kaas_twin::Register<T>& src, const vector_bool& mask) {
  kaas_twin::store::norm(dst, src, 0, mask, "asc_storealign");
}
template <typename T>
void asc_storealign(T* dst, const kaas_twin::Register<T>& src, int32_t offset, const vector_bool& mask) {
  kaas_twin::store::norm(dst, src, offset, mask, "asc_storealign");
}
/// Block-strided store (vsstb); strides in 32-byte blocks. The post-update form advances by the repeat stride.
template <typename T>
void asc_storealign(T* dst, const kaas_twin::Register<T>& src, uint16_t block_stride, uint16_t,
                    const vector_bool& mask) {
  kaas_twin::store::blocks(dst, src, block_stride, mask, "asc_storealign");
}
template <typename T>
void asc_storealign_postupdate(T*& dst, const kaas_twin::Register<T>& src, uint16_t block_stride,
                               uint16_t repeat_stride, const vector_bool& mask) {
  kaas_twin::store::blocks(dst, src, block_stride, mask, "asc_storealign_postupdate");
  dst += int64_t{repeat_stride} * static_cast<int64_t>(kaas_twin::kBlockBytes / sizeof(T));
}
template <typename T>
void asc_storealign_postupdate(T*& dst, const kaas_twin::Register<T>& src, int32_t offset,
                               const vector_bool& mask) {
  kaas_twin::store::norm(dst, src, 0, mask, "asc_storealign_postupdate");
  dst += offset;
}
/// Lane 0 alone; the element needs its own alignment only.
template <typename T>
void asc_storealign_1st(T* dst, const kaas_twin::Register<T>& src, int32_t offset = 0) {
  *kaas_twin::ub_target(dst, offset, 1, "asc_storealign_1st", sizeof(T)) = src.lane[0];
}
template <typename T>
void asc_storealign_pack(T* dst, const kaas_twin::Register<T>& src, int32_t offset, const vector_bool& mask) {
  kaas_twin::store::narrow<2>(dst, src, offset, mask, "asc_storealign_pack");
}
template <typename T>
void asc_storealign_pack_quarter(T* dst, const kaas_twin::Register<T>& src, int32_t offset,
                                 const vector_bool& mask) {
  static_assert(sizeof(T) == 4);
  kaas_twin::store::narrow<4>(dst, src, offset, mask, "asc_storealign_pack_quarter");
}
/// 512 bytes: the lanes of src0 and src1 in turn.
template <typename T>
void asc_storealign_intlv(T* dst, const kaas_twin::Register<T>& src0, const kaas_twin::Register<T>& src1,
                          int32_t offset = 0) {
  constexpr int lanes = kaas_twin::Register<T>::lanes;
  T* to = kaas_twin::ub_target(dst, offset, 2 * lanes, "asc_storealign_intlv", kaas_twin::kBlockBytes);
  for (int i = 0; i < lanes; ++i) {
    to[2 * i] = src0.lane[i];
    to[2 * i + 1] = src1.lane[i];
  }
}
/// The one-source form has no documented meaning.
template <typename T>
void asc_storealign_intlv(T*, const kaas_twin::Register<T>&, int32_t, const vector_bool&) {
  kaas_twin::not_modelled("asc_storealign_intlv", "one source and a mask");
}

inline void asc_storealign(uint32_t* dst, const vector_bool& src, int32_t offset = 0) {
  auto* bytes = reinterpret_cast<uint8_t*>(dst);
  std::memcpy(kaas_twin::ub_target(bytes, offset, 32, "asc_storealign", kaas_twin::kBlockBytes), &src, 32);
}
inline void asc_storealign_pack(uint32_t* dst, const vector_bool& src, int32_t offset = 0) {
  vector_bool packed;
  asc_pack_to_low(packed, src);
  auto* bytes = reinterpret_cast<uint8_t*>(dst);
  std::memcpy(kaas_twin::ub_target(bytes, offset, 16, "asc_storealign_pack", 16), &packed, 16);
}

/// dst[i] = src[index[i]]; 8-bit elements land zero-extended in 16-bit lanes. The mask counts destination lanes.
template <typename D, typename T, typename I>
void asc_gather(kaas_twin::Register<D>& dst, T* src, const kaas_twin::Register<I>& index,
                const vector_bool& mask) {
  static_assert(sizeof(D) == sizeof(T) || (sizeof(D) == 2 && sizeof(T) == 1));
  constexpr int count = std::min(kaas_twin::Register<D>::lanes, kaas_twin::Register<I>::lanes);
  kaas_twin::Register<D> result;
  std::memset(&result, 0, sizeof(result));
  for (int i = 0; i < count; ++i) {
    if (!mask.active<D>(i)) continue;
    const T* from = kaas_twin::ub_source(src, static_cast<int64_t>(index.lane[i]), 1, "asc_gather", sizeof(T));
    std::memcpy(&result.lane[i], from, sizeof(T));
  }
  dst = result;
}

/// Eight 32-byte blocks at byte offsets index[0..7].
template <typename T>
void asc_gather_datablock(kaas_twin::Register<T>& dst, T* src, const vector_u32& index,
                          const vector_bool& mask) {
  constexpr int per_block = static_cast<int>(kaas_twin::kBlockBytes / sizeof(T));
  kaas_twin::Register<T> result;
  std::memset(&result, 0, sizeof(result));
  for (int block = 0; block < 8; ++block) {
    bool wanted = false;
    for (int i = 0; i < per_block; ++i) wanted = wanted || mask.active<T>(block * per_block + i);
    if (!wanted) continue;
    const auto* bytes = reinterpret_cast<const uint8_t*>(src);
    const uint8_t* from = kaas_twin::ub_source(bytes, index.lane[block], kaas_twin::kBlockBytes, "asc_gather_datablock",
                                               kaas_twin::kBlockBytes);
    for (int i = 0; i < per_block; ++i) {
      const int lane = block * per_block + i;
      if (mask.active<T>(lane)) std::memcpy(&result.lane[lane], from + i * sizeof(T), sizeof(T));
    }
  }
  dst = result;
}
template <typename T>
void asc_gather_datablock(kaas_twin::Register<T>& dst, T* src, const vector_u32& index) {
  asc_gather_datablock(dst, src, index, kaas_twin::first_elements(1, kaas_twin::kVectorBytes));
}

/// dst[index[i]] = src[i]; of 8-bit registers the even lanes only. The mask counts index lanes.
template <typename T, typename I>
void asc_scatter(T* dst, const kaas_twin::Register<T>& src, const kaas_twin::Register<I>& index,
                 const vector_bool& mask) {
  constexpr int step = sizeof(T) == 1 ? 2 : 1;
  static_assert(sizeof(I) == sizeof(T) * step);
  for (int i = 0; i < kaas_twin::Register<I>::lanes; ++i) {
    if (!mask.active<I>(i)) continue;
    *kaas_twin::ub_target(dst, static_cast<int64_t>(index.lane[i]), 1, "asc_scatter", sizeof(T)) = src.lane[i * step];
  }
}

/// Orders vector stores and loads of one vector function. The twin runs them in program order; a checked run wants a
/// barrier before a load of what the function has stored.
template <int Kind>
void asc_mem_bar(kaas_twin::Tag<kaas_twin::kBarrier, Kind>) {
  kaas_twin::assert_on_pipe_v("asc_mem_bar");
  if constexpr (Kind == VV_ALL.value || Kind == VST_VLD.value) kaas_twin::vector_barrier();
}
