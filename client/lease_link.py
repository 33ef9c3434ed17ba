"""LeaseLink: tells the daemon which kernels this process holds, without ever waiting for it.

One connection to the socket beside the daemon's own; it lives as long as the process, so its end tells the
daemon that the process is gone. No failure reaches the caller.

A kernel is told at once, unless another was told a moment ago: a process that takes many in a row sends them
together, from a thread. Each send wakes the daemon, which on a busy node costs more than opening the
artifact. The thread also tells what could not be told, because no daemon ran or it did not read, with growing
pauses; it ends when everything is told.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from kaas.cache.held_file import is_own, with_room
from kaas.client.process_identity import legible_job_and_rank
from kaas.proto.locations import lease_socket

if TYPE_CHECKING:
    from _socket import socket as RawSocket
    from pathlib import Path

MAX_KERNELS = 10_000
"""More than the daemon records of one process."""

MAX_UNSENT_BYTES = 1 << 20
PAUSE_S = 0.5
"""After a failed connect; a process that takes many kernels while no daemon runs tries only so often."""

BURST_S = 0.05
"""How long kernels are gathered after one was told."""

RETRY_FIRST_S = 0.5
RETRY_LONGEST_S = 10.0
"""Between two tries to tell what could not be told."""

_KEYS_PER_LINE = 200


class LeaseLink:
    """What this process holds of one daemon's kernels. Thread-safe and fork-safe."""

    def __init__(self, socket: Path) -> None:
        self._path = os.fspath(lease_socket(socket))
        self._lock = threading.Lock()
        self._held: dict[str, None] = {}
        self._fresh: dict[str, str] = {}  # those of them that were not told yet, with their origins
        self._teller: object | None = None  # the thread that is to tell what is untold
        self._last_told = float("-inf")
        self._connection: RawSocket | None = None
        self._identity = (0, 0)  # the connection's device and inode
        self._unsent = b""
        self._next_try = 0.0

    def took(self, key: str, origin: str) -> None:
        """This process holds a kernel from now on. Costs one send at most; raises nothing."""
        if key in self._held or len(self._held) >= MAX_KERNELS:
            return
        with self._lock:
            self._held[key] = None
            self._fresh[key] = origin
            if time.monotonic() - self._last_told <= BURST_S:
                self._tell_later(BURST_S)
            elif self._tell():
                self._teller = None  # one that pauses because of a failure would tell the next burst late
            else:
                self._tell_later(RETRY_FIRST_S)

    def _tell_later(self, pause_s: float) -> None:
        if self._teller is not None:
            return
        self._teller = object()
        try:
            # Thread.start() would wait until the thread runs: milliseconds on a busy node.
            _thread.start_new_thread(self._keep_telling, (self._teller, pause_s))
        except RuntimeError:  # no more threads, or the interpreter ends
            self._teller = None
            self._tell()

    def _keep_telling(self, me: object, pause_s: float) -> None:
        while True:
            time.sleep(pause_s)
            with self._lock:
                if self._teller is not me:
                    return
                if self._is_told():
                    self._teller = None
                    return
                longer = min(max(2 * pause_s, RETRY_FIRST_S), RETRY_LONGEST_S)
                pause_s = BURST_S if self._tell() else longer  # the burst may go on

    def _is_told(self) -> bool:
        return not self._fresh and not self._unsent and (self._connection is not None or not self._held)

    def _tell(self) -> bool:
        """Send what is untold; whether all of it is on its way. All is told anew on a new connection."""
        self._last_told = time.monotonic()
        if self._connection is None or not self._send_fresh():  # which fails when the daemon went away
            _ = self._connect() and self._send_fresh()
        return self._is_told()

    def _send_fresh(self) -> bool:
        fresh = list(self._fresh.items())
        for start in range(0, len(fresh), _KEYS_PER_LINE):
            self._unsent += msgspec.json.encode({"took": fresh[start : start + _KEYS_PER_LINE]}) + b"\n"
        if not self._send():
            return False
        self._fresh.clear()
        return True

    def close(self) -> None:
        """Tell what is left to tell and end the connection, as the end of the process does."""
        with self._lock:
            self._teller = None
            if self._fresh or self._unsent:
                self._tell()
            self._drop()

    def renew_in_child(self) -> None:
        """After a fork: the connection is the parent's; the child tells what it has inherited on its own."""
        self._lock = threading.Lock()
        self._teller = None
        self._fresh = {}
        if self._connection is not None:
            # Closes the child's copy, without which the daemon would not notice the parent's end.
            self._drop()
        self._unsent = b""
        self._next_try = 0.0
        if self._held and not self._tell():
            self._tell_later(RETRY_FIRST_S)

    def _connect(self) -> bool:
        """Connect, and queue who this is and all that it holds."""
        now = time.monotonic()
        if now < self._next_try:
            return False
        # The module under `socket`: that one costs a rank 10 ms at its first kernel, this one nothing.
        import _socket

        connection = None
        try:
            connection = with_room(
                lambda: _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
            )
            connection.setblocking(False)
            connection.connect(self._path)
            status = os.fstat(connection.fileno())
        except OSError:
            if connection is not None:
                connection.close()
            self._next_try = now + PAUSE_S
            return False
        self._connection = connection
        self._identity = (status.st_dev, status.st_ino)
        job, rank = legible_job_and_rank()
        lines = [msgspec.json.encode({"lease": 1, "job": job, "rank": rank})]
        keys = [key for key in self._held if key not in self._fresh]
        for start in range(0, len(keys), _KEYS_PER_LINE):
            lines.append(msgspec.json.encode({"held": keys[start : start + _KEYS_PER_LINE]}))
        self._unsent = b"\n".join(lines) + b"\n"
        return True

    def _send(self) -> bool:
        """Send what the socket takes now; ``False`` when the connection is gone."""
        import _socket

        assert self._connection is not None
        if not is_own(self._connection.fileno(), self._identity):
            self._drop()
            return False
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            if len(self._unsent) <= MAX_UNSENT_BYTES:
                return True  # the rest goes later
            self._drop()
            return False
        except OSError:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if is_own(connection.fileno(), self._identity):
                connection.close()
            else:
                connection.detach()  # somebody closed ours, and the number is another file's now
        self._unsent = b""


_links: dict[str, LeaseLink] = {}


def lease_link(socket: Path) -> LeaseLink:
    """This process's link to the daemon at ``socket``; it stays for the life of the process."""
    name = os.fspath(socket)
    link = _links.get(name)
    if link is None:
        link = _links.setdefault(name, LeaseLink(socket))
    return link


def _renew_in_child() -> None:
    for link in list(_links.values()):
        link.renew_in_child()


def _close_all() -> None:
    for link in list(_links.values()):
        link.close()


os.register_at_fork(after_in_child=_renew_in_child)
atexit.register(_close_all)
