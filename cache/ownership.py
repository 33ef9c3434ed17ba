"""Ownership: one daemon per store, by a lock that the kernel drops when the process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from kaas.cache.atomic import store_error
from kaas.cache.layout import StoreLayout
from kaas.proto.errors import StoreUnavailable


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a store open, for messages only: the lock itself says whether it still is."""

    pid: int
    user: int
    host: str
    since_unix: float


class StoreOwnership:
    """An exclusive ``flock`` on the store's directory itself: no lock file that could be deleted or not fit.

    Daemons alone take it; readers need no lock. Child processes do not inherit it over ``exec``.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self._descriptor = _locked_directory(layout)
        holder = Holder(pid=os.getpid(), user=os.geteuid(), host=socket.gethostname(), since_unix=time.time())
        with contextlib.suppress(OSError):  # a full disk must not keep a daemon from serving
            _write_holder(layout.holder_file, msgspec.json.encode(holder))

    def release(self) -> None:
        """Let another daemon have the store; harmless when done twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_owned(layout: StoreLayout) -> bool:
    """Whether a daemon has the store open; asking changes nothing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
    return False


def read_holder(layout: StoreLayout) -> Holder | None:
    """Who opened the store last, as far as can be read."""
    try:
        return msgspec.json.decode(layout.holder_file.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _locked_directory(layout: StoreLayout) -> int:
    try:
        descriptor = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise store_error(error, "opening the store", layout.root) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _in_use(layout) from None
        raise StoreUnavailable(
            f"the file system of {layout.root} cannot lock a directory: {error.strerror}",
            hint="put the store on a local disk",
            path=str(layout.root),
            errno=error.errno,
        ) from error
    return descriptor


def _in_use(layout: StoreLayout) -> StoreUnavailable:
    holder = read_holder(layout)
    who = f"process {holder.pid} of user {holder.user} on {holder.host}" if holder else "another process"
    return StoreUnavailable(
        f"the store {layout.root} is in use by {who}",
        hint="one daemon serves a store: use that one, or name another directory with KAAS_STORE",
        path=str(layout.root),
        holder=msgspec.to_builtins(holder) if holder else None,
    )


def _write_holder(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
