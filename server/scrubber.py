"""Scrubber: reads every artifact again, at a bounded rate, and takes out of service what does not verify.

A disk forgets quietly. Clients verify what they load, so nothing damaged is ever launched; here damage is
found before anybody has to wait for its repair.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from kaas.cache.store import Store
from kaas.proto.errors import KaasError, StoreUnavailable
from kaas.server.catalog import Catalog
from kaas.server.telemetry import facts

log = logging.getLogger(__name__)

PAUSE_S = 0.002
"""Between two artifacts of a pass that somebody asked for."""

RETRY_S = 30.0
"""When the store could not even be listed."""

NAMED = 100
"""Damaged kernels of a pass that are named; the quarantine has them all."""


class ScrubState(msgspec.Struct, kw_only=True):
    """A pass over the store: under way or the last one. ``passes`` counts finished ones."""

    passes: int = 0
    running: bool = False
    asked_for: int = 0
    checked: int = 0
    checked_bytes: int = 0
    damaged: int = 0
    damaged_keys: list[str] = []
    finished_unix: float = 0.0


class Scrubber:
    """Passes over ``store``: one in ``period_s`` at ``bytes_per_s`` (0: none), and whenever asked."""

    def __init__(self, store: Store, catalog: Catalog, *, bytes_per_s: int, period_s: float) -> None:
        self._store = store
        self._catalog = catalog
        self._bytes_per_s = bytes_per_s
        self._period_s = period_s
        self._asked = asyncio.Event()
        self.state = ScrubState()

    def ask(self) -> int:
        """Have everything checked as fast as the disk allows; the number of passes when that is done.

        A pass that is under way has looked at some kernels already, so it does not count.
        """
        if not self._asked.is_set():
            self._asked.set()
            self.state.asked_for = self.state.passes + 1 + self.state.running
        return self.state.asked_for

    async def run(self) -> None:
        """For as long as the daemon runs."""
        while True:
            due = None if self._bytes_per_s == 0 or self._period_s == 0 else self._period_s
            if self.state.passes or not due:
                try:
                    async with asyncio.timeout(due):
                        await self._asked.wait()
                except TimeoutError:
                    pass
            try:
                await self._pass()
            except KaasError as error:
                log.warning("the store could not be checked: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _pass(self) -> None:
        state = self.state
        state.running = True
        state.checked = state.checked_bytes = state.damaged = 0
        state.damaged_keys = []
        in_a_hurry = self._asked.is_set()
        self._asked.clear()
        try:
            keys = await asyncio.to_thread(lambda: list(self._store.keys()))
            for key in keys:
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
                in_a_hurry = in_a_hurry or self._asked.is_set()
                await asyncio.sleep(PAUSE_S if in_a_hurry else max(PAUSE_S, size / self._bytes_per_s))
        finally:
            state.running = False
        state.passes += 1
        state.finished_unix = time.time()
        log.info("store checked", extra=facts(checked=state.checked, damaged=state.damaged))

    def _verified(self, key: str) -> tuple[int, bool] | None:
        try:
            return self._store.verify(key)
        except StoreUnavailable as error:
            log.warning("kernel %s could not be checked just now: %s", key[:12], error)
            return None
