"""Admission: how many compiles run at once, by slots and by memory.

A compile sets aside what compiles of its family needed so far. Together they stay within the budget; one may
always run alone, however large it is expected to be, unless it cannot fit into this node's memory at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kaas.proto.errors import CompileOutOfMemory
from kaas.server.compile_costs import CompileCosts
from kaas.server.control_group import MemoryRoom, memory_room

SHARE = 0.8
"""Of the memory that is free: the rest is for the page cache, and for what others take meanwhile."""

LOOK_AGAIN_S = 1.0
"""How old a measurement of free memory may be, and how soon a compile that waits for memory looks again."""

TOTAL_AGE_S = 60.0
"""How old that of a node's whole memory may be: a compile that runs alone need not wait for one."""


class MemoryBudget:
    """Bytes for all compiles together: as configured, else most of what is free and what they hold."""

    def __init__(
        self,
        configured_bytes: int = 0,
        *,
        held: Callable[[], int] = lambda: 0,
        room: Callable[[], MemoryRoom] = memory_room,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``held`` measures what running compiles hold now."""
        self._configured_bytes = configured_bytes
        self._measure_held = held
        self._measure_room = room
        self._clock = clock
        self._looked_at: float | None = None
        self._bytes = 0
        self._total = 0
        self._held = 0

    @property
    def bytes(self) -> int:
        """The budget now."""
        self._look(LOOK_AGAIN_S)
        return self._bytes

    @property
    def held_bytes(self) -> int:
        """What running compiles hold, at most :data:`LOOK_AGAIN_S` ago."""
        self._look(LOOK_AGAIN_S)
        return self._held

    @property
    def total_bytes(self) -> int:
        """What this node's daemon could ever have, at most :data:`TOTAL_AGE_S` ago."""
        self._look(TOTAL_AGE_S)
        return self._total

    def _look(self, age_s: float) -> None:
        now = self._clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < age_s:
            return
        self._looked_at = now
        room = self._measure_room()
        self._held = self._measure_held()
        self._total = room.total_bytes
        found = int(SHARE * (room.free_bytes + self._held))
        self._bytes = self._configured_bytes or found


class Admission:
    """Says what one more compile sets aside, and whether it may start beside those that run."""

    def __init__(self, *, slots: int, costs: CompileCosts, budget: MemoryBudget, limit_bytes: int) -> None:
        """At most ``slots`` run at once; ``limit_bytes`` is what a single compile is killed at."""
        self.slots = slots
        self.costs = costs
        self._budget = budget
        self._limit_bytes = limit_bytes

    def need_bytes(self, family: str, *, after_shortage: bool) -> int:
        """What to set aside: as learned, or all that it may ever take once it has run out of memory."""
        return self._limit_bytes if after_shortage else self.costs.peak_bytes(family)

    def fits(
        self,
        need_bytes: int,
        *,
        running: int,
        reserved_bytes: int,
        giving_way: int = 0,
        keep_free_bytes: int = 0,
    ) -> bool:
        """Whether it may start. ``reserved_bytes`` is what running ones have set aside; alone it always may.

        Those of the running that are ``giving_way`` to it take no slot from it, only memory. With
        ``keep_free_bytes`` it starts only while that much is left besides.
        """
        if running == 0:
            return True
        if running - giving_way >= self.slots:
            return False
        committed = max(reserved_bytes, self._budget.held_bytes)
        return committed + need_bytes + keep_free_bytes <= self._budget.bytes

    def refuse_impossible(self, family: str) -> None:
        """Raises :class:`CompileOutOfMemory` when no compile of the family ever got by with this node's
        memory."""
        least, total = self.costs.least_bytes(family), self._budget.total_bytes
        if least > total:
            raise CompileOutOfMemory(
                f"compiling {family!r} takes at least {least >> 20} MiB, and this node has {total >> 20} MiB",
                hint="raise the memory limit of the daemon's control group, or pre-warm elsewhere",
                limit_bytes=total,
                peak_bytes=least,
                stage="admission",
            )

    def seconds(self, family: str) -> float:
        """How long one compile takes, as far as can be told."""
        return self.costs.seconds(family)


def unlimited_memory(slots: int) -> Admission:
    """Admission by slots alone."""
    plenty = MemoryRoom(total_bytes=1 << 60, free_bytes=1 << 60)
    costs = CompileCosts(first_guess_bytes=1, limit_bytes=1)
    return Admission(slots=slots, costs=costs, budget=MemoryBudget(room=lambda: plenty), limit_bytes=1)
