"""KV records: how one token's 512 or 576 values lie in a cache, and how vector cores make bf16 of them.

    bf16   the values as they are
    fp8    512 e4m3 values, then 16 e8m0 scales, one for 32 values: 528 bytes
    fp4    256 bytes of e2m1 pairs, then 32 e4m3 scales, one for 16 values: 288 bytes

Values and scales of a token are adjacent, so that one transfer fetches a token. Every value of a record times
its scale is a bf16 number as it is, unless it is too small for one: nothing is rounded on the way.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kaas.kernel_library.vector.block_values import exponent_scale

KV_RECORD_SOURCES = (
    "kaas.kernel_library.attention.kv_records",
    "kaas.kernel_library.vector.block_values",
    "kaas.kernel_library.vector.row_plan",
)
"""For ``Family.sources`` of a family built on this module."""

RecordFormat = Literal["bf16", "fp8", "fp4"]

WIDTH = 512
"""Values of a quantised record."""
FP8_BLOCK = 32
FP4_BLOCK = 16
RECORD_BYTES = {"fp8": WIDTH + WIDTH // FP8_BLOCK, "fp4": WIDTH // 2 + WIDTH // FP4_BLOCK}
VALUE_BYTES = {"fp8": WIDTH, "fp4": WIDTH // 2}
"""Where the scales of a record begin."""
SCALES = {"fp8": WIDTH // FP8_BLOCK, "fp4": WIDTH // FP4_BLOCK}
RECORD_PITCH = 576
"""Bytes from record to record in UB: what reads the scales reads 64 bytes."""
SCALE_PITCH = 32
"""fp32 scales from record to record in UB."""
ELEMENTS = 128
"""16-bit values of a register."""


def whole_registers(width: int) -> int:
    """``width`` 16-bit values rounded up to whole registers."""
    return -(-width // ELEMENTS) * ELEMENTS


def hold_records(stages: int, rows: int, width: int, formats: Sequence[RecordFormat]) -> dict[str, Any]:
    """UB for ``stages`` stages of ``rows`` records, by the names that :class:`RecordReader` knows.

    Records are either all bf16, of ``width`` values, or all quantised. ``raw`` is what is loaded into,
    [stages, rows, pitch], as the cache is declared: bf16 or bytes.
    """
    import tilelang.ascend.language as T

    if "bf16" in formats:
        raw = T.alloc_shared((stages, rows, whole_registers(width)), "bfloat16")
        return {"raw": raw}
    raw = T.alloc_shared((stages, rows, RECORD_PITCH), "uint8")
    scales = T.alloc_shared((stages, rows * SCALE_PITCH), "float32")
    e4m3 = T.view(raw, (stages, rows, RECORD_PITCH), dtype="float8_e4m3fn")
    return {"raw": raw, "scales": scales, "e4m3": e4m3}


def held_bytes(stages: int, rows: int, width: int, formats: Sequence[RecordFormat]) -> int:
    """UB bytes of :func:`hold_records`."""
    row = 2 * whole_registers(width) if "bf16" in formats else RECORD_PITCH + 4 * SCALE_PITCH
    return stages * rows * row


class RecordReader(msgspec.Struct, frozen=True):
    """Macros for a ``T.SimdVF`` over a stage of held records of one format.

    ``decode(held, stage, rows)`` makes fp32 of the scales of ``rows`` records, ``None`` for bf16; what reads
    them in the same vector function needs a ``VST_VLD`` barrier before. ``read(held, stage, row, step)``
    returns a tuple of ``registers`` registers with the next 128 values each of a record, as 16-bit words of
    bf16.
    """

    decode: Any
    read: Any
    registers: int


def record_reader(fmt: RecordFormat) -> RecordReader:
    """The macros for records of ``fmt``."""
    import tilelang.ascend.language as T

    @T.macro
    def plain(held: Any, stage: Any, row: Any, step: Any) -> Any:
        return (T.reinterpret("uint16x128", T.simd.vld(held.raw[stage, row, step * ELEMENTS])),)

    if fmt == "bf16":
        return RecordReader(None, plain, 1)

    scale_of_exponents = exponent_scale()
    count, start = SCALES[fmt], VALUE_BYTES[fmt]

    @T.macro
    def fp8_scales(held: Any, stage: Any, row: Any) -> Any:
        exponents = T.simd.vld(held.raw[stage, row, start], dist="UNPK4_B8")
        return scale_of_exponents(T.reinterpret("uint32x64", exponents))

    @T.macro
    def fp4_scales(held: Any, stage: Any, row: Any) -> Any:
        return T.simd.vcvt(T.simd.vld(held.e4m3[stage, row, start], dist="UNPK4_B8"), "float32", part=0)

    scales_of = fp8_scales if fmt == "fp8" else fp4_scales

    @T.macro
    def decode(held: Any, stage: Any, rows: Any) -> None:
        for row_16 in T.serial(T.cast(rows, "uint16")):
            row = T.cast(row_16, "int32")
            lanes = T.simd.update_mask(T.uint32(count), 32)
            T.simd.vsts(
                held.scales[stage, row * SCALE_PITCH], scales_of(held, stage, row), lanes, extent=count
            )

    @T.macro
    def scaled(value: Any, scale: Any, part: int) -> Any:
        """64 products as bf16 in every other lane, the rest 0."""
        rounded = T.simd.vcvt(T.simd.vmul(value, scale), "bfloat16", sat=False, part=part)
        return T.reinterpret("uint16x128", rounded)

    @T.macro
    def fp8(held: Any, stage: Any, row: Any, step: Any) -> Any:
        """256 values convert by every fourth one; the scale of 32 lies in 8 lanes of each such quarter."""
        scale = T.simd.vld(held.scales[stage, row * SCALE_PITCH + step * 8], dist="E2B_B32")
        packed = T.simd.vld(held.e4m3[stage, row, step * (2 * ELEMENTS)])
        first = T.simd.vor(
            scaled(T.simd.vcvt(packed, "float32", part=0), scale, 0),
            scaled(T.simd.vcvt(packed, "float32", part=1), scale, 1),
        )
        second = T.simd.vor(
            scaled(T.simd.vcvt(packed, "float32", part=2), scale, 0),
            scaled(T.simd.vcvt(packed, "float32", part=3), scale, 1),
        )
        low, high = T.simd.vintlv(T.reinterpret("uint32x64", first), T.reinterpret("uint32x64", second))
        return T.reinterpret("uint16x128", low), T.reinterpret("uint16x128", high)

    @T.macro
    def fp4(held: Any, stage: Any, row: Any, step: Any) -> Any:
        scale = T.simd.vld(held.scales[stage, row * SCALE_PITCH + step * 8], dist="E2B_B32")
        # Bytes of pairs, read as such: a view of fp4 values counts its places by whole bytes.
        stored = T.simd.vld(held.raw[stage, row, step * (ELEMENTS // 2)], dist="UNPK4_B8")
        values = T.simd.vcvt(T.reinterpret("float4_e2m1fnx512", stored), "bfloat16", part=0)
        both = T.simd.vor(
            scaled(T.simd.vcvt(values, "float32", part=0), scale, 0),
            scaled(T.simd.vcvt(values, "float32", part=1), scale, 1),
        )
        return (both,)

    return RecordReader(decode, fp8, 2) if fmt == "fp8" else RecordReader(decode, fp4, 1)
