"""Holdings: what is known of this node's kernels beside their bytes: who holds them, and what happened."""

from __future__ import annotations

import asyncio

from kaas.cache.audit_log import AuditLog
from kaas.cache.memory_tier import MemoryTier
from kaas.cache.pins import Pins
from kaas.cache.quarantine import QuarantineRecord
from kaas.cache.store import Store
from kaas.server.audit import Audit
from kaas.server.lease_table import LeaseTable
from kaas.server.remembered_leases import RememberedLeases
from kaas.server.wanted_kernels import WantedSets


class Holdings:
    """Leases of live processes, pins, kernels that wait in memory for room in the store, the audit, and sets
    of kernels that somebody wants here."""

    def __init__(self, store: Store, *, memory_bytes: int = 0, audit_bytes: int = 0) -> None:
        self.leases = LeaseTable()
        self._remembered = RememberedLeases()
        self.pins = Pins(store.layout)
        self.memory = MemoryTier(memory_bytes)
        self.audit = Audit(AuditLog(store.layout, audit_bytes))
        self.news = asyncio.Event()
        """Set when something was published or could not be: the store keeper has work."""
        self.wanted = WantedSets(lambda key: store.layout.artifact_path(key).exists() or key in self.memory)
        self.memory.on_lost = self.wanted.left
        store.on_quarantine = self._note_quarantine

    def protects(self, key: str) -> bool:
        """Whether a kernel is leased, now or since the daemon before, or pinned; callable from any thread."""
        return self.leases.is_leased(key) or self.pins.is_pinned(key) or self._remembered.holds(key)

    async def recall(self) -> None:
        """Remember what live processes took under the daemon before. Nothing may be evicted until then."""
        records = await self.audit.find(event="use")
        await asyncio.to_thread(self._remembered.learn, records)

    def keys(self, prefix: str, limit: int) -> list[str]:
        """Up to ``limit`` keys, leased, pinned or in memory, that begin with ``prefix``."""
        others = {pin.key for pin in self.pins.all()} | {kernel.key for kernel in self.memory.kernels()}
        found = {*self.leases.keys(prefix, limit), *(key for key in others if key.startswith(prefix))}
        return sorted(found)[:limit]

    def _note_quarantine(self, record: QuarantineRecord) -> None:
        self.wanted.left(record.key)
        self.audit.note("quarantined", key=record.key, reason=record.reason, file=record.file)
