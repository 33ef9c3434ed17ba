// Reductions over the lanes of a register, and histograms.
#pragma once

#include "kaas_twin/vector_arithmetic.h"

namespace kaas_twin {

/// Sum of `count` (a power of two) lanes as a tree of adjacent pairs; each addition rounds to the lane's type.
template <typename T>
T pairwise_sum(const T* lane, int count) {
  T partial[Register<T>::lanes];
  std::copy(lane, lane + count, partial);
  for (; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) partial[i] = lanes::Add{}(partial[2 * i], partial[2 * i + 1]);
  }
  return partial[0];
}

/// Index of the first extremum among active lanes in [begin, end), or -1. NaN wins.
template <typename T, typename Extremum>
int extremum_index(const Register<T>& src, const Predicate& mask, int begin, int end, Extremum extremum) {
  int best = -1;
  for (int i = begin; i < end; ++i) {
    if (!mask.active<T>(i)) continue;
    if (best < 0) {
      best = i;
    } else if (!lanes::is_nan(src.lane[best])) {
      const T winner = extremum(src.lane[best], src.lane[i]);
      if (std::bit_cast<lanes::Bits<T>>(winner) != std::bit_cast<lanes::Bits<T>>(src.lane[best])) best = i;
    }
  }
  return best;
}

/// The value no active lane can beat: what an empty reduction gives.
template <typename T>
T neutral(lanes::Maximum) {
  if constexpr (lanes::is_real<T>)
    return T(-std::numeric_limits<float>::infinity());
  else
    return std::numeric_limits<T>::min();
}
template <typename T>
T neutral(lanes::Minimum) {
  if constexpr (lanes::is_real<T>)
    return T(std::numeric_limits<float>::infinity());
  else
    return std::numeric_limits<T>::max();
}

/// Lane 0 the value, lane 1 the bits of its index, the others 0.
template <typename T, typename Extremum>
void reduce_extremum(Register<T>& dst, const Register<T>& src, const Predicate& mask, Extremum extremum) {
  const int index = extremum_index(src, mask, 0, Register<T>::lanes, extremum);
  Register<T> result;
  std::memset(&result, 0, sizeof(result));
  result.lane[0] = index < 0 ? neutral<T>(extremum) : src.lane[index];
  result.lane[1] = std::bit_cast<T>(static_cast<lanes::Bits<T>>(index < 0 ? 0 : index));
  dst = result;
}

/// One extremum per 32-byte block in the lowest lanes, the others 0.
template <typename T, typename Extremum>
void reduce_extremum_blocks(Register<T>& dst, const Register<T>& src, const Predicate& mask, Extremum extremum) {
  constexpr int per_block = static_cast<int>(kBlockBytes / sizeof(T));
  Register<T> result;
  std::memset(&result, 0, sizeof(result));
  for (int block = 0; block < 8; ++block) {
    const int index = extremum_index(src, mask, block * per_block, (block + 1) * per_block, extremum);
    result.lane[block] = index < 0 ? neutral<T>(extremum) : src.lane[index];
  }
  dst = result;
}

template <typename T>
Register<T> zero_inactive(const Register<T>& src, const Predicate& mask) {
  Register<T> result;
  for (int i = 0; i < Register<T>::lanes; ++i) result.lane[i] = mask.active<T>(i) ? src.lane[i] : T{};
  return result;
}

template <int Low, bool Cumulative>
void histogram(vector_u16& dst, const vector_u8& src, const Predicate& mask) {
  uint16_t count[kVectorBytes] = {};
  for (int i = 0; i < vector_u8::lanes; ++i) {
    if (mask.active<uint8_t>(i)) ++count[src.lane[i]];
  }
  if constexpr (Cumulative) {
    for (int i = 1; i < kVectorBytes; ++i) count[i] = static_cast<uint16_t>(count[i] + count[i - 1]);
  }
  for (int i = 0; i < vector_u16::lanes; ++i) dst.lane[i] = static_cast<uint16_t>(dst.lane[i] + count[Low + i]);
}

}  // namespace kaas_twin

