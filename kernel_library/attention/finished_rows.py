"""Finished rows: the running sums of rows of queries become their outputs and log-sum-exps.

A row that sees no key has a sum of exponentials of 0. Its output is 0; its log-sum-exp is +inf in what a
caller gets, and -inf in a part that is still to be merged with others, where it then weighs nothing.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.cube.cube_pipeline import VECTOR_LANES


def finished_rows(rows: int, d_v: int, lse_pitch: int, *, as_part: bool) -> Any:
    """A macro ``finish(state)``: one vector function over the first ``rows`` rows of a state.

    ``state.values_ub`` [rows * d_v] fp32 is divided by ``state.total`` and rounded to ``state.result``,
    bf16; ``as_part`` keeps it in place instead. ``state.lse`` gets ``state.largest`` + ln ``state.total``,
    one value every ``lse_pitch``.
    """
    import tilelang.ascend.language as T

    lse_of_none = float("-inf") if as_part else float("inf")

    @T.macro
    def finish(state: Any) -> None:
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(rows)):
                row = T.cast(row_16, "int32")
                total = T.simd.vld(state.total[row], dist="BRC_B32")
                none = T.simd.vcmps(total, T.float32(0.0), op="eq")
                zero = T.simd.vdup(T.float32(0.0), "float32")
                inverse = T.simd.vdiv(T.simd.vdup(T.float32(1.0), "float32"), total)
                for i in T.unroll(d_v // VECTOR_LANES, explicit=True):
                    at = row * d_v + i * VECTOR_LANES
                    value = T.simd.vmul(T.simd.vld(state.values_ub[at]), inverse)
                    value = T.simd.vsel(zero, value, none)
                    if as_part:
                        T.simd.vsts(state.values_ub[at], value)
                    else:
                        narrow = T.simd.vcvt(value, "bfloat16", sat=False, part=0)
                        T.simd.vsts(state.result[at], narrow, dist="PK_B32")
                lse = T.simd.vadd(T.simd.vld(state.largest[row], dist="BRC_B32"), T.simd.vln(total))
                lse = T.simd.vsel(T.simd.vdup(T.float32(lse_of_none), "float32"), lse, none)
                T.simd.vsts(state.lse[row * lse_pitch], lse, dist="ONEPT_B32")

    return finish
