"""State file: a small JSON file of the daemon's in the store's root that survives restarts and may be lost.

Writes are atomic, happen on a thread of their own, and several changes in a row are one write. Trouble is
logged and costs the memory of past runs, never an answer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kaas.cache.atomic import replace_file
from kaas.proto.errors import KaasError

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
"""A larger file is none of ours."""

T = TypeVar("T")


class StateFile(Generic[T]):
    """Reads and writes one value of ``kind`` at ``path``; ``staging`` is on the same file system."""

    def __init__(self, path: Path, staging: Path, kind: type[T]) -> None:
        self.path = path
        self._staging = staging
        self._kind = kind
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.stem)
        self._pending: Callable[[], Any] | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_in_trouble = False

    def read(self) -> T | None:
        """What was saved last; ``None`` when there is nothing or it cannot be read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read and is begun anew: %s", self.path, error)
            return None

    def save(self, snapshot: Callable[[], T]) -> None:
        """Have ``snapshot()`` written soon. It is called on another thread, so it must hand out a copy."""
        with self._lock:
            is_first, self._pending = self._pending is None, snapshot
            if is_first and not self._is_closed:
                self._thread.submit(self._write)

    def close(self) -> None:
        """Finish the last write."""
        with self._lock:
            self._is_closed = True
        self._thread.shutdown(wait=True)

    def _write(self) -> None:
        with self._lock:
            snapshot, self._pending = self._pending, None
        if snapshot is None:
            return
        try:
            replace_file(self.path, msgspec.json.encode(snapshot()), self._staging)
            self._is_in_trouble = False
        except (KaasError, OSError) as error:
            if not self._is_in_trouble:
                log.warning("%s is not saved: %s", self.path, error)
            self._is_in_trouble = True
        except Exception:  # disposable, whatever is wrong with it
            log.warning("%s is not saved", self.path, exc_info=True)
