// Warp functions: shuffles, votes and reductions over the active lanes.
//
// The active lanes of such a call are the lanes of the warp that reach the same kind of call while all others have
// exited or wait at something else. A shuffle from an inactive lane gives all-one bits, so that its use shows.
#pragma once

#include <cstring>

#include "kaas_twin/scalar_types.h"
#include "kaas_twin/short_vectors.h"
#include "kaas_twin/simt_launch.h"

namespace kaas_twin::simt {

inline constexpr std::size_t kSlotBytes = 8;

/// One value per lane, for one warp call.
struct Slots {
  alignas(kSlotBytes) unsigned char value[kWarpLanes][kSlotBytes];

  template <typename T>
  T get(std::uint32_t lane) const {
    static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
    T result;
    std::memcpy(&result, value[lane], sizeof(T));
    return result;
  }
  template <typename T>
  void put(std::uint32_t lane, T result) {
    std::memcpy(value[lane], &result, sizeof(T));
  }
};

/// Runs once when the active lanes of a call are known; may replace their values by results.
using Finish = void (*)(Slots& slots, std::uint32_t active);

struct Exchanged {
  const Slots* slots;
  std::uint32_t active;
};

/// Leaves `bytes` of `value` for the warp and waits for the other lanes. Calls with the same `finish` meet.
Exchanged exchange(Finish finish, const void* value, std::size_t bytes);

/// A function per kind of call and type: its address tells calls apart.
template <int Kind, typename T>
void finish_nothing(Slots&, std::uint32_t) {}

enum ShuffleKind { kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot, kSync };

template <int Kind, typename T>
T from_lane(T value, std::uint32_t source) {
  const Exchanged all = exchange(&finish_nothing<Kind, T>, &value, sizeof(T));
  if (source < kWarpLanes && ((all.active >> source) & 1u) != 0) return all.slots->get<T>(source);
  T undefined;
  std::memset(static_cast<void*>(&undefined), 0xff, sizeof(T));
  return undefined;
}

inline std::uint32_t lane() { return current("laneid").lane; }

inline std::uint32_t group_width(int width) {
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0)
    fail("warp shuffle: width %d is not 1, 2, 4, .. 32", width);
  return static_cast<std::uint32_t>(width);
}

struct AddOperation {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
    else
      return static_cast<T>(a + b);
  }
};
struct MaxOperation {
  template <typename T>
  T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};
struct MinOperation {
  template <typename T>
  T operator()(T a, T b) const {
    return a != a || a < b ? a : b;
  }
};

/// A tree of adjacent lanes; inactive lanes are left out.
template <typename Operation, typename T>
void finish_reduction(Slots& slots, std::uint32_t active) {
  T partial[kWarpLanes];
  bool present[kWarpLanes];
  for (std::uint32_t i = 0; i < kWarpLanes; ++i) {
    present[i] = ((active >> i) & 1u) != 0;
    partial[i] = present[i] ? slots.get<T>(i) : T{};
  }
  for (std::uint32_t count = kWarpLanes / 2; count > 0; count /= 2) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t left = 2 * i, right = left + 1;
      const bool both = present[left] && present[right];
      partial[i] = both ? Operation{}(partial[left], partial[right]) : present[left] ? partial[left] : partial[right];
      present[i] = present[left] || present[right];
    }
  }
  for (std::uint32_t i = 0; i < kWarpLanes; ++i) {
    if (((active >> i) & 1u) != 0) slots.put(i, partial[0]);
  }
}

template <typename Operation, typename T>
T reduce(T value) {
  return exchange(&finish_reduction<Operation, T>, &value, sizeof(T)).slots->template get<T>(lane());
}

inline std::uint32_t ballot(bool predicate) {
  const Exchanged all = exchange(&finish_nothing<kBallot, bool>, &predicate, sizeof(predicate));
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < kWarpLanes; ++i) {
    if (((all.active >> i) & 1u) != 0 && all.slots->get<bool>(i)) result |= 1u << i;
  }
  return result;
}

/// Meets the other active lanes and tells who they are.
inline std::uint32_t converge() {
  const char nothing = 0;
  return exchange(&finish_nothing<kSync, char>, &nothing, sizeof(nothing)).active;
}

}  // namespace kaas_twin::simt

