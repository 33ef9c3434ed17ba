"""Audit: who asked for and used what, and what left the store and why; written behind everybody's back.

Noting costs an append to a queue. A task writes the queue to the store's audit log; what does not fit into
the queue is counted and lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from typing import Any, Literal

import msgspec

from kaas.cache.audit_log import AuditLog

Event = Literal["request", "use", "ended", "evicted", "quarantined", "pinned", "unpinned", "stored"]
EVENTS: tuple[Event, ...] = (
    "request",
    "use",
    "ended",
    "evicted",
    "quarantined",
    "pinned",
    "unpinned",
    "stored",
)

MAX_QUEUE = 20_000
MAX_BATCH = 500
MAX_TEXT = 300
MAX_REMOVALS = 10_000
FLUSH_INTERVAL_S = 1.0


class Audit:
    """Notes events from any thread, writes and reads them from the event loop."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._queue: deque[dict[str, Any]] = deque()
        self._removals: OrderedDict[str, str] = OrderedDict()
        self._writing = asyncio.Lock()
        self._noted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the writer, once it runs
        self._lost = 0

    @property
    def lost(self) -> int:
        """Events that could not be kept."""
        return self._lost + self._log.lost_lines

    def note(self, event: Event, *, key: str = "", **facts: Any) -> None:
        """Something happened; empty facts are left out."""
        now = time.time()
        if event in ("evicted", "quarantined"):
            self._note_removal(key, event, str(facts.get("reason", "")), now)
        if not self._log.is_on:
            return
        if len(self._queue) >= MAX_QUEUE:
            self._lost += 1
            return
        record: dict[str, Any] = {"when_unix": round(now, 3), "event": event, "key": key}
        record |= {
            name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in facts.items()
        }
        self._queue.append({name: value for name, value in record.items() if value not in ("", None)})
        # Whoever noted the record before this one has woken the writer, which ends with an empty queue.
        if len(self._queue) == 1 and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._noted.set)

    def removal(self, key: str) -> str:
        """Why a kernel that was here is not any more, in a sentence; empty when that is not known."""
        return self._removals.get(key, "")

    async def run(self) -> None:
        """Write what was noted, soon after it was, for ever. Sleeps while nothing happens."""
        self._loop = asyncio.get_running_loop()
        if self._queue:
            self._noted.set()
        while True:
            await self._noted.wait()
            self._noted.clear()
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what was noted so far."""
        async with self._writing:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
                await asyncio.to_thread(self._write, batch)

    async def find(self, *, key: str = "", event: str = "", limit: int = 0) -> list[dict[str, Any]]:
        """Records of a key (or of keys that begin so) and of an event, oldest first; the last ``limit``."""
        await self.flush()
        return await asyncio.to_thread(self._find, key, event, limit)

    def _write(self, batch: list[dict[str, Any]]) -> None:
        self._log.append([msgspec.json.encode(record) for record in batch])

    def _find(self, key: str, event: str, limit: int) -> list[dict[str, Any]]:
        found: deque[dict[str, Any]] = deque(maxlen=limit or None)
        wanted = f'"key":"{key}' if key else f'"event":"{event}"' if event else ""
        for record in self._log.records(wanted.encode()):
            if event and record.get("event") != event:
                continue
            if not key or str(record.get("key", "")).startswith(key):
                found.append(record)
        return list(found)

    def _note_removal(self, key: str, event: str, reason: str, now: float) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
        how = "It was evicted" if event == "evicted" else "It was taken out of service"
        self._removals[key] = f"{how} at {when}" + (f": {reason}." if reason else ".")
        self._removals.move_to_end(key)
        while len(self._removals) > MAX_REMOVALS:
            self._removals.popitem(last=False)
