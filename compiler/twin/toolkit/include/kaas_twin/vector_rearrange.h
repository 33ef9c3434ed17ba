// Filling, permuting, packing and compressing registers.
#pragma once

#include "kaas_twin/vector_arithmetic.h"

template <typename T, typename Scalar>
void asc_duplicate_scalar(kaas_twin::Register<T>& dst, Scalar value, const vector_bool& mask) {
  const T element = static_cast<T>(value);
  kaas_twin::lanes::map(dst, dst, mask, [&](T) { return element; });
}
/// The lowest lane in every active lane.
template <typename T>
void asc_duplicate(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask) {
  asc_duplicate_scalar(dst, T(src.lane[0]), mask);
}
/// The highest active lane in every active lane.
template <typename T>
void asc_duplicate_highest(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                           const vector_bool& mask) {
  int highest = kaas_twin::Register<T>::lanes - 1;
  while (highest > 0 && !mask.active<T>(highest)) --highest;
  asc_duplicate_scalar(dst, T(src.lane[highest]), mask);
}

template <typename T, typename Scalar>
void asc_arange(kaas_twin::Register<T>& dst, Scalar start) {
  const T first = static_cast<T>(start);
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    dst.lane[i] = kaas_twin::lanes::Add{}(first, static_cast<T>(i));
  }
}
template <typename T, typename Scalar>
void asc_arange_descend(kaas_twin::Register<T>& dst, Scalar start) {
  const T first = static_cast<T>(start);
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    dst.lane[i] = kaas_twin::lanes::Subtract{}(first, static_cast<T>(i));
  }
}

/// The 2*lanes elements a0 b0 a1 b1 ...: the first lanes of them in dst0, the rest in dst1.
template <typename T>
void asc_intlv(kaas_twin::Register<T>& dst0, kaas_twin::Register<T>& dst1, const kaas_twin::Register<T>& a,
               const kaas_twin::Register<T>& b) {
  constexpr int lanes = kaas_twin::Register<T>::lanes;
  T both[2 * lanes];
  for (int i = 0; i < lanes; ++i) {
    both[2 * i] = a.lane[i];
    both[2 * i + 1] = b.lane[i];
  }
  std::memcpy(dst0.lane, both, sizeof(dst0));
  std::memcpy(dst1.lane, both + lanes, sizeof(dst1));
}
/// The even elements of a followed by b in dst0, the odd ones in dst1.
template <typename T>
void asc_deintlv(kaas_twin::Register<T>& dst0, kaas_twin::Register<T>& dst1, const kaas_twin::Register<T>& a,
                 const kaas_twin::Register<T>& b) {
  constexpr int lanes = kaas_twin::Register<T>::lanes;
  T both[2 * lanes];
  std::memcpy(both, a.lane, sizeof(a));
  std::memcpy(both + lanes, b.lane, sizeof(b));
  for (int i = 0; i < lanes; ++i) {
    dst0.lane[i] = both[2 * i];
    dst1.lane[i] = both[2 * i + 1];
  }
}

/// dst[i] = src[index[i] mod lanes].
template <typename T, typename I>
void asc_gather(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src,
                const kaas_twin::Register<I>& index) {
  static_assert(sizeof(T) == sizeof(I) && std::is_unsigned_v<I>);
  kaas_twin::Register<T> result;
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    result.lane[i] = src.lane[index.lane[i] % kaas_twin::Register<T>::lanes];
  }
  dst = result;
}

namespace kaas_twin {

template <typename D, typename S>
void pack_register(Register<D>& dst, const Register<S>& src, int first) {
  static_assert(sizeof(S) == 2 * sizeof(D));
  Register<D> result;
  std::memset(&result, 0, sizeof(result));
  for (int i = 0; i < Register<S>::lanes; ++i) std::memcpy(&result.lane[first + i], &src.lane[i], sizeof(D));
  dst = result;
}

template <typename D, typename S>
void unpack_register(Register<D>& dst, const Register<S>& src, int first) {
  static_assert(sizeof(D) == 2 * sizeof(S) && std::is_integral_v<S> && std::is_signed_v<D> == std::is_signed_v<S>);
  Register<D> result;
  for (int i = 0; i < Register<D>::lanes; ++i) result.lane[i] = static_cast<D>(src.lane[first + i]);
  dst = result;
}

}  // namespace kaas_twin

/// The low half of each element, packed into the low (high) half of dst; the other half is 0.
template <typename D, typename S>
void asc_pack_to_low(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src) {
  kaas_twin::pack_register(dst, src, 0);
}
template <typename D, typename S>
void asc_pack_to_high(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src) {
  kaas_twin::pack_register(dst, src, kaas_twin::Register<S>::lanes);
}
/// The lower (upper) half of the elements, sign- or zero-extended to twice the width.
template <typename D, typename S>
void asc_unpack_lower(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src) {
  kaas_twin::unpack_register(dst, src, 0);
}
template <typename D, typename S>
void asc_unpack_upper(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src) {
  kaas_twin::unpack_register(dst, src, kaas_twin::Register<D>::lanes);
}

/// Active lanes moved together at the bottom, the rest 0.
template <typename T>
void asc_squeeze(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask) {
  kaas_twin::Register<T> result;
  std::memset(&result, 0, sizeof(result));
  int next = 0;
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    if (mask.active<T>(i)) result.lane[next++] = src.lane[i];
  }
  dst = result;
}
/// dst[i] = number of active lanes below i.
template <typename T>
void asc_unsqueeze(kaas_twin::Register<T>& dst, const vector_bool& mask) {
  static_assert(std::is_integral_v<T>);
  T count{};
  for (int i = 0; i < kaas_twin::Register<T>::lanes; ++i) {
    dst.lane[i] = count;
    if (mask.active<T>(i)) ++count;
  }
}
