"""Block values: rows in UB of bf16, fp32, e4m3 or e2m1, read into vector registers as fp32.

e4m3 and e2m1 rows come with one scale per 32 values, of which :class:`ScaleReader` makes fp32. Values are
read 256 at a time in quarters (register k holds the values 4i+k, which is how conversions to 8 bits place
them) or 128 at a time in order.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

import msgspec

from kaas.kernel_library.vector.row_plan import VECTOR_LANES, padded

BLOCK = 32
"""Values that share one scale."""
CHUNK = 256
"""Values that are read at a time: 8 blocks."""

ValueType = Literal["bf16", "fp32", "e4m3", "e2m1"]
ScaleType = Literal["fp32", "e8m0"]

TILELANG_VALUE = {"bf16": "bfloat16", "fp32": "float32", "e4m3": "float8_e4m3fn", "e2m1": "float4_e2m1fn"}
VALUE_BITS = {"bf16": 16, "fp32": 32, "e4m3": 8, "e2m1": 4}
_SMALLEST_SCALE_BITS = 0x00400000
_NAN_BITS = 0x7FC00000


def even(extent: Any) -> Any:
    """``extent``, which is even, in a form that shows it: rows of e2m1 are copied in whole bytes only."""
    import tilelang.ascend.language as T

    return T.truncdiv(extent, 2) * 2


def is_quantised(dtype: ValueType) -> bool:
    """Whether values of ``dtype`` come with scales."""
    return dtype in ("e4m3", "e2m1")


def quarters_of(dtype: ValueType, *, share: int = 1, scaled: bool = True) -> Any:
    """A macro ``(held, slot, row, at)``: values ``at`` to ``at + 256`` of a row as four fp32 registers.

    ``held`` is the UB buffer [stages, rows, pitch]; for a quantised ``dtype`` the pair of it and the fp32
    scales [stages, rows, blocks], with which the values are multiplied; ``share`` rows have a row of scales
    in common. Without ``scaled`` it is the buffer alone.
    """
    import tilelang.ascend.language as T

    @T.macro
    def widened(even: Any, odd: Any) -> Any:
        return (
            T.simd.vcvt(even, "float32", part=0),
            T.simd.vcvt(odd, "float32", part=0),
            T.simd.vcvt(even, "float32", part=1),
            T.simd.vcvt(odd, "float32", part=1),
        )

    @T.macro
    def bf16(held: Any, slot: Any, row: Any, at: Any) -> Any:
        even, odd = T.simd.vld2(held[slot, row, at], dist="DINTLV_B16")
        return widened(even, odd)

    @T.macro
    def fp32(held: Any, slot: Any, row: Any, at: Any) -> Any:
        low_even, low_odd = T.simd.vld2(held[slot, row, at], dist="DINTLV_B32")
        high_even, high_odd = T.simd.vld2(held[slot, row, at + CHUNK // 2], dist="DINTLV_B32")
        first, third = T.simd.vdintlv(low_even, high_even)
        second, fourth = T.simd.vdintlv(low_odd, high_odd)
        return first, second, third, fourth

    @T.macro
    def e4m3(values: Any, slot: Any, row: Any, at: Any) -> Any:
        packed = T.simd.vld(values[slot, row, at])
        return (
            T.simd.vcvt(packed, "float32", part=0),
            T.simd.vcvt(packed, "float32", part=1),
            T.simd.vcvt(packed, "float32", part=2),
            T.simd.vcvt(packed, "float32", part=3),
        )

    @T.macro
    def e2m1(values: Any, slot: Any, row: Any, at: Any) -> Any:
        low = T.simd.vcvt(T.simd.vld(values[slot, row, at], dist="UNPK4_B8"), "bfloat16", part=0)
        high = T.simd.vcvt(
            T.simd.vld(values[slot, row, at + CHUNK // 2], dist="UNPK4_B8"), "bfloat16", part=0
        )
        even, odd = T.simd.vdintlv(low, high)
        return widened(even, odd)

    stored = e4m3 if dtype == "e4m3" else e2m1

    @T.macro
    def multiplied(held: Any, slot: Any, row: Any, at: Any) -> Any:
        values, scales = held
        scale = T.simd.vld(scales[slot, T.truncdiv(row, share), T.truncdiv(at, BLOCK)], dist="E2B_B32")
        first, second, third, fourth = stored(values, slot, row, at)
        return (
            T.simd.vmul(first, scale),
            T.simd.vmul(second, scale),
            T.simd.vmul(third, scale),
            T.simd.vmul(fourth, scale),
        )

    plain = {"bf16": bf16, "fp32": fp32, "e4m3": e4m3, "e2m1": e2m1}[dtype]
    return multiplied if scaled and is_quantised(dtype) else plain


def halves_of(dtype: ValueType, *, share: int = 1, scaled: bool = True) -> Any:
    """A macro ``(held, slot, row, at)``: values ``at`` to ``at + 128`` of a row as two fp32 registers.

    ``held``, ``share`` and ``scaled`` as for :func:`quarters_of`.
    """
    import tilelang.ascend.language as T

    @T.macro
    def bf16(held: Any, slot: Any, row: Any, at: Any) -> Any:
        return (
            T.simd.vcvt(T.simd.vld(held[slot, row, at], dist="UNPK_B16"), "float32", part=0),
            T.simd.vcvt(T.simd.vld(held[slot, row, at + VECTOR_LANES], dist="UNPK_B16"), "float32", part=0),
        )

    @T.macro
    def fp32(held: Any, slot: Any, row: Any, at: Any) -> Any:
        return T.simd.vld(held[slot, row, at]), T.simd.vld(held[slot, row, at + VECTOR_LANES])

    @T.macro
    def e4m3(values: Any, slot: Any, row: Any, at: Any) -> Any:
        low = T.simd.vld(values[slot, row, at], dist="UNPK4_B8")
        high = T.simd.vld(values[slot, row, at + VECTOR_LANES], dist="UNPK4_B8")
        return T.simd.vcvt(low, "float32", part=0), T.simd.vcvt(high, "float32", part=0)

    @T.macro
    def e2m1(values: Any, slot: Any, row: Any, at: Any) -> Any:
        packed = T.simd.vcvt(T.simd.vld(values[slot, row, at], dist="UNPK4_B8"), "bfloat16", part=0)
        low, high = T.simd.vintlv(
            T.simd.vcvt(packed, "float32", part=0), T.simd.vcvt(packed, "float32", part=1)
        )
        return low, high

    stored = e4m3 if dtype == "e4m3" else e2m1

    @T.macro
    def multiplied(held: Any, slot: Any, row: Any, at: Any) -> Any:
        values, scales = held
        block, scale_row = T.truncdiv(at, BLOCK), T.truncdiv(row, share)
        lower = T.simd.pset(32, "PAT_VL32")
        low, high = stored(values, slot, row, at)
        low_scale = T.simd.vsel(
            T.simd.vld(scales[slot, scale_row, block], dist="BRC_B32"),
            T.simd.vld(scales[slot, scale_row, block + 1], dist="BRC_B32"),
            lower,
        )
        high_scale = T.simd.vsel(
            T.simd.vld(scales[slot, scale_row, block + 2], dist="BRC_B32"),
            T.simd.vld(scales[slot, scale_row, block + 3], dist="BRC_B32"),
            lower,
        )
        return T.simd.vmul(low, low_scale), T.simd.vmul(high, high_scale)

    plain = {"bf16": bf16, "fp32": fp32, "e4m3": e4m3, "e2m1": e2m1}[dtype]
    return multiplied if scaled and is_quantised(dtype) else plain


class ScaleReader(msgspec.Struct, frozen=True, kw_only=True):
    """Scales of rows of quantised values, from global memory to fp32 in UB.

    ``columns`` values of a row are read at a time. ``dtype`` and ``col_major`` say how the scales lie in
    global memory: fp32 or e8m0 pairs, [rows, blocks] or [blocks, rows] (pairs of blocks for e8m0). e8m0 0 is
    2^-127 and 255 is NaN.
    """

    columns: int
    dtype: ScaleType
    col_major: bool = False

    @property
    def block_pitch(self) -> int:
        """fp32 scales from row to row in UB."""
        return padded(-(-self.columns // BLOCK))

    @property
    def row_bytes(self) -> int:
        """UB bytes that a row of a stage takes."""
        raw = 0 if self._direct else self._raw_columns * (2 if self.dtype == "e8m0" else 4)
        return 4 * self.block_pitch + raw

    @property
    def fixed_bytes_per_stage(self) -> int:
        """UB bytes of a stage that do not grow with its rows."""
        return self._raw_columns * 32 if self.col_major else 0

    @property
    def _direct(self) -> bool:
        return self.dtype == "fp32" and not self.col_major

    @property
    def _raw_columns(self) -> int:
        if self.dtype == "fp32":
            return self.block_pitch
        # A vector load of pairs by row reads twice what it uses, the last one too.
        return self.block_pitch // 2 + (0 if self.col_major else 32)

    def allocate(self, stages: int, rows: int) -> tuple[Any, Any]:
        """The fp32 scales [stages, rows, block_pitch], and what is loaded from global memory."""
        import tilelang.ascend.language as T

        scales = T.alloc_shared((stages, rows, self.block_pitch), "float32")
        if self._direct:
            return scales, scales
        raw_type, per_block = ("uint16", 16) if self.dtype == "e8m0" else ("float32", 8)
        if self.col_major:
            shape = (stages, self._raw_columns, padded(rows, per_block))
        else:
            shape = (stages, rows, self._raw_columns)
        return scales, T.alloc_shared(shape, raw_type)

    def load(self) -> Any:
        """A macro ``(held, slot, source, row, rows, column, columns)`` that loads a tile's scales, on MTE2.

        ``column`` is the first value of the tile, a multiple of 64, and ``columns`` how many there are.
        """
        import tilelang.ascend.language as T

        per_element = BLOCK * (2 if self.dtype == "e8m0" else 1)

        @T.macro
        def load(held: Any, slot: Any, source: Any, row: Any, rows: Any, column: Any, columns: Any) -> None:
            first = T.truncdiv(column, per_element)
            count = T.truncdiv(columns + per_element - 1, per_element)
            if self.col_major:
                T.copy(source[first : first + count, row : row + rows], held[1][slot, 0:count, 0:rows])
            else:
                T.copy(source[row : row + rows, first : first + count], held[1][slot, 0:rows, 0:count])

        return load

    def decode(self) -> Any:
        """A macro ``(held, slot, rows)`` for a ``T.SimdVF``: makes fp32 of what was loaded.

        Ends without a barrier; what reads the scales in the same vector function needs a ``VST_VLD`` one.
        """
        import tilelang.ascend.language as T

        scale_of_exponents = exponent_scale()

        @T.macro
        def gathered(raw: Any, slot: Any, row: Any, first: Any) -> Any:
            """64 scales of a row out of columns."""
            pitch = raw.shape[2]
            if self.dtype == "fp32":
                lane = T.reinterpret("uint32x64", T.simd.vci(T.int32(0), "int32"))
                return T.simd.vgather2(raw[slot, first, row], T.simd.vmuls(lane, T.uint32(pitch)))
            lane = T.reinterpret("uint16x128", T.simd.vci(T.int16(0), "int16"))
            # Lanes behind the 64 wanted scales stay at the first pair.
            index = T.simd.vmuls(T.simd.vshrs(lane, 1), T.uint16(pitch), T.simd.update_mask(T.uint32(64), 16))
            pairs = T.simd.vunpack(T.simd.vgather2(raw[slot, T.truncdiv(first, 2), row], index))
            odd = T.simd.vand(T.simd.vunpack(lane), T.simd.vdup(T.uint32(1), "uint32"))
            shift = T.reinterpret("int32x64", T.simd.vshls(odd, 3))
            return T.simd.vand(T.simd.vshr(pairs, shift), T.simd.vdup(T.uint32(0xFF), "uint32"))

        @T.macro
        def exponents(raw: Any, slot: Any, row: Any, first: Any) -> Any:
            if self.col_major:
                return gathered(raw, slot, row, first)
            # 32 pairs in the lower lanes of the upsampled register, each once in either half of a lane pair.
            pairs = T.simd.vunpack(T.simd.vld(raw[slot, row, T.truncdiv(first, 2)], dist="US_B16"))
            lane = T.reinterpret("uint32x64", T.simd.vci(T.int32(0), "int32"))
            odd = T.simd.vand(lane, T.simd.vdup(T.uint32(1), "uint32"))
            shift = T.reinterpret("int32x64", T.simd.vshls(odd, 3))
            return T.simd.vand(T.simd.vshr(pairs, shift), T.simd.vdup(T.uint32(0xFF), "uint32"))

        @T.macro
        def decode(held: Any, slot: Any, rows: Any) -> None:
            scales, raw = held
            for row in T.serial(T.cast(rows, "uint16")):
                for vector in T.serial(T.uint16(self.block_pitch // VECTOR_LANES)):
                    first = T.cast(vector, "int32") * VECTOR_LANES
                    if self.dtype == "fp32":
                        T.simd.vsts(
                            scales[slot, T.cast(row, "int32"), first],
                            gathered(raw, slot, T.cast(row, "int32"), first),
                        )
                    else:
                        T.simd.vsts(
                            scales[slot, T.cast(row, "int32"), first],
                            scale_of_exponents(exponents(raw, slot, T.cast(row, "int32"), first)),
                        )

        return decode

    @property
    def needs_decoding(self) -> bool:
        """Whether what is loaded is not yet the fp32 scales by row."""
        return not self._direct


def exponent_scale() -> Any:
    """A macro of e8m0 bytes in uint32 lanes: the scales as fp32; 0 is 2^-127 and 255 is NaN."""
    import tilelang.ascend.language as T

    @T.macro
    def scale(exponent: Any) -> Any:
        normal = T.simd.vshls(exponent, 23)
        above = T.simd.vsel(
            normal,
            T.simd.vdup(T.uint32(_SMALLEST_SCALE_BITS), "uint32"),
            T.simd.vcmps(exponent, T.uint32(0), op="ne"),
        )
        return T.reinterpret(
            "float32x64",
            T.simd.vsel(
                T.simd.vdup(T.uint32(_NAN_BITS), "uint32"),
                above,
                T.simd.vcmps(exponent, T.uint32(255), op="eq"),
            ),
        )

    return scale


def float_exponent() -> Any:
    """A macro of fp32 scales (uint32x64 bits) to e8m0 bytes; what is no power of two becomes 255, NaN.

    Zero counts as the least one, as upstream's packing lets it pass.
    """
    import tilelang.ascend.language as T

    @T.macro
    def exponent(bits: Any) -> Any:
        power = T.simd.vshrs(bits, 23)
        rest = T.simd.vand(bits, T.simd.vdup(T.uint32(0x807FFFFF), "uint32"))
        # 2^-127 has no exponent of its own in fp32.
        odd = T.simd.vsel(
            T.simd.vdup(T.uint32(0), "uint32"),
            rest,
            T.simd.vcmps(bits, T.uint32(_SMALLEST_SCALE_BITS), op="eq"),
        )
        return T.simd.vsel(
            power, T.simd.vdup(T.uint32(255), "uint32"), T.simd.vcmps(odd, T.uint32(0), op="eq")
        )

    return exponent