/// Lane 0 the sum, the others 0. 8- and 16-bit integers sum in lanes twice as wide.
template <typename D, typename S>
void asc_reduce_sum(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src, const vector_bool& mask) {
  D wide[kaas_twin::Register<S>::lanes];
  for (int i = 0; i < kaas_twin::Register<S>::lanes; ++i) {
    wide[i] = mask.active<S>(i) ? static_cast<D>(src.lane[i]) : D{};
  }
  kaas_twin::Register<D> result;
  std::memset(&result, 0, sizeof(result));
  if constexpr (sizeof(D) == sizeof(S)) {
    result.lane[0] = kaas_twin::pairwise_sum(wide, kaas_twin::Register<S>::lanes);
  } else {  // wrapping integer sums do not depend on the order
    constexpr int half_count = kaas_twin::Register<S>::lanes / 2;
    result.lane[0] = kaas_twin::lanes::Add{}(kaas_twin::pairwise_sum(wide, half_count),
                                             kaas_twin::pairwise_sum(wide + half_count, half_count));
  }
  dst = result;
}
template <typename T>
void asc_reduce_max(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask) {
  kaas_twin::reduce_extremum(dst, src, mask, kaas_twin::lanes::Maximum{});
}
template <typename T>
void asc_reduce_min(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask) {
  kaas_twin::reduce_extremum(dst, src, mask, kaas_twin::lanes::Minimum{});
}
template <typename T>
void asc_reduce_max_datablock(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                              const vector_bool& mask) {
  kaas_twin::reduce_extremum_blocks(dst, src, mask, kaas_twin::lanes::Maximum{});
}
template <typename T>
void asc_reduce_min_datablock(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                              const vector_bool& mask) {
  kaas_twin::reduce_extremum_blocks(dst, src, mask, kaas_twin::lanes::Minimum{});
}
template <typename T>
void asc_reduce_sum_datablock(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                              const vector_bool& mask) {
  constexpr int per_block = static_cast<int>(kaas_twin::kBlockBytes / sizeof(T));
  const auto masked = kaas_twin::zero_inactive(src, mask);
  kaas_twin::Register<T> result;
  std::memset(&result, 0, sizeof(result));
  for (int block = 0; block < 8; ++block) {
    result.lane[block] = kaas_twin::pairwise_sum(masked.lane + block * per_block, per_block);
  }
  dst = result;
}
/// Sums of adjacent pairs in the low half, the high half 0.
template <typename T>
void asc_pair_reduce_sum(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                         const vector_bool& mask) {
  const auto masked = kaas_twin::zero_inactive(src, mask);
  kaas_twin::Register<T> result;
  std::memset(&result, 0, sizeof(result));
  for (int i = 0; i < kaas_twin::Register<T>::lanes / 2; ++i) {
    result.lane[i] = kaas_twin::lanes::Add{}(masked.lane[2 * i], masked.lane[2 * i + 1]);
  }
  dst = result;
}

/// Counts of byte values 0..127 (bin0) or 128..255 (bin1) are added to dst; cumulative ones count from value 0.
#define KAAS_TWIN_HISTOGRAM(name, low, cumulative)                                   \
  inline void name(vector_u16& dst, const vector_u8& src, const vector_bool& mask) { \
    kaas_twin::histogram<low, cumulative>(dst, src, mask);                           \
  }
KAAS_TWIN_HISTOGRAM(asc_frequency_histogram_bin0, 0, false)
KAAS_TWIN_HISTOGRAM(asc_frequency_histogram_bin1, 128, false)
KAAS_TWIN_HISTOGRAM(asc_cumulative_histogram_bin0, 0, true)
KAAS_TWIN_HISTOGRAM(asc_cumulative_histogram_bin1, 128, true)
#undef KAAS_TWIN_HISTOGRAM
