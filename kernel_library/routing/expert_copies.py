"""Expert copies: which physical expert a token meets, where experts are duplicated over the ranks.

Logical expert e has ``logical_count[e]`` copies, physical experts ``to_physical_map[e]``; token t on
expert-parallel rank r takes copy (r + 23333 t) mod ``logical_count[e]``. Facts: TileKernels' routing kernels.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

from kaas.kernel_library.vector.whole_numbers import remainder

EXPERT_COPIES_SOURCE = "kaas.kernel_library.routing.expert_copies"
"""For ``Family.sources`` of a family that uses this module."""

MAX_COPIES = 256
"""Products of two remainders stay exact in fp32 up to here."""
SPREAD = 23333


def physical_experts(copies: int) -> Any:
    """A macro ``(table, counts, indices, token, ep_rank)`` from int32 logical to physical experts of a row.

    ``table`` is the map in UB, ``copies`` wide, row after row; ``counts`` and ``ep_rank`` (below 2^24) are
    not looked at if ``copies`` is 1. Negative indices become -1.
    """
    import tilelang.ascend.language as T

    rest_of = remainder()

    @T.macro
    def run(table: Any, counts: Any, indices: Any, token: Any, ep_rank: Any) -> Any:
        is_expert = T.simd.vcmps(indices, 0, op="ge")
        place = T.simd.alloc_var("int32")
        place = T.simd.vmuls(indices, copies)
        if copies > 1:
            # At most 2^24 at a time, so that fp32 holds every step exactly.
            counted = T.simd.vgather2(counts[0], T.reinterpret(indices, "uint32x64"), is_expert)
            divisor = T.simd.vcvt(T.simd.vmaxs(counted, 1), "float32")
            number = T.simd.vdup(token, "int32")
            high = T.simd.vcvt(T.simd.vshrs(number, 12), "float32")
            low = T.simd.vcvt(T.simd.vand(number, T.simd.vdup(4095, "int32")), "float32")
            rank = rest_of(T.simd.vcvt(T.simd.vdup(ep_rank, "int32"), "float32"), divisor)
            turn = rest_of(T.simd.vadd(T.simd.vmuls(rest_of(high, divisor), 4096.0), low), divisor)
            copy = rest_of(T.simd.vadd(T.simd.vmuls(turn, float(SPREAD)), rank), divisor)
            place = T.simd.vadd(place, T.simd.vcvt(copy, "int32"))
        found = T.simd.vgather2(table[0], T.reinterpret(place, "uint32x64"), is_expert)
        return T.simd.vsel(found, T.simd.vdup(-1, "int32"), is_expert)

    return run
