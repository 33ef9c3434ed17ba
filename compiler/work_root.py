"""The pool's folder for everything temporary, and the removal of those that killed daemons left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kaas.proto.errors import StoreUnavailable

ROOT_PREFIX = "kaas-compile-"
SETTLED_S = 60.0
"""Younger folders are never taken for leftovers."""


class WorkRoot:
    """The pool's private folder for everything temporary; locked, so that nobody else takes it for a
    leftover."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls) -> WorkRoot:
        """Make one, after removing those whose daemons are gone. Raises :class:`StoreUnavailable`."""
        base = Path(tempfile.gettempdir())
        try:
            for leftover in leftovers(base):
                shutil.rmtree(leftover, ignore_errors=True)
            path = Path(tempfile.mkdtemp(prefix=f"{ROOT_PREFIX}{os.getuid()}-", dir=base))
            lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise StoreUnavailable(
                f"no folder for compiles can be made in {base}: {error.strerror}",
                hint="set TMPDIR to a writable folder",
            ) from None
        return cls(path, lock)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def leftovers(base: Path) -> Iterator[Path]:
    """Folders of pools of this user that no process holds any more."""
    for path in base.glob(f"{ROOT_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            # A young one may belong to a pool that has made it but not locked it yet.
            if not is_ours or time.time() - status.st_mtime < SETTLED_S:
                continue
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            finally:
                os.close(lock)
            yield path
