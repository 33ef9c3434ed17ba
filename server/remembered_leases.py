"""Remembered leases: what processes took under the daemon before, for those of them that still run.

A client tells a new daemon what it holds with its next kernel, which may be never. Until then the audit log
says it, and the operating system says whether that process lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kaas.cache.layout import is_key
from kaas.server.process_facts import liveness


class RememberedLeases:
    """Processes by key, by number and start time. Only asking costs a look at a process."""

    def __init__(self) -> None:
        self._processes: dict[str, set[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def learn(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take over audit records of uses; what is none, or of a process that ended, is passed over."""
        known: dict[tuple[int, int], bool] = {}
        for record in records:
            key, pid, started = record.get("key"), record.get("pid"), record.get("started")
            if not (isinstance(key, str) and isinstance(pid, int) and isinstance(started, int)):
                continue
            process = (pid, started)
            if process not in known:
                known[process] = liveness(pid, started) == "alive"
            if known[process] and is_key(key):
                self._processes.setdefault(key, set()).add(process)

    def holds(self, key: str) -> bool:
        """Whether one of the processes that took a kernel still runs; those that ended are forgotten."""
        processes = self._processes.get(key)
        if processes is None:
            return False
        alive = {process for process in processes if liveness(*process) == "alive"}
        if alive:
            self._processes[key] = alive
        else:
            self._processes.pop(key, None)
        return bool(alive)
