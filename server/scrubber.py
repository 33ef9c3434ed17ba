"""Scrubber: reads every artifact again, at a bounded rate, and takes out of service what does not verify.

A disk forgets quietly. Clients verify what they load, so nothing damaged is ever launched; here damage is
found before anybody has to wait for its repair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import msgspec

from kaas.cache.store import PassedOver, Store
from kaas.proto.errors import KaasError
from kaas.proto.log_facts import facts
from kaas.server.catalog import Catalog

log = logging.getLogger(__name__)

PAUSE_S = 0.002
"""Between two artifacts of a pass that somebody asked for."""

RETRY_S = 30.0
"""When the store could not even be listed; sooner when somebody asks."""

NAMED = 100
"""Damaged kernels of a pass that are named; the quarantine has them all."""


class SkippedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory whose artifacts were not checked, and why."""

    path: str
    reason: str


class ScrubState(msgspec.Struct, kw_only=True):
    """A pass over the store: under way or the last one. ``passes`` counts finished ones.

    ``failures`` counts those that could not be made at all; ``trouble`` is why, until one is.
    """

    passes: int = 0
    running: bool = False
    asked_for: int = 0
    checked: int = 0
    checked_bytes: int = 0
    damaged: int = 0
    damaged_keys: list[str] = []
    finished_unix: float = 0.0
    skipped: list[SkippedDirectory] = []
    failures: int = 0
    trouble: str = ""


class Scrubber:
    """Passes over ``store``: one in ``period_s`` at ``bytes_per_s`` (0: none), and whenever asked."""

    def __init__(self, store: Store, catalog: Catalog, *, bytes_per_s: int, period_s: float) -> None:
        self._store = store
        self._catalog = catalog
        self._bytes_per_s = bytes_per_s
        self._period_s = period_s
        self._is_asked = False
        self._woken = asyncio.Event()
        self.state = ScrubState()

    def ask(self) -> int:
        """Have everything checked as fast as the disk allows; the number of passes when that is done.

        A pass that is under way has looked at some kernels already, so it does not count. One that fails is
        made again until it is done.
        """
        if not self._is_asked:
            self._is_asked = True
            self.state.asked_for = self.state.passes + 1 + self.state.running
        self._woken.set()
        return self.state.asked_for

    async def run(self) -> None:
        """For as long as the daemon runs."""
        while True:
            due = None if self._bytes_per_s == 0 or self._period_s == 0 else self._period_s
            if (self.state.passes or not due) and not self._is_asked:
                await self._sleep(due)
            try:
                await self._pass()
            except KaasError as error:
                log.warning("the store could not be checked: %s", error)
                self.state.trouble = error.message
                self.state.failures += 1
                await self._sleep(RETRY_S)

    async def _pass(self) -> None:
        state = self.state
        state.running = True
        state.checked = state.checked_bytes = state.damaged = 0
        state.damaged_keys, state.skipped = [], []
        is_answer = self._is_asked
        self._is_asked = False
        try:
            for key in await asyncio.to_thread(self._keys):
                found = await asyncio.to_thread(self._verified, key)
                if found is None:
                    continue
                size, is_intact = found
                state.checked += 1
                state.checked_bytes += size
                if not is_intact:
                    self._catalog.removed(key)
                    state.damaged += 1
                    if len(state.damaged_keys) < NAMED:
                        state.damaged_keys.append(key)
                if is_answer or self._is_asked:
                    await asyncio.sleep(PAUSE_S)
                else:
                    await self._sleep(max(PAUSE_S, size / self._bytes_per_s))
        except BaseException:
            self._is_asked = self._is_asked or is_answer
            state.asked_for = min(state.asked_for, state.passes + 1)  # this pass was not made
            raise
        finally:
            state.running = False
        state.passes += 1
        state.trouble = ""
        state.finished_unix = time.time()
        log.info("store checked", extra=facts(checked=state.checked, damaged=state.damaged))

    async def _sleep(self, seconds: float | None) -> None:
        """So long (``None``: for ever), or until somebody asks."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _keys(self) -> list[str]:
        skipped: list[SkippedDirectory] = []

        def skip(passed: PassedOver) -> None:
            log.warning("%s is skipped: %s", passed.path, passed.reason)
            skipped.append(SkippedDirectory(path=str(passed.path), reason=passed.reason))

        keys = list(self._store.keys(skip))
        self.state.skipped = skipped
        return keys

    def _verified(self, key: str) -> tuple[int, bool] | None:
        try:
            return self._store.verify(key)
        except KaasError as error:
            log.warning("kernel %s could not be checked just now: %s", key[:12], error)
            return None
