// Atomic operations of SIMT code on GM and UB. Each returns the old value. Blocks may run on several host threads, so
// they are real atomics.
#pragma once

#include <bit>
#include <cstdint>

#include "kaas_twin/scalar_types.h"

namespace kaas_twin::simt {

template <typename T>
using AtomicBits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

template <typename T, typename Change>
KAAS_TWIN_UNCHECKED T atomic_update(T* address, Change change) {
  using Bits = AtomicBits<T>;
  note_atomic(address, sizeof(T));
  auto* cell = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &old,
                                      std::bit_cast<Bits>(static_cast<T>(change(std::bit_cast<T>(old)))), true,
                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return std::bit_cast<T>(old);
}

}  // namespace kaas_twin::simt

// The value's type is not deduced, so that a literal of another type converts to the cell's.
#define KAAS_TWIN_ATOMIC(name, expression)                                                 \
  template <typename T>                                                                    \
  inline T name(T* address, std::type_identity_t<T> value) {                               \
    return kaas_twin::simt::atomic_update(address, [value](T old) { return expression; }); \
  }
KAAS_TWIN_ATOMIC(asc_atomic_add, static_cast<T>(old + value))
KAAS_TWIN_ATOMIC(asc_atomic_sub, static_cast<T>(old - value))
KAAS_TWIN_ATOMIC(asc_atomic_exch, ((void)old, value))
KAAS_TWIN_ATOMIC(asc_atomic_max, (old > value ? old : value))
KAAS_TWIN_ATOMIC(asc_atomic_min, (old < value ? old : value))
KAAS_TWIN_ATOMIC(asc_atomic_and, static_cast<T>(old& value))
KAAS_TWIN_ATOMIC(asc_atomic_or, static_cast<T>(old | value))
KAAS_TWIN_ATOMIC(asc_atomic_xor, static_cast<T>(old ^ value))
KAAS_TWIN_ATOMIC(asc_atomic_inc, (old >= value ? T{} : static_cast<T>(old + 1)))
KAAS_TWIN_ATOMIC(asc_atomic_dec, (old == T{} || old > value ? value : static_cast<T>(old - 1)))
#undef KAAS_TWIN_ATOMIC

template <typename T>
inline T asc_atomic_cas(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return kaas_twin::simt::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}
