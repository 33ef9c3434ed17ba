"""Core barrier: what every vector core has stored in global memory is there for every cube core's loads.

For kernels of two phases in one launch, the second of which reads on the cube cores what the vector cores of
the first one wrote. Both go through DMA, which meets in L2; no data cache lies in between. A store pipe says
that it has arrived when its stores have ended. The counters of all vector cores rise when the last one has
arrived, and each then lets its cube core's load pipe go on. All blocks must be on the device at once, which
one block per cube core is.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.cube.cube_pipeline import CORE_PAIR, SECOND_VECTOR_CORE

CORE_BARRIER_SOURCE = "kaas.kernel_library.cube.core_barrier"
"""For ``Family.sources`` of a family that uses this module."""

# Behind the ids that epilogues and widened operands use within a pair of cores.
ALL_STORED = 12
PAIR_MAY_LOAD = 13


class CoreBarrier(msgspec.Struct, frozen=True):
    """Macros of the two sides: ``vector_side()`` after the stores, ``cube_side()`` before the loads.

    Every core of a kind runs its side once, whether it had work before or not.
    """

    vector_side: Callable[[], Any]
    cube_side: Callable[[], Any]


def vector_core_barrier() -> Callable[[], Any]:
    """A macro for vector cores: later loads of each see what all of them have stored; passed once."""
    import tilelang.ascend.language as T

    @T.macro
    def wait_for_all() -> None:
        T.ascend_sync_inter_arrive("PIPE_MTE3", ALL_STORED)
        T.ascend_sync_inter_wait("PIPE_MTE2", ALL_STORED)

    barrier: Callable[[], Any] = wait_for_all
    return barrier


def core_barrier() -> CoreBarrier:
    """The macros of a barrier that a kernel passes once."""
    import tilelang.ascend.language as T

    @T.macro
    def vector_side() -> None:
        T.ascend_sync_inter_arrive("PIPE_MTE3", ALL_STORED)
        T.ascend_sync_inter_wait("PIPE_MTE3", ALL_STORED)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_MTE3", PAIR_MAY_LOAD)

    @T.macro
    def cube_side() -> None:
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE2", PAIR_MAY_LOAD)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE2", SECOND_VECTOR_CORE + PAIR_MAY_LOAD)

    return CoreBarrier(vector_side, cube_side)
