"""LeaseLink: tells the daemon which kernels this process holds, without ever waiting for it.

One connection to the socket beside the daemon's own; it lives as long as the process, so its end tells the
daemon that the process is gone. Every failure is ignored and made good at the next kernel.

A kernel is told at once, unless another was told a moment ago: a process that takes many in a row sends them
together, from a thread that ends when there are no more. Each send wakes the daemon, which on a busy node
costs more than opening the artifact.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

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

_KEYS_PER_LINE = 200


class LeaseLink:
    """What this process holds of one daemon's kernels. Thread-safe and fork-safe."""

    def __init__(self, socket: Path) -> None:
        self._path = os.fspath(lease_socket(socket))
        self._lock = threading.Lock()
        self._held: dict[str, None] = {}
        self._fresh: dict[str, str] = {}  # those of them that were not told yet, with their origins
        self._teller: object | None = None  # the thread that is to tell a burst's end
        self._last_told = float("-inf")
        self._connection: RawSocket | None = None
        self._unsent = b""
        self._next_try = 0.0

    def took(self, key: str, origin: str) -> None:
        """This process holds a kernel from now on. Costs one send at most; raises nothing."""
        if key in self._held or len(self._held) >= MAX_KERNELS:
            return
        with self._lock:
            self._held[key] = None
            self._fresh[key] = origin
            if time.monotonic() - self._last_told > BURST_S:
                self._tell()
            elif self._teller is None:
                self._teller = object()
                try:
                    # Thread.start() would wait until the thread runs: milliseconds on a busy node.
                    _thread.start_new_thread(self._tell_bursts, (self._teller,))
                except RuntimeError:  # no more threads, or the interpreter ends
                    self._teller = None
                    self._tell()

    def _tell_bursts(self, me: object) -> None:
        while True:
            time.sleep(BURST_S)
            with self._lock:
                if self._teller is not me:
                    return
                if not self._fresh:
                    self._teller = None
                    return
                self._tell()

    def _tell(self) -> None:
        """Send the fresh kernels; those that cannot be told now are told with all others when it connects."""
        self._last_told = time.monotonic()
        told = self._connection is not None and self._send_fresh()  # fails when the daemon went away
        if not told and self._connect():
            self._send_fresh()
        self._fresh.clear()

    def _send_fresh(self) -> bool:
        fresh = list(self._fresh.items())
        for start in range(0, len(fresh), _KEYS_PER_LINE):
            self._unsent += msgspec.json.encode({"took": fresh[start : start + _KEYS_PER_LINE]}) + b"\n"
        return self._send()

    def close(self) -> None:
        """Tell what is left to tell and end the connection, as the end of the process does."""
        with self._lock:
            self._teller = None
            if self._fresh:
                self._tell()
            self._drop()

    def renew_in_child(self) -> None:
        """After a fork: the connection is the parent's; the child tells what it has inherited on its own."""
        self._lock = threading.Lock()
        self._teller = None
        self._fresh = {}
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
