"""Quantise: blocks of 32 values in UB to e4m3 or e2m1 with a scale each, on the vector cores.

The rule is that of TileKernels' casts: the largest magnitude of a block, clamped below, over the format's
largest value is the scale; rounded up to a power of two if asked for. The values are multiplied by
``largest / magnitude`` (one true division per block, not one per value) or by the inverse power of two, and
rounded to nearest even. Magnitudes are compared as integers, so that infinity and NaN win everywhere; a block
with one of them gets a scale that dequantises to NaN.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

import msgspec

from kaas.kernel_library.vector.block_values import (
    BLOCK as BLOCK,
)
from kaas.kernel_library.vector.block_values import (
    CHUNK as CHUNK,
)
from kaas.kernel_library.vector.block_values import (
    TILELANG_VALUE,
    VALUE_BITS,
    ScaleType,
    ValueType,
    even,
    halves_of,
    quarters_of,
)
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, padded

QUANTISE_SOURCES = (
    "kaas.kernel_library.vector.block_values",
    "kaas.kernel_library.vector.quantise",
    "kaas.kernel_library.vector.row_plan",
)
"""For ``Family.sources`` of a family built on this module."""

Format = Literal["e4m3", "e2m1"]

LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
# Bits of the least magnitude that counts: 1e-4 for e4m3, 6 * 2^-126 for e2m1.
_LEAST_BITS = {"e4m3": 0x38D1B717, "e2m1": 0x01C00000}
# ceil(log2(x / largest)) + 127 is (bits(x) + this) >> 23: the carry of a mantissa above the format's, less
# its exponent. It agrees with dividing first, whose rounding never crosses a power of two.
_ROUNDING_BITS = {"e4m3": 0x001FFFFF - (8 << 23), "e2m1": 0x003FFFFF - (2 << 23)}
_INFINITY_BITS = 0x7F800000
_PER_CHUNK = CHUNK // BLOCK


class Work(msgspec.Struct, frozen=True):
    """UB of one quantiser, first index the stage: see :meth:`RowQuantiser.allocate`."""

    amax: Any
    inverse: Any
    values: Any
    scales: Any


class RowQuantiser(msgspec.Struct, frozen=True, kw_only=True):
    """Quantises rows of ``hidden`` values (a multiple of 32) that lie in UB as ``source``.

    ``scales`` says how scales are written: ``fp32``, or ``e8m0`` pairs (64 values each; the high byte of an
    odd tail is 0), which needs ``round_sf``. ``col_major`` lays them [blocks, rows], not [rows, blocks].
    ``values`` and ``computed`` say which results are wanted: without ``values`` only scales are made, without
    ``computed`` the scales are given (fp32, row-major) and only values are made. ``share`` rows have a scale
    in common: 1, or 32 for square blocks.
    """

    hidden: int
    source: ValueType
    fmt: Format
    round_sf: bool
    scales: ScaleType
    col_major: bool = False
    values: bool = True
    computed: bool = True
    share: int = 1

    @property
    def pitch(self) -> int:
        """Elements from row to row of source and values in UB; what lies behind a row is ignored."""
        return padded(self.hidden, CHUNK)

    @property
    def blocks(self) -> int:
        """Scales of a row."""
        return self.hidden // BLOCK

    @property
    def scale_columns(self) -> int:
        """Scale elements of a row as they are written: blocks, or pairs of blocks."""
        return -(-self.blocks // 2) if self.scales == "e8m0" else self.blocks

    @property
    def row_bytes(self) -> int:
        """UB bytes that a row of a stage takes beside the source itself, with a scale of its own."""
        return self._value_bytes + self._scale_row_bytes

    def fixed_bytes(self, stages: int = 4) -> int:
        """UB bytes that do not grow with the rows: rounding columns of scales up to 32 bytes may add them."""
        return stages * self.scale_columns * 32 if self.col_major else 0

    def stage_bytes(self, rows: int) -> int:
        """UB bytes of a stage of ``rows`` rows beside the source."""
        scale_rows = -(-rows // self.share)
        return rows * self._value_bytes + scale_rows * self._scale_row_bytes + self.fixed_bytes(1)

    @property
    def _block_pitch(self) -> int:
        return padded(self.blocks)

    @property
    def _value_bytes(self) -> int:
        return self.pitch * VALUE_BITS[self.fmt] // 8 if self.values else 0

    @property
    def _scale_row_bytes(self) -> int:
        scratch = 4 * self._block_pitch * (2 if self.computed else 1)
        if self.col_major:
            return scratch + self.scale_columns * (2 if self.scales == "e8m0" else 4)
        return scratch + self._block_pitch * (1 if self.scales == "e8m0" else 4)

    def allocate(self, stages: int, rows: int) -> Work:
        """UB for ``stages`` stages of ``rows`` rows; call it where buffers may be allocated."""
        import tilelang.ascend.language as T

        scale_rows = -(-rows // self.share)
        scratch = (stages, scale_rows, self._block_pitch)
        inverse = T.alloc_shared(scratch, "float32")
        amax = T.alloc_shared(scratch, "float32") if self.computed else inverse
        values = (
            T.alloc_shared((stages, rows, self.pitch), TILELANG_VALUE[self.fmt]) if self.values else inverse
        )
        if self.col_major and self.scales == "e8m0":
            scales = T.alloc_shared((stages, self.scale_columns, padded(scale_rows, 16)), "uint16")
        elif self.col_major:
            scales = T.alloc_shared((stages, self.scale_columns, padded(scale_rows, 8)), "float32")
        elif self.scales == "e8m0":
            scales = T.alloc_shared((stages, scale_rows, self._block_pitch // 2), "uint16")
        else:
            scales = T.alloc_shared(scratch, "float32")
        return Work(amax, inverse, values, scales)

    def rows(self) -> Any:
        """A macro ``(held, work, slot, count)`` for use inside a ``T.SimdVF``.

        Quantises rows 0 to ``count`` of stage ``slot`` of ``held`` into ``work``. ``held`` is the buffer
        [stages, rows, pitch] of the source, for a quantised one the pair of it and its fp32 scales. What the
        same vector function has stored there needs a ``VST_VLD`` barrier before.
        """
        import tilelang.ascend.language as T

        quantise = self.tile_rows()

        @T.macro
        def quantise_rows(held: Any, work: Any, slot: Any, count: Any) -> None:
            quantise(held, work, slot, count, self.blocks)

        return quantise_rows

    def tile_rows(self) -> Any:
        """As :meth:`rows`, with the number of blocks that the tile really has as a last argument."""
        import tilelang.ascend.language as T

        amax = _amax_macro(self)
        scale = _scale_macro(self) if self.computed else _given_scale_macro(self)
        convert = _e2m1_macro(self) if self.fmt == "e2m1" else _e4m3_macro(self)
        share = self.share

        @T.macro
        def quantise(held: Any, work: Any, slot: Any, count: Any, blocks: Any) -> None:
            shared = T.truncdiv(count + share - 1, share)
            if self.computed:
                for row in T.serial(T.cast(shared, "uint16")):
                    amax(held, work, slot, T.cast(row, "int32"), count)
                T.simd.mem_bar("VST_VLD")
            for row in T.serial(T.cast(shared, "uint16")):
                scale(work, slot, T.cast(row, "int32"), blocks)
            if self.values:
                T.simd.mem_bar("VST_VLD")
                for row in T.serial(T.cast(count, "uint16")):
                    convert(held, work, slot, T.cast(row, "int32"))

        return quantise

    def store(self) -> Any:
        """A macro ``(work, slot, first, count, values, scales)``: rows of a stage to global memory, on MTE3.

        ``values`` and ``scales`` are the call's tensors; one that is not wanted may be anything.
        """
        import tilelang.ascend.language as T

        store = self.store_tile()

        @T.macro
        def store_rows(work: Any, slot: Any, first: Any, count: Any, values: Any, scales: Any) -> None:
            store(work, slot, first, count, 0, self.hidden, values, scales)

        return store_rows

    def store_tile(self) -> Any:
        """A macro ``(work, slot, row, rows, column, columns, values, scales)``, as :meth:`store`.

        ``row`` is a multiple of ``share`` and ``column`` one of 64.
        """
        import tilelang.ascend.language as T

        share, per_element = self.share, BLOCK * (2 if self.scales == "e8m0" else 1)

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
            if self.values:
                T.copy(
                    work.values[slot, 0:rows, 0 : even(columns)],
                    values[row : row + rows, even(column) : even(column) + even(columns)],
                )
            if self.computed:
                first = T.truncdiv(row, share)
                count = T.truncdiv(rows + share - 1, share)
                block = T.truncdiv(column, per_element)
                blocks = T.truncdiv(columns + per_element - 1, per_element)
                if self.col_major:
                    T.copy(
                        work.scales[slot, 0:blocks, 0:count],
                        scales[block : block + blocks, first : first + count],
                    )
                else:
                    T.copy(
                        work.scales[slot, 0:count, 0:blocks],
                        scales[first : first + count, block : block + blocks],
                    )

        return store


def magnitude_fold(source: ValueType) -> Any:
    """A macro ``(held, slot, row, at)``: magnitude bits of 256 values, adjacent ones folded by maximum.

    A block of 32 then fills exactly one 32-byte group of lanes: 16 lanes of uint16 for bf16, 8 of uint32 for
    everything else.
    """
    import tilelang.ascend.language as T

    quarters = quarters_of(source)

    @T.macro
    def bf16(held: Any, slot: Any, row: Any, at: Any) -> Any:
        mask = T.simd.vdup(T.uint16(0x7FFF), "uint16")
        even, odd = T.simd.vld2(held[slot, row, at], dist="DINTLV_B16")
        return T.simd.vmax(
            T.simd.vand(T.reinterpret("uint16x128", even), mask),
            T.simd.vand(T.reinterpret("uint16x128", odd), mask),
        )

    @T.macro
    def wide(held: Any, slot: Any, row: Any, at: Any) -> Any:
        mask = T.simd.vdup(T.uint32(0x7FFFFFFF), "uint32")
        first, second, third, fourth = quarters(held, slot, row, at)
        return T.simd.vmax(
            T.simd.vmax(
                T.simd.vand(T.reinterpret("uint32x64", first), mask),
                T.simd.vand(T.reinterpret("uint32x64", second), mask),
            ),
            T.simd.vmax(
                T.simd.vand(T.reinterpret("uint32x64", third), mask),
                T.simd.vand(T.reinterpret("uint32x64", fourth), mask),
            ),
        )

    return bf16 if source == "bf16" else wide


def _amax_macro(quantiser: RowQuantiser) -> Any:
    """Bits of the largest magnitude of each block of a row of blocks, to ``work.amax``."""
    import tilelang.ascend.language as T

    fold = magnitude_fold(quantiser.source)
    share, narrow = quantiser.share, quantiser.source == "bf16"
    lanes = "uint16" if narrow else "uint32"

    @T.macro
    def folded(held: Any, slot: Any, row: Any, at: Any, count: Any) -> Any:
        if share == 1:
            return fold(held, slot, row, at)
        largest = T.simd.alloc_var(lanes)
        largest = T.simd.vdup(T.cast(0, lanes), lanes)
        members = T.min(share, count - row * share)
        for member in T.serial(T.cast(members, "uint16")):
            largest = T.simd.vmax(largest, fold(held, slot, row * share + T.cast(member, "int32"), at))
        return largest

    @T.macro
    def widened(largest: Any) -> Any:
        """The 8 maxima in the lowest lanes, as fp32."""
        if not narrow:
            return T.reinterpret("float32x64", largest)
        # A bf16 above 16 zero bits is the same number as fp32.
        wide, _ = T.simd.vintlv(T.simd.vdup(T.uint16(0), "uint16"), largest)
        return T.reinterpret("float32x64", wide)

    @T.macro
    def amax(held: Any, work: Any, slot: Any, row: Any, count: Any) -> None:
        eight = T.simd.pset(32, "PAT_VL8")
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            largest = T.simd.vcgmax(folded(held, slot, row, T.cast(chunk, "int32") * CHUNK, count))
            T.simd.vsts(
                work.amax[slot, row, T.cast(chunk, "int32") * _PER_CHUNK],
                widened(largest),
                eight,
                dist="NORM_B32",
                extent=_PER_CHUNK,
            )

    return amax


def power_scale(fmt: Format) -> Any:
    """A macro of magnitude bits (uint32x64): the e8m0 scales (uint32x64) and the inverse scales (float32x64).

    A magnitude that is infinite or NaN gives scale 255 and inverse 0.
    """
    import tilelang.ascend.language as T

    @T.macro
    def scale(bits: Any) -> Any:
        clamped = T.simd.vmaxs(bits, T.uint32(_LEAST_BITS[fmt]))
        power = T.simd.vshrs(T.simd.vadds(clamped, T.uint32(_ROUNDING_BITS[fmt] % 2**32)), 23)
        inverse = T.simd.vshls(T.simd.vsub(T.simd.vdup(T.uint32(254), "uint32"), power), 23)
        unbounded = T.simd.vcmps(clamped, T.uint32(_INFINITY_BITS), op="ge")
        return (
            T.simd.vsel(T.simd.vdup(T.uint32(255), "uint32"), power, unbounded),
            T.reinterpret("float32x64", T.simd.vsel(T.simd.vdup(T.uint32(0), "uint32"), inverse, unbounded)),
        )

    return scale


def quotient_scale(fmt: Format) -> Any:
    """A macro of magnitude bits (uint32x64): the fp32 scales and the inverse scales, both true quotients."""
    import tilelang.ascend.language as T

    @T.macro
    def scale(bits: Any) -> Any:
        clamped = T.reinterpret("float32x64", T.simd.vmaxs(bits, T.uint32(_LEAST_BITS[fmt])))
        largest = T.simd.vdup(T.float32(LARGEST[fmt]), "float32")
        return T.simd.vdiv(clamped, largest), T.simd.vdiv(largest, clamped)

    return scale


def store_scales_macro(quantiser: RowQuantiser) -> Any:
    """A macro ``(work, slot, row, scale, first, blocks)``: 64 scales of a row of blocks to ``work.scales``.

    ``scale`` are e8m0 bytes (uint32x64) for ``quantiser.scales`` e8m0, else float32x64. They start at block
    ``first`` of ``blocks``.
    """
    import tilelang.ascend.language as T

    packed = quantiser.scales == "e8m0"

    @T.macro
    def as_pairs(scale: Any, left: Any) -> Any:
        """64 scales as 32 pairs in the lowest lanes; those from ``left`` on are 0."""
        known = T.simd.vadds(scale, T.uint32(0), T.simd.update_mask(T.cast(left, "uint32"), 32))
        return T.reinterpret("uint16x128", T.simd.vpack(T.simd.vpack(known)))

    @T.macro
    def store_pairs(work: Any, slot: Any, row: Any, scale: Any, first: Any, left: Any) -> None:
        pairs = as_pairs(scale, left)
        if quantiser.col_major:
            lane = T.reinterpret("uint16x128", T.simd.vci(T.int16(0), "int16"))
            wanted = T.min(T.truncdiv(left + 1, 2), VECTOR_LANES // 2)
            T.simd.vscatter(
                pairs,
                work.scales[slot, T.truncdiv(first, 2), row],
                T.simd.vmuls(lane, T.uint16(work.scales.shape[2])),
                T.simd.update_mask(T.cast(wanted, "uint32"), 16),
            )
        else:
            half = T.simd.pset(16, "PAT_VL32")
            T.simd.vsts(
                work.scales[slot, row, T.truncdiv(first, 2)],
                pairs,
                half,
                dist="NORM_B16",
                extent=VECTOR_LANES // 2,
            )

    @T.macro
    def store_floats(work: Any, slot: Any, row: Any, scale: Any, first: Any, left: Any) -> None:
        if quantiser.col_major:
            lane = T.reinterpret("uint32x64", T.simd.vci(T.int32(0), "int32"))
            T.simd.vscatter(
                scale,
                work.scales[slot, first, row],
                T.simd.vmuls(lane, T.uint32(work.scales.shape[2])),
                T.simd.update_mask(T.cast(left, "uint32"), 32),
            )
        else:
            T.simd.vsts(work.scales[slot, row, first], scale)

    @T.macro
    def store(work: Any, slot: Any, row: Any, scale: Any, first: Any, blocks: Any) -> None:
        # The last tile of a row may have fewer vectors of blocks than there is room for.
        left = T.max(blocks - first, 0)
        if packed:
            store_pairs(work, slot, row, scale, first, left)
        else:
            store_floats(work, slot, row, scale, first, left)

    return store


def _scale_macro(quantiser: RowQuantiser) -> Any:
    """Scales of a row of blocks as they are written, and their inverses to ``work.inverse``."""
    import tilelang.ascend.language as T

    vectors = padded(quantiser.blocks) // VECTOR_LANES
    scale_of = power_scale(quantiser.fmt) if quantiser.round_sf else quotient_scale(quantiser.fmt)
    store = store_scales_macro(quantiser)
    as_float = quantiser.round_sf and quantiser.scales == "fp32"

    @T.macro
    def scale_row(work: Any, slot: Any, row: Any, blocks: Any) -> None:
        for vector in T.serial(T.uint16(vectors)):
            first = T.cast(vector, "int32") * VECTOR_LANES
            bits = T.reinterpret("uint32x64", T.simd.vld(work.amax[slot, row, first]))
            scale, inverse = scale_of(bits)
            if quantiser.values:
                T.simd.vsts(work.inverse[slot, row, first], inverse)
            if as_float:
                store(work, slot, row, T.reinterpret("float32x64", T.simd.vshls(scale, 23)), first, blocks)
            else:
                store(work, slot, row, scale, first, blocks)

    return scale_row


def _given_scale_macro(quantiser: RowQuantiser) -> Any:
    """Inverses of the fp32 scales of a row in ``work.scales``, to ``work.inverse``: 1 / scale."""
    import tilelang.ascend.language as T

    @T.macro
    def invert_row(work: Any, slot: Any, row: Any, blocks: Any) -> None:
        for vector in T.serial(T.uint16(padded(quantiser.blocks) // VECTOR_LANES)):
            first = T.cast(vector, "int32") * VECTOR_LANES
            one = T.simd.vdup(T.float32(1.0), "float32")
            inverse = T.simd.vdiv(one, T.simd.vld(work.scales[slot, row, first]))
            T.simd.vsts(work.inverse[slot, row, first], inverse)

    return invert_row


def e4m3_of_quarters() -> Any:
    """A macro of four registers of :func:`quarters_of` and what each is multiplied with: 256 e4m3 in order.

    Conversion saturates; NaN becomes 0.
    """
    import tilelang.ascend.language as T

    @T.macro
    def quarter(value: Any, factor: Any, part: int) -> Any:
        scaled = T.simd.vcvt(T.simd.vmul(value, factor), TILELANG_VALUE["e4m3"], part=part)
        return T.reinterpret("uint8x256", scaled)

    @T.macro
    def merged(values: Any, factors: Any) -> Any:
        bits = T.simd.vor(
            T.simd.vor(quarter(values[0], factors[0], 0), quarter(values[1], factors[1], 1)),
            T.simd.vor(quarter(values[2], factors[2], 2), quarter(values[3], factors[3], 3)),
        )
        return T.reinterpret("float8_e4m3fnx256", bits)

    return merged


def _e4m3_macro(quantiser: RowQuantiser) -> Any:
    """Values of a row times the inverse scales, to ``work.values`` as e4m3."""
    import tilelang.ascend.language as T

    quarters, merged = quarters_of(quantiser.source), e4m3_of_quarters()
    share = quantiser.share

    @T.macro
    def convert(held: Any, work: Any, slot: Any, row: Any) -> None:
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            at = T.cast(chunk, "int32") * CHUNK
            block = T.cast(chunk, "int32") * _PER_CHUNK
            inverse = T.simd.vld(work.inverse[slot, T.truncdiv(row, share), block], dist="E2B_B32")
            values = quarters(held, slot, row, at)
            stored = merged(values, (inverse, inverse, inverse, inverse))
            T.simd.vsts(work.values[slot, row, at], stored, dist="NORM_B8")

    return convert


def e2m1_of_halves() -> Any:
    """A macro of two fp32 registers with 128 values in order: bytes of e2m1 pairs, one in four lanes.

    Only bf16 converts to fp4. Rounding to bf16 before that would round twice; instead the lower half of an
    fp32 is dropped and the last bit kept says whether it was zero (round to odd). Conversion saturates; NaN
    becomes 0.
    """
    import tilelang.ascend.language as T

    @T.macro
    def pairs(low: Any, high: Any) -> Any:
        dropped, kept = T.simd.vdintlv(T.reinterpret("uint16x128", low), T.reinterpret("uint16x128", high))
        odd = T.reinterpret("bfloat16x128", T.simd.vor(kept, T.simd.vmins(dropped, T.uint16(1))))
        return T.simd.vcvt(odd, TILELANG_VALUE["e2m1"])

    return pairs


def _e2m1_macro(quantiser: RowQuantiser) -> Any:
    """Values of a row times the inverse scales, to ``work.values`` as e2m1 pairs."""
    import tilelang.ascend.language as T

    halves, pairs = halves_of(quantiser.source), e2m1_of_halves()
    share = quantiser.share

    @T.macro
    def half(held: Any, work: Any, slot: Any, row: Any, at: Any, spread: Any) -> None:
        """128 values; ``spread`` has each of their four inverse scales in 16 adjacent lanes."""
        low_inverse, high_inverse = T.simd.vintlv(spread, spread)
        low, high = halves(held, slot, row, at)
        stored = pairs(T.simd.vmul(low, low_inverse), T.simd.vmul(high, high_inverse))
        T.simd.vsts(work.values[slot, row, at], stored, dist="PK4_B32")

    @T.macro
    def convert(held: Any, work: Any, slot: Any, row: Any) -> None:
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            at = T.cast(chunk, "int32") * CHUNK
            block = T.cast(chunk, "int32") * _PER_CHUNK
            inverse = T.simd.vld(work.inverse[slot, T.truncdiv(row, share), block], dist="E2B_B32")
            low, high = T.simd.vintlv(inverse, inverse)
            half(held, work, slot, row, at, low)
            half(held, work, slot, row, at + CHUNK // 2, high)

    return convert
