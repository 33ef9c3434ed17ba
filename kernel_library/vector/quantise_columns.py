"""Quantise columns: blocks of 32 rows x 1 column in UB to e4m3 with a scale each, on the vector cores.

The rule of :mod:`kaas.kernel_library.vector.quantise`; magnitudes, scales and inverses stay in registers.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

import msgspec

from kaas.kernel_library.vector.block_values import (
    BLOCK,
    CHUNK,
    TILELANG_VALUE,
    ScaleType,
    ValueType,
    quarters_of,
)
from kaas.kernel_library.vector.quantise import (
    QUANTISE_SOURCES,
    e4m3_of_quarters,
    power_scale,
    quotient_scale,
)
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, padded

COLUMN_SOURCES = (*QUANTISE_SOURCES, "kaas.kernel_library.vector.quantise_columns")
"""For ``Family.sources`` of a family built on this module."""


class ColumnWork(msgspec.Struct, frozen=True):
    """UB of one quantiser, first index the stage."""

    values: Any
    scales: Any


class ColumnQuantiser(msgspec.Struct, frozen=True, kw_only=True):
    """Quantises tiles of ``columns`` columns whose rows lie in UB as ``source``.

    ``scales``: fp32 [row blocks, columns], or e8m0 pairs of vertically adjacent blocks [pairs, columns] (the
    high byte of an odd last one is 0), which needs ``round_sf`` and tiles of a multiple of 64 rows.
    """

    columns: int
    source: ValueType
    round_sf: bool
    scales: ScaleType

    @property
    def pitch(self) -> int:
        """Elements from row to row of source and values in UB."""
        return padded(self.columns, CHUNK)

    @property
    def _scale_rows(self) -> int:
        """Rows of values for one row of scales."""
        return BLOCK * (2 if self.scales == "e8m0" else 1)

    def stage_bytes(self, rows: int) -> int:
        """UB bytes of a stage of ``rows`` rows beside the source."""
        scale_bytes = 2 if self.scales == "e8m0" else 4
        return self.pitch * (rows + -(-rows // self._scale_rows) * scale_bytes)

    def allocate(self, stages: int, rows: int) -> ColumnWork:
        """UB for ``stages`` stages of ``rows`` rows; call it where buffers may be allocated."""
        import tilelang.ascend.language as T

        scales = (stages, -(-rows // self._scale_rows), self.pitch)
        return ColumnWork(
            T.alloc_shared((stages, rows, self.pitch), TILELANG_VALUE["e4m3"]),
            T.alloc_shared(scales, "uint16" if self.scales == "e8m0" else "float32"),
        )

    def tile_rows(self) -> Any:
        """A macro ``(held, work, slot, rows, blocks)`` for a ``T.SimdVF``: quantises a tile of ``rows`` rows.

        ``held`` as for :meth:`~kaas.kernel_library.vector.quantise.RowQuantiser.rows`; ``blocks`` is ignored.
        """
        import tilelang.ascend.language as T

        largest = _magnitude_macro(self.source)
        scale_of = power_scale("e4m3") if self.round_sf else quotient_scale("e4m3")
        quarters, merged = quarters_of(self.source), e4m3_of_quarters()

        @T.macro
        def convert(held: Any, work: Any, slot: Any, first: Any, members: Any, at: Any, inverse: Any) -> None:
            for member in T.serial(T.cast(members, "uint16")):
                row = first + T.cast(member, "int32")
                values = quarters(held, slot, row, at)
                stored = merged(values, (inverse[0], inverse[1], inverse[2], inverse[3]))
                T.simd.vsts(work.values[slot, row, at], stored, dist="NORM_B8")

        @T.macro
        def block(held: Any, work: Any, slot: Any, first: Any, members: Any, at: Any, scale: Any) -> None:
            """Quantises a block of each of 256 columns; leaves their scales in ``scale``."""
            bits = T.simd.alloc_local((4,), "uint32")
            inverse = T.simd.alloc_local((4,), "float32")
            largest(held, slot, first, members, at, bits)
            for k in T.unroll(4, explicit=True):
                scale[k], inverse[k] = scale_of(bits[k])
            convert(held, work, slot, first, members, at, inverse)

        @T.macro
        def store_floats(work: Any, slot: Any, row: Any, at: Any, scale: Any) -> None:
            values = T.simd.alloc_local((4,), "float32")
            for k in T.unroll(4, explicit=True):
                if self.round_sf:
                    values[k] = T.reinterpret("float32x64", T.simd.vshls(scale[k], 23))
                else:
                    values[k] = scale[k]
            low_even, high_even = T.simd.vintlv(values[0], values[2])
            low_odd, high_odd = T.simd.vintlv(values[1], values[3])
            first, second = T.simd.vintlv(low_even, low_odd)
            third, fourth = T.simd.vintlv(high_even, high_odd)
            T.simd.vsts(work.scales[slot, row, at], first)
            T.simd.vsts(work.scales[slot, row, at + VECTOR_LANES], second)
            T.simd.vsts(work.scales[slot, row, at + 2 * VECTOR_LANES], third)
            T.simd.vsts(work.scales[slot, row, at + 3 * VECTOR_LANES], fourth)

        @T.macro
        def scale_bytes(scale: Any) -> Any:
            bits = T.simd.vor(
                T.simd.vor(scale[0], T.simd.vshls(scale[1], 8)),
                T.simd.vor(T.simd.vshls(scale[2], 16), T.simd.vshls(scale[3], 24)),
            )
            return T.reinterpret("uint8x256", bits)

        @T.macro
        def pair(held: Any, work: Any, slot: Any, row: Any, count: Any, at: Any) -> None:
            upper = T.simd.alloc_local((4,), "uint32")
            lower = T.simd.alloc_local((4,), "uint32")
            first = row * (2 * BLOCK)
            block(held, work, slot, first, T.min(count - first, BLOCK), at, upper)
            left = T.max(T.min(count - first - BLOCK, BLOCK), 0)
            block(held, work, slot, first + BLOCK, left, at, lower)
            # Without rows there is no scale.
            present = T.simd.update_mask(T.cast(left * VECTOR_LANES, "uint32"), 32)
            for k in T.unroll(4, explicit=True):
                lower[k] = T.simd.vadds(lower[k], T.uint32(0), present)
            low, high = T.simd.vintlv(scale_bytes(upper), scale_bytes(lower))
            T.simd.vsts(work.scales[slot, row, at], T.reinterpret("uint16x128", low), dist="NORM_B16")
            T.simd.vsts(
                work.scales[slot, row, at + CHUNK // 2], T.reinterpret("uint16x128", high), dist="NORM_B16"
            )

        @T.macro
        def single(held: Any, work: Any, slot: Any, row: Any, count: Any, at: Any) -> None:
            scale = T.simd.alloc_local((4,), "uint32" if self.round_sf else "float32")
            first = row * BLOCK
            block(held, work, slot, first, T.min(count - first, BLOCK), at, scale)
            store_floats(work, slot, row, at, scale)

        one_row, per_row = (pair if self.scales == "e8m0" else single), self._scale_rows

        @T.macro
        def quantise(held: Any, work: Any, slot: Any, count: Any, blocks: Any) -> None:
            for row in T.serial(T.cast(T.truncdiv(count + per_row - 1, per_row), "uint16")):
                for chunk in T.serial(T.uint16(self.pitch // CHUNK)):
                    at = T.cast(chunk, "int32") * CHUNK
                    one_row(held, work, slot, T.cast(row, "int32"), count, at)

        return quantise

    def store_tile(self) -> Any:
        """A macro ``(work, slot, row, rows, column, columns, values, scales)``: a tile to global memory."""
        import tilelang.ascend.language as T

        per_row = self._scale_rows

        @T.macro
        def store(
            work: Any,
            slot: Any,
            row: Any,
            rows: Any,
            column: Any,
            columns: Any,
            values: Any,
            scales: Any,
        ) -> None:
            first = T.truncdiv(row, per_row)
            count = T.truncdiv(rows + per_row - 1, per_row)
            T.copy(work.values[slot, 0:rows, 0:columns], values[row : row + rows, column : column + columns])
            T.copy(
                work.scales[slot, 0:count, 0:columns],
                scales[first : first + count, column : column + columns],
            )

        return store


def _magnitude_macro(source: ValueType) -> Any:
    """A macro ``(held, slot, first, members, at, bits)``: the largest magnitude of each of 256 columns.

    Rows ``first`` to ``first + members``; the bits go to four uint32 registers, in quarters.
    """
    import tilelang.ascend.language as T

    quarters = quarters_of(source)

    @T.macro
    def bf16(held: Any, slot: Any, first: Any, members: Any, at: Any, bits: Any) -> None:
        mask = T.simd.vdup(T.uint16(0x7FFF), "uint16")
        folded = T.simd.alloc_local((2,), "uint16")
        for k in T.unroll(2, explicit=True):
            folded[k] = T.simd.vdup(T.uint16(0), "uint16")
        for member in T.serial(T.cast(members, "uint16")):
            even, odd = T.simd.vld2(held[slot, first + T.cast(member, "int32"), at], dist="DINTLV_B16")
            folded[0] = T.simd.vmax(folded[0], T.simd.vand(T.reinterpret("uint16x128", even), mask))
            folded[1] = T.simd.vmax(folded[1], T.simd.vand(T.reinterpret("uint16x128", odd), mask))
        # A bf16 above 16 zero bits is the same number as fp32.
        upper = T.simd.vdup(T.uint32(0xFFFF0000), "uint32")
        for k in T.unroll(2, explicit=True):
            bits[k] = T.simd.vshls(T.reinterpret("uint32x64", folded[k]), 16)
            bits[k + 2] = T.simd.vand(T.reinterpret("uint32x64", folded[k]), upper)

    @T.macro
    def wide(held: Any, slot: Any, first: Any, members: Any, at: Any, bits: Any) -> None:
        mask = T.simd.vdup(T.uint32(0x7FFFFFFF), "uint32")
        for k in T.unroll(4, explicit=True):
            bits[k] = T.simd.vdup(T.uint32(0), "uint32")
        for member in T.serial(T.cast(members, "uint16")):
            one, two, three, four = quarters(held, slot, first + T.cast(member, "int32"), at)
            bits[0] = T.simd.vmax(bits[0], T.simd.vand(T.reinterpret("uint32x64", one), mask))
            bits[1] = T.simd.vmax(bits[1], T.simd.vand(T.reinterpret("uint32x64", two), mask))
            bits[2] = T.simd.vmax(bits[2], T.simd.vand(T.reinterpret("uint32x64", three), mask))
            bits[3] = T.simd.vmax(bits[3], T.simd.vand(T.reinterpret("uint32x64", four), mask))

    return bf16 if source == "bf16" else wide
