"""Lane sums: running sums over the lanes of int32 registers, 64 at a time."""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macro below is a language of its own: what it annotates and calls are no Python types.

from typing import Any

from kaas.kernel_library.vector.row_plan import VECTOR_LANES

LANE_SUMS_SOURCE = "kaas.kernel_library.routing.lane_sums"
"""For ``Family.sources`` of a family that uses this module."""


def running_sums() -> Any:
    """A macro from an int32 register to the sums of its lanes 0 to j, in each lane j."""
    import tilelang.ascend.language as T

    @T.macro
    def run(values: Any) -> Any:
        sums = T.simd.alloc_var("int32")
        sums = values
        lanes = T.simd.vci(T.int32(0), "int32")
        # Sums of ever longer runs of lanes: 2, 4, 8 .. 64.
        for step in T.unroll(6, explicit=True):
            distance = T.simd.vdup(T.int32(1) << step, "int32")
            there = T.simd.vcmp(lanes, distance, op="ge")
            other = T.simd.vselr(sums, T.simd.vsub(lanes, distance))
            sums = T.simd.vadd(
                sums, T.simd.vsel(T.reinterpret(other, "int32x64"), T.simd.vdup(0, "int32"), there)
            )
        return sums

    return run


def last_lane(values: Any) -> Any:
    """The last lane of an int32 register, in every lane."""
    import tilelang.ascend.language as T

    return T.reinterpret(T.simd.vselr(values, T.simd.vdup(VECTOR_LANES - 1, "int32")), "int32x64")
