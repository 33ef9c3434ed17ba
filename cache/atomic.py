"""Atomic files: written privately, synced, renamed; and what an operating-system error means for a store."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kaas.proto.errors import StoreFull, StoreUnavailable

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

FILE_MODE = 0o644
"""Everybody on the node may read what the daemon publishes; only the daemon writes."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def store_error(error: OSError, doing: str, path: Path) -> StoreFull | StoreUnavailable:
    """The typed error for a file operation that failed while ``doing`` something to ``path``."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(
            f"{doing} {path}: {reason}",
            hint="free space on the store's file system; serving what is stored goes on",
            path=str(path),
            errno=error.errno,
        )
    return StoreUnavailable(f"{doing} {path}: {reason}", path=str(path), errno=error.errno)


def persistently(call: Callable[[], T], failure: type[Exception], attempts: int = 2) -> T:
    """``call()``, tried again when it fails in a way that may pass; that a file is not there does not."""
    for _ in range(attempts - 1):
        try:
            return call()
        except FileNotFoundError:
            raise
        except failure:
            pass
    return call()


def write_staged(staging: Path, name: str, content: bytes) -> Path:
    """A new private file in ``staging`` holding ``content``, on disk when this returns.

    Raises ``OSError``, leaving nothing behind. The mode is 0644 whatever the umask.
    """
    path = staging / f"{name}.{os.getpid()}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, FILE_MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def sync_directory(directory: Path) -> None:
    """Make renames inside ``directory`` survive power loss.

    A failure is logged and swallowed: the file that was renamed is whole and synced, and a store may lose its
    newest entries in a power cut, never show half of one.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _LOG.warning("cannot sync %s: %s", directory, error)
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        _LOG.warning("cannot sync %s: %s", directory, error)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, staging: Path) -> None:
    """Publish ``content`` at ``path``: readers see the old file or the new one, whole.

    Raises :class:`StoreFull` or :class:`StoreUnavailable`, leaving the old file and nothing else.
    """
    try:
        staged = write_staged(staging, path.name, content)
        try:
            staged.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise
    except OSError as error:
        raise store_error(error, "writing", path) from error
    sync_directory(path.parent)
