"""Eviction: which kernels leave a store that holds too much, found and removed in short steps.

A step looks at a bounded number of rows or removes a bounded number of files, so that whoever runs the steps
can answer requests between any two of them.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from kaas.cache.index import KernelIndex
from kaas.cache.limits import LOW_WATER, StoreLimits, exceeds, worth
from kaas.cache.store import Store
from kaas.proto.errors import KaasError

_LOG = logging.getLogger(__name__)

ROWS_PER_STEP = 1000
REMOVALS_PER_STEP = 32
STEP_BUDGET_S = 0.005
GRACE_S = 60.0
"""A kernel that was used so recently stays: its reader may be between being told the path and opening it."""

IDLE_CHECK_S = 3600.0
"""How often all rows are looked at for kernels that nobody used for too long."""

Why = Literal["limit", "idle"]


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that was removed, and whether for a limit or for its age."""

    key: str
    size_bytes: int
    why: Why


class Eviction:
    """Brings a store below its soft limits. Use it from the index's thread."""

    def __init__(
        self,
        store: Store,
        index: KernelIndex,
        limits: StoreLimits,
        is_protected: Callable[[str], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._index = index
        self._limits = limits
        self._is_protected = is_protected
        self._clock = clock
        self._unseen: list[str] = []
        self._cheapest: list[tuple[float, str]] = []
        self._idle: list[str] = []
        self._is_evicting = False
        self._is_above_limit = False
        self._idle_checked = clock() if limits.max_idle_s else 0.0
        self._must_check_idle = bool(limits.max_idle_s)
        self.is_stuck = False
        """The store is above a limit, and everything in it is leased, pinned or was just used."""

    def is_due(self) -> bool:
        """Whether there is something to do: a limit is exceeded, or idle kernels are to be looked for."""
        since_check = self._clock() - self._idle_checked
        idle_is_due = self._must_check_idle or (
            self._limits.max_idle_s
            and not 0 <= since_check < IDLE_CHECK_S  # negative: the clock was set back
        )
        return bool(idle_is_due) or exceeds(self._store.usage, self._limits)

    def step(self) -> tuple[list[Evicted], bool]:
        """Do a little; what was removed, and whether there is more to do."""
        if not self._is_evicting:
            if not self.is_due():
                return [], False
            self._begin()
        if self._unseen:
            self._look_at_some()
            return [], True
        evicted = self._remove_some()
        return evicted, self._is_evicting

    def _begin(self) -> None:
        self._is_evicting = True
        self._is_above_limit = exceeds(self._store.usage, self._limits)
        self._unseen = self._index.keys()
        self._cheapest = []
        self._idle = []
        self._must_check_idle = False
        self._idle_checked = self._clock()

    def _end(self, is_stuck: bool) -> None:
        self._is_evicting = False
        self._cheapest = []
        if is_stuck and not self.is_stuck:
            _LOG.warning("the store is above its limit, and all of it is leased, pinned or just used")
        self.is_stuck = is_stuck

    def _look_at_some(self) -> None:
        now, limits = self._clock(), self._limits
        for key in self._unseen[-ROWS_PER_STEP:]:
            facts = self._index.value_facts(key)
            if facts is None:
                continue
            compile_seconds, size_bytes, last_used = facts
            if limits.max_idle_s and now - last_used > limits.max_idle_s:
                self._idle.append(key)
            score = worth(compile_seconds, size_bytes, last_used, limits.half_life_s)
            heapq.heappush(self._cheapest, (score, key))
        del self._unseen[-ROWS_PER_STEP:]

    def _remove_some(self) -> list[Evicted]:
        evicted: list[Evicted] = []
        give_up = time.monotonic() + STEP_BUDGET_S
        for _ in range(REMOVALS_PER_STEP):
            if self._idle:
                self._remove(self._idle.pop(), "idle", evicted)
            elif not (self._is_above_limit and exceeds(self._store.usage, self._limits, LOW_WATER)):
                self._end(is_stuck=False)
                break
            elif not self._cheapest:
                self._end(is_stuck=exceeds(self._store.usage, self._limits))
                break
            else:
                self._remove_cheapest(evicted)
            if time.monotonic() > give_up:
                break
        return evicted

    def _remove_cheapest(self, evicted: list[Evicted]) -> None:
        score, key = heapq.heappop(self._cheapest)
        facts = self._index.value_facts(key)
        if facts is None:
            return
        now_worth = worth(*facts, self._limits.half_life_s)
        if now_worth > score:  # used since it was looked at
            heapq.heappush(self._cheapest, (now_worth, key))
            return
        self._remove(key, "limit", evicted)

    def _remove(self, key: str, why: Why, evicted: list[Evicted]) -> None:
        facts = self._index.value_facts(key)
        if facts is None:
            return
        idle_s = self._clock() - facts[2]
        if self._is_protected(key) or 0 <= idle_s < GRACE_S:
            return
        if why == "idle" and idle_s <= self._limits.max_idle_s:
            return
        try:
            self._store.remove(key)
        except KaasError as error:
            _LOG.warning("kernel %s could not be evicted: %s", key[:12], error)
            return
        self._index.forget(key)
        evicted.append(Evicted(key=key, size_bytes=facts[1], why=why))
