"""Held files: open files whose bytes are needed later, and the room that they leave for other descriptors.

A descriptor is a number that belongs to the whole process: somebody's ``os.closerange`` or ``os.dup2`` can
take it away and give it to another file. So whose it is, is looked at before each use.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

MOST_HELD = 128
"""Beyond this, or a quarter of the process's limit on descriptors, files are read at once."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")

_held: dict[int, weakref.ref[HeldFile]] = {}
"""By ``id``: those that have a descriptor."""

_reading = threading.RLock()
"""Held while a file is read: a descriptor that another thread closed may be another file's."""


def is_own(descriptor: int, identity: tuple[int, int]) -> bool:
    """Whether a descriptor is still that of the file with this device and inode."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


class HeldFile:
    """An open file of ``size`` bytes that stays readable when its name goes. It owns ``descriptor``.

    It is closed with its last reference. Thread-safe; a signal handler may use it amid any method.
    """

    __slots__ = ("__weakref__", "_bytes", "_descriptor", "_identity", "_path", "size")

    def __init__(self, descriptor: int, path: str, status: os.stat_result) -> None:
        self._descriptor = descriptor
        self._path = path
        self._identity = (status.st_dev, status.st_ino)
        self._bytes: bytes | None = None
        self.size = status.st_size
        _held[id(self)] = weakref.ref(self)

    def read(self) -> bytes:
        """All of the file as it is now, one byte beyond ``size`` if there is more.

        Should the descriptor have become somebody else's, the file that has the name now. Raises ``OSError``.
        """
        with _reading:
            if self._bytes is not None:
                return self._bytes
            try:
                content = self._read()
            except OSError:
                if self._bytes is None:
                    raise
            # A signal handler that ran meanwhile may have read it in and let the descriptor go.
            return content if self._bytes is None else self._bytes

    def read_in(self) -> None:
        """Let go of the descriptor and keep the bytes instead. What cannot be read stays open."""
        with _reading:
            if self._bytes is None:
                try:
                    content = self._read()
                except OSError:
                    return
                self._bytes = content
            self._close()

    def _read(self) -> bytes:
        if is_own(self._descriptor, self._identity):
            return read_all(self._descriptor, self.size)
        self._close()
        descriptor = open_file(self._path)
        try:
            return read_all(descriptor, self.size)
        finally:
            os.close(descriptor)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _held.pop(id(self), None)
        if descriptor >= 0 and is_own(descriptor, self._identity):
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


def may_hold() -> bool:
    """Whether one more file may be held open."""
    if len(_held) >= MOST_HELD:
        return False
    limit = os.sysconf("SC_OPEN_MAX")
    return limit < 0 or len(_held) < limit // 4


def with_room(opening: Callable[[], T]) -> T:
    """What ``opening`` gives; should the descriptors be used up, once more without those of held files.

    Raises what ``opening`` raises.
    """
    try:
        return opening()
    except OSError as error:
        if error.errno not in _OUT_OF_DESCRIPTORS or not _held:
            raise
    for reference in list(_held.values()):
        file = reference()
        if file is not None:
            file.read_in()
    return opening()


def open_file(path: str) -> int:
    """A descriptor to read a regular file by; never waits, never follows a link. Raises ``OSError``."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return with_room(lambda: os.open(path, flags))


def read_all(descriptor: int, size: int) -> bytes:
    """The file from its start, one byte beyond ``size`` if there is more. Raises ``OSError``."""
    chunks: list[bytes] = []
    end = 0
    while end <= size and (chunk := os.pread(descriptor, size + 1 - end, end)):
        chunks.append(chunk)
        end += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _renew_lock_in_child() -> None:
    global _reading
    _reading = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock_in_child)
