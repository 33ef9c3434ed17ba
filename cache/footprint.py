"""Footprint: bytes and files that a store's artifacts take, by directory, kept right by small steps.

A change counts only in a directory that was measured already; measuring one later sees the change on disk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kaas.cache.layout import ARTIFACT_SUFFIX, is_foreign_shard
from kaas.cache.limits import StoreUsage

_SHARDS = tuple(f"{number:02x}" for number in range(256))


class Footprint:
    """Running totals. The caller keeps others from changing a directory while it is measured."""

    def __init__(self) -> None:
        self._measured: dict[str, tuple[int, int]] = {}
        self.usage = StoreUsage()

    def shards(self) -> tuple[str, ...]:
        """Every directory that artifacts may lie in, by name."""
        return _SHARDS

    def measure(self, shard: str, directory: Path) -> None:
        """Look at one directory anew."""
        size, files = 0, 0
        if is_foreign_shard(directory):
            self._set(shard, 0, 0)
            return
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.endswith(ARTIFACT_SUFFIX):
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        if stat.S_ISREG(status.st_mode):
                            size += status.st_size
                            files += 1
        except OSError:
            pass  # not there, which is nothing, or unreadable, which others will say
        self._set(shard, size, files)

    def add(self, shard: str, size_bytes: int, files: int) -> None:
        """One file came (or went, with negative numbers)."""
        known = self._measured.get(shard)
        if known is not None:
            self._set(shard, max(0, known[0] + size_bytes), max(0, known[1] + files))

    def _set(self, shard: str, size_bytes: int, files: int) -> None:
        before = self._measured.get(shard, (0, 0))
        self._measured[shard] = (size_bytes, files)
        self.usage = StoreUsage(
            bytes=self.usage.bytes + size_bytes - before[0],
            files=self.usage.files + files - before[1],
            is_measured=len(self._measured) == len(_SHARDS),
        )
