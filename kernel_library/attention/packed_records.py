"""Packed records: rows of 512 bf16 values in UB become KV records, on the vector cores.

fp8: the scale of 32 values is the least power of two that is not below their largest magnitude / 448, and at
least 2^-13. fp4: that of 16 values is their largest magnitude / 6, within 2^-9 and 448, rounded to e4m3; the
values are divided by what it became. Both round to nearest even and saturate. A block with an infinity or a
NaN gets a scale that is NaN (255, or 0x7F) and zeros for values.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

from kaas.kernel_library.attention.kv_records import (
    ELEMENTS,
    RECORD_PITCH,
    SCALES,
    VALUE_BYTES,
    WIDTH,
)
from kaas.kernel_library.vector.block_values import CHUNK, halves_of, quarters_of
from kaas.kernel_library.vector.quantise import (
    QUANTISE_SOURCES,
    e2m1_of_halves,
    e4m3_of_quarters,
    magnitude_fold,
    power_scale,
)
from kaas.kernel_library.vector.row_plan import VECTOR_LANES

PACKED_RECORD_SOURCES = (
    *QUANTISE_SOURCES,
    "kaas.kernel_library.attention.kv_records",
    "kaas.kernel_library.attention.packed_records",
)
"""For ``Family.sources`` of a family built on this module."""

ROW_BYTES = 2 * WIDTH + RECORD_PITCH + 2 * 4 * VECTOR_LANES
"""UB of a row: its values, its record, fp32 magnitudes and divisors of its blocks."""
LEAST_FP8_EXPONENT = 114
"""2^-13, the power of two above 1e-4."""
LEAST_FP4_SCALE, LARGEST_FP4_SCALE = 2.0**-9, 448.0
E4M3_NAN = 0x7F
_INFINITY_BITS = 0x7F800000


def record_packer(fmt: Literal["fp8", "fp4"]) -> Any:
    """A macro ``(state, slot, count)`` for a ``T.SimdVF``: rows 0 to ``count`` of a stage.

    ``state.x`` [stages, rows, 512] bf16 becomes ``state.records`` [stages, rows, RECORD_PITCH] uint8;
    ``state.magnitudes`` and ``state.factors``, [stages, rows, 64] fp32, are scratch.
    """
    import tilelang.ascend.language as T

    blocks, start = SCALES[fmt], VALUE_BYTES[fmt]
    fold, power_of = magnitude_fold("bf16"), power_scale("e4m3")
    quarters, halves = quarters_of("bf16"), halves_of("bf16")
    e4m3, e2m1 = e4m3_of_quarters(), e2m1_of_halves()
    span = CHUNK if fmt == "fp8" else ELEMENTS
    per_span = 8

    @T.macro
    def folded(state: Any, slot: Any, row: Any, at: Any) -> Any:
        """Magnitude bits of 8 blocks, of which each fills 32 bytes."""
        if fmt == "fp8":
            return fold(state.x, slot, row, at)
        bits = T.reinterpret("uint16x128", T.simd.vld(state.x[slot, row, at]))
        return T.simd.vand(bits, T.simd.vdup(T.uint16(0x7FFF), "uint16"))

    @T.macro
    def measure(state: Any, slot: Any, row: Any) -> None:
        eight = T.simd.pset(32, "PAT_VL8")
        for step in T.serial(T.uint16(WIDTH // span)):
            largest = T.simd.vcgmax(folded(state, slot, row, T.cast(step, "int32") * span))
            # A bf16 above 16 zero bits is the same number as fp32.
            wide, _ = T.simd.vintlv(T.simd.vdup(T.uint16(0), "uint16"), largest)
            T.simd.vsts(
                state.magnitudes[slot, row, T.cast(step, "int32") * per_span],
                T.reinterpret("float32x64", wide),
                eight,
                extent=per_span,
            )

    @T.macro
    def fp8_scales(magnitude: Any) -> Any:
        """Codes of the scales, and what values are multiplied with."""
        bits = T.reinterpret("uint32x64", magnitude)
        power, _ = power_of(bits)
        code = T.simd.vmaxs(power, T.uint32(LEAST_FP8_EXPONENT))
        inverse = T.simd.vshls(T.simd.vsub(T.simd.vdup(T.uint32(254), "uint32"), code), 23)
        none = T.simd.vcmps(code, T.uint32(255), op="eq")
        factor = T.simd.vsel(T.simd.vdup(T.uint32(0), "uint32"), inverse, none)
        return code, T.reinterpret("float32x64", factor)

    @T.macro
    def fp4_scales(magnitude: Any) -> Any:
        """Codes of the scales, and what values are divided by."""
        quotient = T.simd.vdiv(magnitude, T.simd.vdup(T.float32(6.0), "float32"))
        bounded = T.simd.vmins(
            T.simd.vmaxs(quotient, T.float32(LEAST_FP4_SCALE)), T.float32(LARGEST_FP4_SCALE)
        )
        rounded = T.simd.vcvt(bounded, "float8_e4m3fn", part=0)
        scale = T.reinterpret("uint32x64", T.simd.vcvt(rounded, "float32", part=0))
        none = T.simd.vcmps(T.reinterpret("uint32x64", magnitude), T.uint32(_INFINITY_BITS), op="ge")
        code = T.simd.vsel(
            T.simd.vdup(T.uint32(E4M3_NAN), "uint32"), T.reinterpret("uint32x64", rounded), none
        )
        divisor = T.simd.vsel(T.simd.vdup(T.uint32(_INFINITY_BITS), "uint32"), scale, none)
        return code, T.reinterpret("float32x64", divisor)

    scales = fp8_scales if fmt == "fp8" else fp4_scales

    @T.macro
    def scale(state: Any, slot: Any, row: Any) -> None:
        code, factor = scales(T.simd.vld(state.magnitudes[slot, row, 0]))
        lanes = T.simd.update_mask(T.uint32(blocks), 32)
        T.simd.vsts(state.factors[slot, row, 0], factor)
        T.simd.vsts(
            state.records[slot, row, start],
            T.reinterpret("uint8x256", code),
            lanes,
            dist="PK4_B32",
            extent=blocks,
        )

    @T.macro
    def fp8_values(state: Any, slot: Any, row: Any, step: Any) -> None:
        factor = T.simd.vld(state.factors[slot, row, step * per_span], dist="E2B_B32")
        stored = e4m3(quarters(state.x, slot, row, step * span), (factor, factor, factor, factor))
        T.simd.vsts(state.records[slot, row, step * span], T.reinterpret("uint8x256", stored), dist="NORM_B8")

    @T.macro
    def fp4_values(state: Any, slot: Any, row: Any, step: Any) -> None:
        divisor = T.simd.vld(state.factors[slot, row, step * per_span], dist="E2B_B32")
        low_divisor, high_divisor = T.simd.vintlv(divisor, divisor)
        low, high = halves(state.x, slot, row, step * span)
        stored = e2m1(T.simd.vdiv(low, low_divisor), T.simd.vdiv(high, high_divisor))
        T.simd.vsts(
            state.records[slot, row, step * (span // 2)], T.reinterpret("uint8x256", stored), dist="PK4_B32"
        )

    values = fp8_values if fmt == "fp8" else fp4_values

    @T.macro
    def pack(state: Any, slot: Any, count: Any) -> None:
        for row in T.serial(T.cast(count, "uint16")):
            measure(state, slot, T.cast(row, "int32"))
        T.simd.mem_bar("VST_VLD")
        for row in T.serial(T.cast(count, "uint16")):
            scale(state, slot, T.cast(row, "int32"))
        T.simd.mem_bar("VST_VLD")
        for row in T.serial(T.cast(count, "uint16")):
            for step in T.serial(T.uint16(WIDTH // span)):
                values(state, slot, T.cast(row, "int32"), T.cast(step, "int32"))

    return pack