#define KAAS_TWIN_SHUFFLES(type)                                                                \
  inline type asc_shfl(type value, std::int32_t source, std::int32_t width = warpSize) {        \
    using namespace kaas_twin::simt;                                                            \
    const std::uint32_t size = group_width(width);                                              \
    const std::uint32_t base = lane() & ~(size - 1);                                            \
    return from_lane<kShuffle>(value, base + static_cast<std::uint32_t>(source) % size);        \
  }                                                                                             \
  inline type asc_shfl_up(type value, std::uint32_t delta, std::int32_t width = warpSize) {     \
    using namespace kaas_twin::simt;                                                            \
    const std::uint32_t base = lane() & ~(group_width(width) - 1);                              \
    const bool inside = delta <= lane() - base;                                                 \
    return from_lane<kShuffleUp>(value, inside ? lane() - delta : lane());                      \
  }                                                                                             \
  inline type asc_shfl_down(type value, std::uint32_t delta, std::int32_t width = warpSize) {   \
    using namespace kaas_twin::simt;                                                            \
    const std::uint32_t size = group_width(width);                                              \
    const std::uint32_t base = lane() & ~(size - 1);                                            \
    const bool inside = delta < size - (lane() - base);                                         \
    return from_lane<kShuffleDown>(value, inside ? lane() + delta : lane());                    \
  }                                                                                             \
  inline type asc_shfl_xor(type value, std::int32_t lane_mask, std::int32_t width = warpSize) { \
    using namespace kaas_twin::simt;                                                            \
    const std::uint32_t size = group_width(width);                                              \
    const std::uint32_t base = lane() & ~(size - 1);                                            \
    const std::uint32_t target = lane() ^ static_cast<std::uint32_t>(lane_mask);                \
    return from_lane<kShuffleXor>(value, target < base + size ? target : lane());               \
  }
KAAS_TWIN_SHUFFLES(std::int32_t)
KAAS_TWIN_SHUFFLES(std::uint32_t)
KAAS_TWIN_SHUFFLES(std::int64_t)
KAAS_TWIN_SHUFFLES(std::uint64_t)
KAAS_TWIN_SHUFFLES(float)
KAAS_TWIN_SHUFFLES(half)
KAAS_TWIN_SHUFFLES(half2)
KAAS_TWIN_SHUFFLES(bfloat16_t)
KAAS_TWIN_SHUFFLES(bfloat16x2_t)
#undef KAAS_TWIN_SHUFFLES

#define KAAS_TWIN_WARP_REDUCTIONS(type)                                                                            \
  inline type asc_reduce_add(type value) { return kaas_twin::simt::reduce<kaas_twin::simt::AddOperation>(value); } \
  inline type asc_reduce_max(type value) { return kaas_twin::simt::reduce<kaas_twin::simt::MaxOperation>(value); } \
  inline type asc_reduce_min(type value) { return kaas_twin::simt::reduce<kaas_twin::simt::MinOperation>(value); }
KAAS_TWIN_WARP_REDUCTIONS(std::int32_t)
KAAS_TWIN_WARP_REDUCTIONS(std::uint32_t)
KAAS_TWIN_WARP_REDUCTIONS(float)
KAAS_TWIN_WARP_REDUCTIONS(half)
#undef KAAS_TWIN_WARP_REDUCTIONS

inline std::uint32_t asc_ballot(std::int32_t predicate) { return kaas_twin::simt::ballot(predicate != 0); }
inline std::int32_t asc_any(std::int32_t predicate) { return kaas_twin::simt::ballot(predicate != 0) != 0 ? 1 : 0; }
inline std::int32_t asc_all(std::int32_t predicate) { return kaas_twin::simt::ballot(predicate == 0) == 0 ? 1 : 0; }
inline std::uint32_t asc_activemask() { return kaas_twin::simt::converge(); }

inline std::uint32_t laneid() { return kaas_twin::simt::lane(); }
inline std::uint32_t lanemask_eq() { return 1u << laneid(); }
inline std::uint32_t lanemask_lt() { return lanemask_eq() - 1; }
inline std::uint32_t lanemask_le() { return lanemask_lt() | lanemask_eq(); }
inline std::uint32_t lanemask_ge() { return ~lanemask_lt(); }
inline std::uint32_t lanemask_gt() { return ~lanemask_le(); }
