"""Wanted kernels: sets of kernels that somebody wants here, kept up to date as kernels come and go.

A kernel's arrival costs one look into each set; nothing is polled. Whoever publishes or removes a kernel says
so, from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping

FULL = 1.0 - 1e-12
"""What weights that were added up in another order may fall short of a coverage."""


class WantedKernels:
    """Kernels by key with their weights, and which of them are missing. ``never`` is weight without a key.

    Made in the event loop that waits for it.
    """

    def __init__(self, weights: Mapping[str, float], never: float = 0.0) -> None:
        self.weights = dict(weights)
        self.never = never
        self.weight = sum(self.weights.values()) + never
        self.missing: dict[str, float] = dict(self.weights)
        self._held_weight = 0.0
        self.news = asyncio.Event()
        """Set at the next change, when another takes its place: take it before looking, then wait for it."""
        self._loop = asyncio.get_running_loop()

    @property
    def held_weight(self) -> float:
        """Weight of the kernels that are here."""
        if not self.missing:
            return self.weight - self.never
        return self._held_weight if len(self.missing) < len(self.weights) else 0.0

    @property
    def coverage(self) -> float:
        """Held weight by weight: 1.0 only if every kernel is here."""
        if not self.missing and not self.never:
            return 1.0
        return self.held_weight / self.weight

    def covers(self, coverage: float) -> bool:
        """Whether at least so much is here."""
        return self.coverage >= coverage * FULL if self.missing or self.never else True

    def set_held(self, key: str, held: bool) -> bool:
        """A kernel is here, or no longer; whether that is news. Under its owner's lock."""
        weight = self.weights.get(key)
        if weight is None or held == (key not in self.missing):
            return False
        if held:
            del self.missing[key]
            self._held_weight += weight
        else:
            self.missing[key] = weight
            self._held_weight -= weight
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._announce)
        return True

    def _announce(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    async def until(self, coverage: float, wait_s: float) -> bool:
        """Wait for a coverage, but no longer than ``wait_s`` seconds; whether it is there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while True:
                    news = self.news
                    if self.covers(coverage):
                        break
                    await news.wait()
        return self.covers(coverage)


class WantedSets:
    """All sets of wanted kernels of this daemon."""

    def __init__(self, is_held: Callable[[str], bool]) -> None:
        self._is_held = is_held
        self._lock = threading.Lock()
        self._sets: list[WantedKernels] = []

    def arrived(self, key: str) -> None:
        """A kernel is here from now on. From any thread."""
        self._tell(key, True)

    def left(self, key: str) -> None:
        """A kernel was removed, evicted or quarantined. From any thread."""
        self._tell(key, False)

    def _tell(self, key: str, held: bool) -> None:
        if not self._sets:
            return
        with self._lock:
            for wanted in self._sets:
                wanted.set_held(key, held)

    async def open(self, wanted: WantedKernels) -> None:
        """Keep a set up to date from now on, and look which of its kernels are here already."""
        with self._lock:
            self._sets.append(wanted)
        try:
            await asyncio.to_thread(self._look, wanted)
        except BaseException:
            self.close(wanted)
            raise

    def close(self, wanted: WantedKernels) -> None:
        """Leave a set alone from now on."""
        with self._lock, contextlib.suppress(ValueError):
            self._sets.remove(wanted)

    @contextlib.asynccontextmanager
    async def opened(self, wanted: WantedKernels) -> AsyncIterator[WantedKernels]:
        """A set, kept up to date within the block."""
        await self.open(wanted)
        try:
            yield wanted
        finally:
            self.close(wanted)

    def _look(self, wanted: WantedKernels) -> None:
        for key in list(wanted.weights):
            # Kernel by kernel, so that nobody who publishes one waits; and looked up under the lock, so that
            # one that goes away meanwhile is not counted afterwards.
            with self._lock:
                wanted.set_held(key, self._is_held(key))
