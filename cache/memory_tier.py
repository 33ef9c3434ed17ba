"""Memory tier: kernels that the store could not take, kept until it can; bounded, least recently used go.

Used from one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec


class MemoryKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A whole artifact file and the index row that it gets once it is stored."""

    key: str
    encoded: bytes
    row: dict[str, Any]


class MemoryTier:
    """Kernels by key, ``max_bytes`` of artifact files at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kernels: OrderedDict[str, MemoryKernel] = OrderedDict()
        self.size_bytes = 0
        self.dropped = 0
        """Kernels that had to go before they could be stored."""
        self.on_lost: Callable[[str], None] | None = None
        """Called with the key of each of them."""

    def __len__(self) -> int:
        return len(self._kernels)

    def __contains__(self, key: str) -> bool:
        return key in self._kernels

    def put(self, kernel: MemoryKernel) -> bool:
        """Keep a kernel, at the cost of those unused for longest; ``False`` if it alone is too large."""
        self.drop(kernel.key)
        if len(kernel.encoded) > self._max_bytes:
            self.dropped += 1
            return False
        while self.size_bytes + len(kernel.encoded) > self._max_bytes:
            _, oldest = self._kernels.popitem(last=False)
            self.size_bytes -= len(oldest.encoded)
            self.dropped += 1
            if self.on_lost is not None:
                self.on_lost(oldest.key)
        self._kernels[kernel.key] = kernel
        self.size_bytes += len(kernel.encoded)
        return True

    def get(self, key: str) -> MemoryKernel | None:
        """A kernel; asking for it counts as use."""
        kernel = self._kernels.get(key)
        if kernel is not None:
            self._kernels.move_to_end(key)
        return kernel

    def drop(self, key: str) -> bool:
        """Let go of a kernel; whether there was one."""
        kernel = self._kernels.pop(key, None)
        if kernel is None:
            return False
        self.size_bytes -= len(kernel.encoded)
        return True

    def kernels(self) -> list[MemoryKernel]:
        """All of them, the one unused for longest first."""
        return list(self._kernels.values())
