"""Store keeper: the background work on the store: measuring, evicting, storing what had to wait in memory.

All of it in short steps with pauses, so that requests never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kaas.cache.eviction import Eviction
from kaas.cache.store import Store
from kaas.proto.errors import KaasError, StoreFull, StoreUnavailable
from kaas.proto.log_facts import facts
from kaas.server.catalog import Catalog
from kaas.server.holdings import Holdings

log = logging.getLogger(__name__)

PAUSE_S = 0.01
"""Between two steps: several times what a step takes."""

PERIOD_S = 15.0
RETRY_S = 1.0
"""How soon a kernel that waits in memory is tried again."""

MEASURE_PERIOD_S = 3600.0
"""Who deletes artifacts by hand makes the running totals wrong; they are counted again this often."""

SHARDS_PER_STEP = 4
REFUSALS_PER_ROUND = 4

REASONS = {
    "limit": "the store was above its limit, and this was worth least",
    "idle": "nobody used it for longer than store_max_idle_s",
}


class StoreKeeper:
    """Runs for as long as the daemon does."""

    def __init__(self, store: Store, catalog: Catalog, holdings: Holdings, eviction: Eviction) -> None:
        self._store = store
        self._catalog = catalog
        self._memory = holdings.memory
        self._audit = holdings.audit
        self._news = holdings.news
        self._wanted = holdings.wanted
        self._eviction = eviction
        self.evicted = 0

    @property
    def is_stuck(self) -> bool:
        """The store is above a limit, and everything in it is leased, pinned or was just used."""
        return self._eviction.is_stuck

    async def run(self) -> None:
        """Keep the store in order, for ever. Start it when the index is complete."""
        loop = asyncio.get_running_loop()
        measured = -MEASURE_PERIOD_S
        while True:
            self._news.clear()
            try:
                if loop.time() - measured >= MEASURE_PERIOD_S or not self._store.usage.is_measured:
                    await self._measure()
                    measured = loop.time()
                await self.store_waiting()
                await self._evict()
            except KaasError as error:
                log.warning("the store could not be kept in order just now: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if len(self._memory) else PERIOD_S):
                    await self._news.wait()
            await asyncio.sleep(PAUSE_S)

    async def store_waiting(self) -> None:
        """Publish the kernels that wait in memory, as far as the store takes them."""
        refusals = 0
        for kernel in self._memory.kernels():
            try:
                await asyncio.to_thread(self._store.publish, kernel.key, kernel.encoded)
            except (StoreFull, StoreUnavailable) as refusal:
                log.debug("kernel stays in memory: %s", refusal, extra=facts(key=kernel.key[:12]))
                refusals += 1
                if refusals >= REFUSALS_PER_ROUND:
                    return
                continue
            self._memory.drop(kernel.key)
            self._catalog.added(kernel.row)
            self._audit.note("stored", key=kernel.key)
            log.info("kernel stored, there is room again", extra=facts(key=kernel.key[:12]))

    async def _measure(self) -> None:
        steps = self._store.measure()

        def some() -> bool:
            return all(next(steps, self) is not self for _ in range(SHARDS_PER_STEP))

        while await asyncio.to_thread(some):
            await asyncio.sleep(PAUSE_S)

    async def _evict(self) -> None:
        while True:
            evicted, has_more = await self._catalog.on_index(self._eviction.step)
            for one in evicted:
                self._wanted.left(one.key)
                self._audit.note("evicted", key=one.key, reason=REASONS[one.why], size_bytes=one.size_bytes)
            self.evicted += len(evicted)
            if not has_more:
                return
            await asyncio.sleep(PAUSE_S)
