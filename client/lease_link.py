"""LeaseLink: tells the daemon which kernels this process holds, without ever waiting for it.

One connection to the socket beside the daemon's own; it lives as long as the process, so its end tells the
daemon that the process is gone. Every failure is ignored and made good at the next kernel.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from kaas.client.process_identity import job_and_rank
from kaas.proto.locations import lease_socket

if TYPE_CHECKING:
    from _socket import socket as RawSocket
    from pathlib import Path

MAX_KERNELS = 10_000
"""More than the daemon records of one process."""

MAX_UNSENT_BYTES = 1 << 20
PAUSE_S = 0.5
"""After a failed connect; a process that takes many kernels while no daemon runs tries only so often."""

_KEYS_PER_LINE = 200


class LeaseLink:
    """What this process holds of one daemon's kernels. Thread-safe and fork-safe."""

    def __init__(self, socket: Path) -> None:
        self._path = os.fspath(lease_socket(socket))
        self._lock = threading.Lock()
        self._held: dict[str, None] = {}
        self._connection: RawSocket | None = None
        self._unsent = b""
        self._next_try = 0.0

    def took(self, key: str, origin: str) -> None:
        """This process holds a kernel from now on. Costs one send; raises nothing."""
        if key in self._held or len(self._held) >= MAX_KERNELS:
            return
        with self._lock:
            line = b'{"took":[["%b","%b"]]}\n' % (key.encode(), origin.encode())
            if self._connection is not None:
                self._unsent += line
                is_told = self._send()  # fails when the daemon went away, and perhaps came back
            else:
                is_told = False
            if not is_told and self._connect():
                self._unsent += line
                self._send()
            self._held[key] = None

    def close(self) -> None:
        """End the connection, as the end of the process does."""
        self._drop()

    def renew_in_child(self) -> None:
        """After a fork: the connection is the parent's; the child tells what it has inherited on its own."""
        self._lock = threading.Lock()
        if self._connection is not None:
            # Closes the child's copy, without which the daemon would not notice the parent's end.
            self._connection.close()
            self._connection = None
        self._unsent = b""
        self._next_try = 0.0
        if self._held and self._connect():
            self._send()

    def _connect(self) -> bool:
        """Connect, and queue who this is and all that it holds."""
        now = time.monotonic()
        if now < self._next_try:
            return False
        # The module under `socket`: that one costs a rank 10 ms at its first kernel, this one nothing.
        import _socket

        connection = None
        try:
            connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
            connection.setblocking(False)
            connection.connect(self._path)
        except OSError:
            if connection is not None:
                connection.close()
            self._next_try = now + PAUSE_S
            return False
        self._connection = connection
        job, rank = job_and_rank()
        lines = [msgspec.json.encode({"lease": 1, "job": _legible(job), "rank": _legible(rank)})]
        keys = list(self._held)
        for start in range(0, len(keys), _KEYS_PER_LINE):
            lines.append(msgspec.json.encode({"held": keys[start : start + _KEYS_PER_LINE]}))
        self._unsent = b"\n".join(lines) + b"\n"
        return True

    def _send(self) -> bool:
        """Send what the socket takes now; ``False`` when the connection is gone."""
        import _socket

        assert self._connection is not None
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            if len(self._unsent) <= MAX_UNSENT_BYTES:
                return True  # the rest goes with the next kernel
            self._drop()
            return False
        except OSError:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._unsent = b""


def _legible(text: str) -> str:
    """Text that is JSON's, whatever bytes the environment had."""
    return text.encode("utf-8", "replace").decode()[:256]


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
