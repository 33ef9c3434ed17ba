"""Standby: the zygote's end of workers that were forked ahead of their job.

A fork of a process that holds TileLang takes over ten milliseconds, and a job needs two. So after a compile a
worker is forked for the next one at once, and when nothing comes, another which rehearses: a compile on that
one copies none of the zygote's pages. It costs a node some 50 MB, so there is one of each at most, only after
a compile, and not for long.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaas.compiler.process_tree import end_tree

AT_HAND_AFTER_S = 0.02
"""How long nothing is compiled before a worker is forked: those who wait for the last one go first."""

REHEARSED_AFTER_S = 0.2
"""The same for one that rehearses: whoever compiles can use the processor now."""

FOR_S = 300.0
"""How long after the last compile it is kept. A node compiles in bursts."""

_MESSAGE_BYTES = 256
_LOST_MOST = 3

ForkStandby = Callable[[socket.socket, socket.socket], int | None]
"""Fork a process that stands by at the second socket and closes the first; its pid, if there is room."""


@dataclass(kw_only=True)
class _Process:
    """A supervisor with a worker that stand by."""

    pid: int
    channel: socket.socket
    is_ready: bool = False


class Standby:
    """At most one such process. The zygote's loop tells it of its channel and of time."""

    def __init__(
        self,
        poller: select.poll,
        fork: ForkStandby,
        *,
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The channel is registered with ``poller``; the process is forked when nothing was compiled for
        ``after_s``."""
        self._clock = clock
        self._after_s = after_s
        self._poller = poller
        self._fork = fork
        self._process: _Process | None = None
        self._toolkits: set[str] = set()
        self._lost = 0
        self._idle_since: float | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that stands by."""
        return self._process.pid if self._process is not None else None

    def knows(self, toolkit_home: str) -> bool:
        """Whether :meth:`learn` was called for that toolkit."""
        return toolkit_home in self._toolkits

    def learn(self, toolkit_home: str) -> None:
        """This process has that toolkit's digests: whoever is forked from now on inherits them, whoever was
        forked before is of no use for it."""
        self.dismiss()
        self._toolkits.add(toolkit_home)

    def set_idle(self, is_idle: bool) -> None:
        """Whether nothing is compiled now."""
        if not is_idle:
            self._idle_since = None
        elif self._idle_since is None and self._toolkits:
            self._idle_since = self._clock()

    @property
    def wait_s(self) -> float | None:
        """How long until :meth:`act` has something to do; ``None`` when time changes nothing."""
        due = self._due()
        return None if due is None else max(0.0, due - self._clock())

    def hear(self, ready: set[int]) -> None:
        """Take what the process says, if its channel is among the ``ready``."""
        process = self._process
        if process is None or process.channel.fileno() not in ready:
            return
        try:
            said = process.channel.recv(_MESSAGE_BYTES)
        except OSError:
            said = b""
        if said:
            process.is_ready = True
        else:
            self._forget()
            self._lost += 1

    def act(self) -> None:
        """Start a process, or end it, if it is time."""
        due = self._due()
        if due is None or self._clock() < due:
            return
        if self._process is None:
            self._start()
        else:
            self.dismiss()

    def give(self, toolkit_home: str, folder: Path, connection: socket.socket) -> int | None:
        """Hand over a job; the pid of its supervisor, ``None`` when nobody can take it."""
        process = self._process
        if process is None or not process.is_ready or toolkit_home not in self._toolkits:
            return None
        try:
            socket.send_fds(process.channel, [os.fsencode(folder)], [connection.fileno()])
        except OSError:
            return None
        finally:
            self._forget()
        self._lost = 0
        return process.pid

    def dismiss(self) -> None:
        """End it now."""
        pid = self.pid
        self._forget()
        if pid is not None:
            end_tree(pid)

    def close_in_child(self) -> None:
        """In a process that was forked for something else: keep no channel open that is the zygote's."""
        if self._process is not None:
            self._process.channel.close()

    def _due(self) -> float | None:
        if self._idle_since is None:
            return None
        if self._process is not None:
            return self._idle_since + FOR_S
        has_rested = self._clock() >= self._idle_since + FOR_S
        return None if has_rested or self._lost >= _LOST_MOST else self._idle_since + self._after_s

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._fork(ours, theirs)
        if pid is None:
            self._lost += 1
            ours.close()
            return
        self._process = _Process(pid=pid, channel=ours)
        self._poller.register(ours, select.POLLIN)

    def _forget(self) -> None:
        """Without its channel it ends, unless it has a job."""
        if self._process is not None:
            self._poller.unregister(self._process.channel)
            self._process.channel.close()
            self._process = None


class Reserve:
    """Several of them, the best prepared first. Used like one."""

    def __init__(self, standbys: Sequence[Standby]) -> None:
        self._standbys = standbys

    @property
    def pids(self) -> list[int]:
        """Of the processes that stand by."""
        return [one.pid for one in self._standbys if one.pid is not None]

    @property
    def wait_s(self) -> float | None:
        """See :attr:`Standby.wait_s`."""
        return min((one.wait_s for one in self._standbys if one.wait_s is not None), default=None)

    def knows(self, toolkit_home: str) -> bool:
        """See :meth:`Standby.knows`."""
        return all(one.knows(toolkit_home) for one in self._standbys)

    def learn(self, toolkit_home: str) -> None:
        """See :meth:`Standby.learn`."""
        for one in self._standbys:
            one.learn(toolkit_home)

    def set_idle(self, is_idle: bool) -> None:
        """See :meth:`Standby.set_idle`."""
        for one in self._standbys:
            one.set_idle(is_idle)

    def hear(self, ready: set[int]) -> None:
        """See :meth:`Standby.hear`."""
        for one in self._standbys:
            one.hear(ready)

    def act(self) -> None:
        """See :meth:`Standby.act`."""
        for one in self._standbys:
            one.act()

    def give(self, toolkit_home: str, folder: Path, connection: socket.socket) -> int | None:
        """See :meth:`Standby.give`."""
        given = (one.give(toolkit_home, folder, connection) for one in self._standbys)
        return next((pid for pid in given if pid is not None), None)

    def dismiss(self) -> None:
        """See :meth:`Standby.dismiss`."""
        for one in self._standbys:
            one.dismiss()

    def close_in_child(self) -> None:
        """See :meth:`Standby.close_in_child`."""
        for one in self._standbys:
            one.close_in_child()
