"""Lease table: which live process holds which kernels. All state belongs to one event loop.

Asking whether a kernel is leased is a look into a dict, which other threads may do, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_KEYS_PER_PROCESS = 10_000
MAX_LEASES = 250_000


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A client process with a connection. ``pid`` and ``uid`` are the operating system's word.

    ``pid`` is 0 for a process whose number means nothing in the daemon's pid namespace; ``started`` is the
    process's start time in clock ticks since boot, which tells it from a later one with its number.
    """

    session: str
    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    started: int


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that a live process holds, since ``since_unix``."""

    key: str
    holder: Holder
    since_unix: float


class LeaseTable:
    """Leases by process and by kernel; beyond its bounds a kernel is simply not recorded."""

    def __init__(self) -> None:
        self._holders: dict[str, tuple[Holder, dict[str, float]]] = {}
        self._sessions: dict[str, set[str]] = {}
        self.count = 0
        self.unrecorded = 0

    @property
    def processes(self) -> int:
        """Live client processes."""
        return len(self._holders)

    def open(self, holder: Holder) -> None:
        """A process connected."""
        self._holders[holder.session] = (holder, {})

    def take(self, session: str, key: str, when: float) -> bool:
        """A process holds a kernel from now on; ``False`` when that was known, or is too much to know."""
        _, held = self._holders[session]
        if key in held:
            return False
        if len(held) >= MAX_KEYS_PER_PROCESS or self.count >= MAX_LEASES:
            self.unrecorded += 1
            return False
        held[key] = when
        self._sessions.setdefault(key, set()).add(session)
        self.count += 1
        return True

    def close(self, session: str) -> list[str]:
        """A process is gone; what it held."""
        known = self._holders.pop(session, None)
        if known is None:
            return []
        held = list(known[1])
        self.count -= len(held)
        for key in held:
            sessions = self._sessions[key]
            sessions.discard(session)
            if not sessions:
                del self._sessions[key]
        return held

    def is_leased(self, key: str) -> bool:
        """Whether any live process holds a kernel."""
        return key in self._sessions

    def holders(self, key: str) -> int:
        """How many live processes hold a kernel."""
        return len(self._sessions.get(key, ()))

    def leases(self, prefix: str = "") -> Iterator[Lease]:
        """Every lease, or those on keys that begin with ``prefix``; by connection, oldest first."""
        if len(prefix) == 64:
            for session in sorted(self._sessions.get(prefix, ())):
                holder, held = self._holders[session]
                yield Lease(key=prefix, holder=holder, since_unix=held[prefix])
            return
        for holder, held in list(self._holders.values()):
            for key, since in list(held.items()):
                if key.startswith(prefix):
                    yield Lease(key=key, holder=holder, since_unix=since)

    def keys(self, prefix: str, limit: int) -> list[str]:
        """Up to ``limit`` leased keys that begin with ``prefix``."""
        return sorted(key for key in self._sessions if key.startswith(prefix))[:limit]
