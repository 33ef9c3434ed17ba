"""Expert groups: the worth of a group is the sum of its best experts; only the best groups stay open.

A group is a run of consecutive experts. Lane g of a register stands for group g.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.routing.lane_topk import lane_indices
from kaas.kernel_library.vector.row_plan import VECTOR_LANES

EXPERT_GROUPS_SOURCE = "kaas.kernel_library.routing.expert_groups"
"""For ``Family.sources`` of a family that uses this module."""

MAX_GROUPS = VECTOR_LANES


def is_group(groups: int) -> Any:
    """The predicate of the lanes that stand for a group."""
    import tilelang.ascend.language as T

    return T.simd.vcmps(T.simd.vci(T.int32(0), "int32"), groups, op="lt")


def group_sums(groups: int, size: int, summed: int) -> Any:
    """A macro ``(values, slot, row)``: the sums of the best one or two of each group of an fp32 row."""
    import tilelang.ascend.language as T

    @T.macro
    def run(values: Any, slot: Any, row: Any) -> Any:
        lanes = is_group(groups)
        origin = T.simd.vmuls(T.simd.vci(T.int32(0), "int32"), size)
        best = T.simd.alloc_var("float32")
        second = T.simd.alloc_var("float32")
        best = T.simd.vgather2(values[slot, row, 0], T.reinterpret(origin, "uint32x64"), lanes)
        if summed == 2:
            second = T.simd.vdup(T.float32(float("-inf")), "float32")
        for member in T.serial(T.uint16(1), T.uint16(size)):
            place = T.simd.vadds(origin, T.cast(member, "int32"))
            value = T.simd.vgather2(values[slot, row, 0], T.reinterpret(place, "uint32x64"), lanes)
            if summed == 2:
                second = T.simd.vmax(second, T.simd.vmin(best, value))
            best = T.simd.vmax(best, value)
        if summed == 2:
            best = T.simd.vadd(best, second)
        return best

    return run


def group_of_lanes(vector: Any, size: int) -> Any:
    """int32 groups of the 64 experts of a row's ``vector``-th register."""
    import tilelang.ascend.language as T

    # Half an expert to the right of every boundary: the rounding of 1 / size cannot cross one.
    middle = T.simd.vadds(T.simd.vcvt(lane_indices(vector), "float32"), 0.5)
    return T.simd.vcvt(T.simd.vmuls(middle, 1.0 / size), "int32", round="ROUND_F")
