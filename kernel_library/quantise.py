"""Quantise: blocks of 32 values in UB to e4m3 or e2m1 with a scale each, on the vector cores.

The rule is that of TileKernels' casts: the largest magnitude of a block, clamped below, over the format's
largest value is the scale; rounded up to a power of two if asked for. The values are multiplied by
``largest / magnitude`` (one true division per block, not one per value) or by the inverse power of two, and
rounded to nearest even. Magnitudes are compared as integers, so that infinity and NaN win everywhere; a block
with one of them gets the scale that dequantises to NaN.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from dataclasses import dataclass
from typing import Any, Literal

from kaas.kernel_library.row_plan import VECTOR_LANES, padded

QUANTISE_SOURCES = ("kaas.kernel_library.quantise",)
"""For ``Family.sources`` of a family built on this module."""

BLOCK = 32
"""Values that share one scale."""
CHUNK = 256
"""Values that the macros below take at a time: 8 blocks."""

Format = Literal["e4m3", "e2m1"]
Source = Literal["bf16", "fp32"]
Scales = Literal["fp32", "e8m0"]

TILELANG_FORMAT = {"e4m3": "float8_e4m3fn", "e2m1": "float4_e2m1fn"}
LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
# Bits of the least magnitude that counts: 1e-4 for e4m3, 6 * 2^-126 for e2m1.
_LEAST_BITS = {"e4m3": 0x38D1B717, "e2m1": 0x01C00000}
# ceil(log2(x / largest)) + 127 is (bits(x) + this) >> 23: the carry of a mantissa above the format's, less
# its exponent. It agrees with dividing first, whose rounding never crosses a power of two.
_ROUNDING_BITS = {"e4m3": 0x001FFFFF - (8 << 23), "e2m1": 0x003FFFFF - (2 << 23)}
_INFINITY_BITS = 0x7F800000


@dataclass(frozen=True)
class Work:
    """UB of one quantiser, first index the stage: see :meth:`RowQuantiser.allocate`."""

    amax: Any
    inverse: Any
    values: Any
    scales: Any


@dataclass(frozen=True, kw_only=True)
class RowQuantiser:
    """Quantises rows of ``hidden`` values (a multiple of 32) that lie in UB as ``source``.

    ``scales`` says how scales are written: ``fp32``, or ``e8m0`` pairs (64 values each; the high byte of an
    odd tail is 0), which needs ``round_sf``. ``col_major`` lays them [blocks, rows], not [rows, blocks].
    ``values`` and ``computed`` say which results are wanted: without ``values`` only scales are made, without
    ``computed`` the scales are given (fp32, row-major) and only values are made.
    """

    hidden: int
    source: Source
    fmt: Format
    round_sf: bool
    scales: Scales
    col_major: bool = False
    values: bool = True
    computed: bool = True

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
        """UB bytes that a row of a stage takes beside the source itself."""
        value_bits = {"e4m3": 8, "e2m1": 4}[self.fmt] if self.values else 0
        scratch = 4 * self._block_pitch * (2 if self.computed else 1)
        if self.col_major:
            scales = self.scale_columns * (2 if self.scales == "e8m0" else 4)
        else:
            scales = self._block_pitch * (1 if self.scales == "e8m0" else 4)
        return self.pitch * value_bits // 8 + scratch + scales

    @property
    def _block_pitch(self) -> int:
        return padded(self.blocks)

    def fixed_bytes(self, stages: int = 4) -> int:
        """UB bytes that do not grow with the rows: rounding columns of scales up to 32 bytes may add them."""
        return stages * self.scale_columns * 32 if self.col_major else 0

    def allocate(self, stages: int, rows: int) -> Work:
        """UB for ``stages`` stages of ``rows`` rows; call it where buffers may be allocated."""
        import tilelang.ascend.language as T

        scratch = (stages, rows, self._block_pitch)
        inverse = T.alloc_shared(scratch, "float32")
        amax = T.alloc_shared(scratch, "float32") if self.computed else inverse
        values = (
            T.alloc_shared((stages, rows, self.pitch), TILELANG_FORMAT[self.fmt]) if self.values else inverse
        )
        if self.col_major and self.scales == "e8m0":
            scales = T.alloc_shared((stages, self.scale_columns, padded(rows, 16)), "uint16")
        elif self.col_major:
            scales = T.alloc_shared((stages, self.scale_columns, padded(rows, 8)), "float32")
        elif self.scales == "e8m0":
            scales = T.alloc_shared((stages, rows, self._block_pitch // 2), "uint16")
        else:
            scales = T.alloc_shared(scratch, "float32")
        return Work(amax, inverse, values, scales)

    def rows(self) -> Any:
        """A macro ``(source_ub, work, slot, count)`` for use inside a ``T.SimdVF``.

        Quantises rows 0 to ``count`` of stage ``slot`` of ``source_ub`` [stages, rows, pitch] into
        ``work``. What the same vector function has stored there needs a ``VST_VLD`` barrier before.
        """
        import tilelang.ascend.language as T

        amax = _amax_macro(self)
        scale = _scale_macro(self) if self.computed else _given_scale_macro(self)
        convert = _e2m1_macro(self) if self.fmt == "e2m1" else _e4m3_macro(self)

        @T.macro
        def quantise(source_ub: Any, work: Any, slot: Any, count: Any) -> None:
            if self.computed:
                for row in T.serial(T.cast(count, "uint16")):
                    amax(source_ub, work, slot, T.cast(row, "int32"))
                T.simd.mem_bar("VST_VLD")
            for row in T.serial(T.cast(count, "uint16")):
                scale(work, slot, T.cast(row, "int32"))
            if self.values:
                T.simd.mem_bar("VST_VLD")
                for row in T.serial(T.cast(count, "uint16")):
                    convert(source_ub, work, slot, T.cast(row, "int32"))

        return quantise

    def store(self) -> Any:
        """A macro ``(work, slot, first, count, values, scales)``: rows of a stage to global memory, on MTE3.

        ``values`` and ``scales`` are the call's tensors; one that is not wanted may be anything.
        """
        import tilelang.ascend.language as T

        hidden, columns = self.hidden, self.scale_columns

        @T.macro
        def store(work: Any, slot: Any, first: Any, count: Any, values: Any, scales: Any) -> None:
            if self.values:
                T.copy(work.values[slot, 0:count, 0:hidden], values[first : first + count, 0:hidden])
            if self.computed:
                if self.col_major:
                    T.copy(work.scales[slot, 0:columns, 0:count], scales[0:columns, first : first + count])
                else:
                    T.copy(work.scales[slot, 0:count, 0:columns], scales[first : first + count, 0:columns])

        return store


def _amax_macro(quantiser: RowQuantiser) -> Any:
    """Bits of the largest magnitude of each block of a row, to ``work.amax``.

    Adjacent values are folded together until a block fills exactly one 32-byte group of lanes.
    """
    import tilelang.ascend.language as T

    @T.macro
    def bf16_chunk(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        magnitude = T.simd.vdup(T.uint16(0x7FFF), "uint16")
        even, odd = T.simd.vld2(source_ub[slot, row, at], dist="DINTLV_B16")
        pairs = T.simd.vmax(
            T.simd.vand(T.reinterpret("uint16x128", even), magnitude),
            T.simd.vand(T.reinterpret("uint16x128", odd), magnitude),
        )
        largest = T.simd.vcgmax(pairs)
        # A bf16 above 16 zero bits is the same number as fp32.
        wide, _ = T.simd.vintlv(T.simd.vdup(T.uint16(0), "uint16"), largest)
        return T.reinterpret("float32x64", wide)

    @T.macro
    def fp32_half(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        magnitude = T.simd.vdup(T.uint32(0x7FFFFFFF), "uint32")
        even, odd = T.simd.vld2(source_ub[slot, row, at], dist="DINTLV_B32")
        return T.simd.vmax(
            T.simd.vand(T.reinterpret("uint32x64", even), magnitude),
            T.simd.vand(T.reinterpret("uint32x64", odd), magnitude),
        )

    @T.macro
    def fp32_chunk(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        low = fp32_half(source_ub, slot, row, at)
        high = fp32_half(source_ub, slot, row, at + CHUNK // 2)
        even, odd = T.simd.vdintlv(low, high)
        return T.reinterpret("float32x64", T.simd.vcgmax(T.simd.vmax(even, odd)))

    chunk_amax = bf16_chunk if quantiser.source == "bf16" else fp32_chunk
    per_chunk = CHUNK // BLOCK

    @T.macro
    def amax(source_ub: Any, work: Any, slot: Any, row: Any) -> None:
        eight = T.simd.pset(32, "PAT_VL8")
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            largest = chunk_amax(source_ub, slot, row, T.cast(chunk, "int32") * CHUNK)
            T.simd.vsts(
                work.amax[slot, row, T.cast(chunk, "int32") * per_chunk],
                largest,
                eight,
                dist="NORM_B32",
                extent=per_chunk,
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


def _scale_macro(quantiser: RowQuantiser) -> Any:
    """Scales of a row as they are written, and their inverses to ``work.inverse``."""
    import tilelang.ascend.language as T

    blocks, columns = quantiser.blocks, quantiser.scale_columns
    vectors = padded(blocks) // VECTOR_LANES
    packed = quantiser.scales == "e8m0"
    scale_of = power_scale(quantiser.fmt) if quantiser.round_sf else quotient_scale(quantiser.fmt)

    @T.macro
    def as_float(scale: Any) -> Any:
        return T.reinterpret("float32x64", T.simd.vshls(scale, 23)) if quantiser.round_sf else scale

    @T.macro
    def as_pairs(scale: Any, left: Any) -> Any:
        """64 scales as 32 pairs in the lowest lanes; those from ``left`` on are 0."""
        known = T.simd.vadds(scale, T.uint32(0), T.simd.update_mask(T.cast(left, "uint32"), 32))
        return T.reinterpret("uint16x128", T.simd.vpack(T.simd.vpack(known)))

    @T.macro
    def store_pairs(work: Any, slot: Any, row: Any, scale: Any, first: Any) -> None:
        pairs = as_pairs(scale, blocks - first)
        if quantiser.col_major:
            pitch = work.scales.shape[2]
            lane = T.reinterpret("uint16x128", T.simd.vci(T.int16(0), "int16"))
            index = T.simd.vmuls(lane, T.uint16(pitch))
            T.simd.vscatter(
                pairs,
                work.scales[slot, T.truncdiv(first, 2), row],
                index,
                T.simd.update_mask(T.cast(T.min(columns - T.truncdiv(first, 2), 32), "uint32"), 16),
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
    def store_floats(work: Any, slot: Any, row: Any, scale: Any, first: Any) -> None:
        if quantiser.col_major:
            pitch = work.scales.shape[2]
            lane = T.reinterpret("uint32x64", T.simd.vci(T.int32(0), "int32"))
            T.simd.vscatter(
                scale,
                work.scales[slot, first, row],
                T.simd.vmuls(lane, T.uint32(pitch)),
                T.simd.update_mask(T.cast(blocks - first, "uint32"), 32),
            )
        else:
            T.simd.vsts(work.scales[slot, row, first], scale)

    @T.macro
    def scale_row(work: Any, slot: Any, row: Any) -> None:
        for vector in T.serial(T.uint16(vectors)):
            first = T.cast(vector, "int32") * VECTOR_LANES
            bits = T.reinterpret("uint32x64", T.simd.vld(work.amax[slot, row, first]))
            scale, inverse = scale_of(bits)
            if quantiser.values:
                T.simd.vsts(work.inverse[slot, row, first], inverse)
            if packed:
                store_pairs(work, slot, row, scale, first)
            else:
                store_floats(work, slot, row, as_float(scale), first)

    return scale_row


def _given_scale_macro(quantiser: RowQuantiser) -> Any:
    """Inverses of the fp32 scales of a row in ``work.scales``, to ``work.inverse``: 1 / scale."""
    import tilelang.ascend.language as T

    @T.macro
    def invert_row(work: Any, slot: Any, row: Any) -> None:
        for vector in T.serial(T.uint16(padded(quantiser.blocks) // VECTOR_LANES)):
            first = T.cast(vector, "int32") * VECTOR_LANES
            one = T.simd.vdup(T.float32(1.0), "float32")
            inverse = T.simd.vdiv(one, T.simd.vld(work.scales[slot, row, first]))
            T.simd.vsts(work.inverse[slot, row, first], inverse)

    return invert_row


def _e4m3_macro(quantiser: RowQuantiser) -> Any:
    """Values of a row times the inverse scales, to ``work.values`` as e4m3.

    Register k of four holds the values 4i+k, which is where quarter k of the conversion puts its bytes.
    """
    import tilelang.ascend.language as T

    @T.macro
    def bf16_quarters(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        even, odd = T.simd.vld2(source_ub[slot, row, at], dist="DINTLV_B16")
        return (
            T.simd.vcvt(even, "float32", part=0),
            T.simd.vcvt(odd, "float32", part=0),
            T.simd.vcvt(even, "float32", part=1),
            T.simd.vcvt(odd, "float32", part=1),
        )

    @T.macro
    def fp32_quarters(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        low_even, low_odd = T.simd.vld2(source_ub[slot, row, at], dist="DINTLV_B32")
        high_even, high_odd = T.simd.vld2(source_ub[slot, row, at + CHUNK // 2], dist="DINTLV_B32")
        first, third = T.simd.vdintlv(low_even, high_even)
        second, fourth = T.simd.vdintlv(low_odd, high_odd)
        return first, second, third, fourth

    quarters_of = bf16_quarters if quantiser.source == "bf16" else fp32_quarters

    @T.macro
    def quarter(value: Any, inverse: Any, part: int) -> Any:
        scaled = T.simd.vcvt(T.simd.vmul(value, inverse), TILELANG_FORMAT["e4m3"], part=part)
        return T.reinterpret("uint8x256", scaled)

    @T.macro
    def convert(source_ub: Any, work: Any, slot: Any, row: Any) -> None:
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            at = T.cast(chunk, "int32") * CHUNK
            inverse = T.simd.vld(work.inverse[slot, row, T.cast(chunk, "int32") * 8], dist="E2B_B32")
            first, second, third, fourth = quarters_of(source_ub, slot, row, at)
            merged = T.simd.vor(
                T.simd.vor(quarter(first, inverse, 0), quarter(second, inverse, 1)),
                T.simd.vor(quarter(third, inverse, 2), quarter(fourth, inverse, 3)),
            )
            T.simd.vsts(
                work.values[slot, row, at], T.reinterpret("float8_e4m3fnx256", merged), dist="NORM_B8"
            )

    return convert


def _e2m1_macro(quantiser: RowQuantiser) -> Any:
    """Values of a row times the inverse scales, to ``work.values`` as e2m1 pairs.

    Only bf16 converts to fp4. Rounding to bf16 before that would round twice; instead the lower half of an
    fp32 is dropped and the last bit kept says whether it was zero (round to odd).
    """
    import tilelang.ascend.language as T

    @T.macro
    def load(source_ub: Any, slot: Any, row: Any, at: Any) -> Any:
        if quantiser.source == "bf16":
            return T.simd.vcvt(T.simd.vld(source_ub[slot, row, at], dist="UNPK_B16"), "float32", part=0)
        return T.simd.vld(source_ub[slot, row, at])

    @T.macro
    def half(source_ub: Any, work: Any, slot: Any, row: Any, at: Any, spread: Any) -> None:
        """128 values; ``spread`` has each of their four inverse scales in 16 adjacent lanes."""
        low_inverse, high_inverse = T.simd.vintlv(spread, spread)
        low = T.simd.vmul(load(source_ub, slot, row, at), low_inverse)
        high = T.simd.vmul(load(source_ub, slot, row, at + VECTOR_LANES), high_inverse)
        dropped, kept = T.simd.vdintlv(T.reinterpret("uint16x128", low), T.reinterpret("uint16x128", high))
        odd = T.reinterpret("bfloat16x128", T.simd.vor(kept, T.simd.vmins(dropped, T.uint16(1))))
        T.simd.vsts(work.values[slot, row, at], T.simd.vcvt(odd, TILELANG_FORMAT["e2m1"]), dist="PK4_B32")

    @T.macro
    def convert(source_ub: Any, work: Any, slot: Any, row: Any) -> None:
        for chunk in T.serial(T.uint16(quantiser.pitch // CHUNK)):
            at = T.cast(chunk, "int32") * CHUNK
            inverse = T.simd.vld(work.inverse[slot, row, T.cast(chunk, "int32") * 8], dist="E2B_B32")
            low, high = T.simd.vintlv(inverse, inverse)
            half(source_ub, work, slot, row, at, low)
            half(source_ub, work, slot, row, at + CHUNK // 2, high)

    return convert
