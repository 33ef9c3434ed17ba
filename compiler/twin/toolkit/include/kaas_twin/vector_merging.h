// The v* spelling of element-wise operations, which the code generator uses where inactive lanes keep their old value
// (MODE_MERGING) and for the fused multiply-adds.
#pragma once

#include "kaas_twin/vector_rearrange.h"
#include "kaas_twin/vector_reduce.h"

namespace kaas_twin {

template <int Mode, typename T>
void store_result(Register<T>& dst, const Register<T>& result, const Predicate& mask) {
  if constexpr (Mode == MODE_MERGING.value) {
    asc_select(dst, result, Register<T>(dst), mask);
  } else {
    dst = result;
  }
}

/// The lanes a reduction defines: lane 0, and lane 1 for extrema.
template <typename T>
Predicate leading_lanes(uint32_t count) {
  return first_elements(static_cast<int>(sizeof(T)), count);
}

}  // namespace kaas_twin

#define KAAS_TWIN_MERGING_UNARY(name, c_api)                                                         \
  template <typename T, int Mode>                                                                    \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask, \
            kaas_twin::Tag<kaas_twin::kMode, Mode>) {                                                \
    kaas_twin::Register<T> result;                                                                   \
    c_api(result, src, mask);                                                                        \
    kaas_twin::store_result<Mode>(dst, result, mask);                                                \
  }
KAAS_TWIN_MERGING_UNARY(vln, asc_ln)
KAAS_TWIN_MERGING_UNARY(vsqrt, asc_sqrt)
KAAS_TWIN_MERGING_UNARY(vabs, asc_abs)
KAAS_TWIN_MERGING_UNARY(vneg, asc_neg)
KAAS_TWIN_MERGING_UNARY(vrelu, asc_relu)
KAAS_TWIN_MERGING_UNARY(vnot, asc_not)
KAAS_TWIN_MERGING_UNARY(vexp, asc_exp)
#undef KAAS_TWIN_MERGING_UNARY

#define KAAS_TWIN_MERGING_BINARY(name, c_api)                                                                  \
  template <typename T, typename B, int Mode>                                                                  \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const B& b, const vector_bool& mask, \
            kaas_twin::Tag<kaas_twin::kMode, Mode>) {                                                          \
    kaas_twin::Register<T> result;                                                                             \
    c_api(result, a, b, mask);                                                                                 \
    kaas_twin::store_result<Mode>(dst, result, mask);                                                          \
  }
KAAS_TWIN_MERGING_BINARY(vadd, asc_add)
KAAS_TWIN_MERGING_BINARY(vsub, asc_sub)
KAAS_TWIN_MERGING_BINARY(vmul, asc_mul)
KAAS_TWIN_MERGING_BINARY(vdiv, asc_div)
KAAS_TWIN_MERGING_BINARY(vmax, asc_max)
KAAS_TWIN_MERGING_BINARY(vmin, asc_min)
KAAS_TWIN_MERGING_BINARY(vand, asc_and)
KAAS_TWIN_MERGING_BINARY(vor, asc_or)
KAAS_TWIN_MERGING_BINARY(vxor, asc_xor)
KAAS_TWIN_MERGING_BINARY(vshl, asc_shiftleft)
KAAS_TWIN_MERGING_BINARY(vshr, asc_shiftright)
KAAS_TWIN_MERGING_BINARY(vabsdif, asc_abs_sub)
KAAS_TWIN_MERGING_BINARY(vadds, asc_add_scalar)
KAAS_TWIN_MERGING_BINARY(vmaxs, asc_max_scalar)
KAAS_TWIN_MERGING_BINARY(vmins, asc_min_scalar)
KAAS_TWIN_MERGING_BINARY(vmuls, asc_mul_scalar)
KAAS_TWIN_MERGING_BINARY(vshls, asc_shiftleft_scalar)
KAAS_TWIN_MERGING_BINARY(vshrs, asc_shiftright_scalar)
#undef KAAS_TWIN_MERGING_BINARY

#define KAAS_TWIN_MERGING_FUSED(name, c_api)                                                                   \
  template <typename T, typename B, int Mode>                                                                  \
  void name(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& a, const B& b, const vector_bool& mask, \
            kaas_twin::Tag<kaas_twin::kMode, Mode>) {                                                          \
    kaas_twin::Register<T> result = dst;                                                                       \
    c_api(result, a, b, mask);                                                                                 \
    kaas_twin::store_result<Mode>(dst, result, mask);                                                          \
  }
KAAS_TWIN_MERGING_FUSED(vmula, asc_mula)
KAAS_TWIN_MERGING_FUSED(vmadd, asc_madd)
KAAS_TWIN_MERGING_FUSED(vaxpy, asc_axpy)
#undef KAAS_TWIN_MERGING_FUSED

template <typename T, typename Scalar, int Mode>
  requires std::convertible_to<Scalar, T>
inline void vdup(kaas_twin::Register<T>& dst, Scalar value, const vector_bool& mask,
                 kaas_twin::Tag<kaas_twin::kMode, Mode>) {
  kaas_twin::Register<T> result;
  asc_duplicate_scalar(result, value, mask);
  kaas_twin::store_result<Mode>(dst, result, mask);
}
template <typename T, int Position, int Mode>
void vdup(kaas_twin::Register<T>& dst, const kaas_twin::Register<T>& src, const vector_bool& mask,
          kaas_twin::Tag<kaas_twin::kPosition, Position>, kaas_twin::Tag<kaas_twin::kMode, Mode>) {
  kaas_twin::Register<T> result;
  if constexpr (Position == POS_LOWEST.value) {
    asc_duplicate(result, src, mask);
  } else {
    asc_duplicate_highest(result, src, mask);
  }
  kaas_twin::store_result<Mode>(dst, result, mask);
}

#define KAAS_TWIN_MERGING_REDUCTION(name, c_api, defined_lanes)                                      \
  template <typename D, typename S, int Mode>                                                        \
  void name(kaas_twin::Register<D>& dst, const kaas_twin::Register<S>& src, const vector_bool& mask, \
            kaas_twin::Tag<kaas_twin::kMode, Mode>) {                                                \
    kaas_twin::Register<D> result;                                                                   \
    c_api(result, src, mask);                                                                        \
    kaas_twin::store_result<Mode>(dst, result, kaas_twin::leading_lanes<D>(defined_lanes));          \
  }
KAAS_TWIN_MERGING_REDUCTION(vcadd, asc_reduce_sum, 1)
KAAS_TWIN_MERGING_REDUCTION(vcmax, asc_reduce_max, 2)
KAAS_TWIN_MERGING_REDUCTION(vcmin, asc_reduce_min, 2)
#undef KAAS_TWIN_MERGING_REDUCTION
