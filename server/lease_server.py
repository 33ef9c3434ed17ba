"""Lease server: a plain socket on which client processes say what kernels they hold; its end is theirs.

Each line is a JSON object: first who it is, then the kernels as they are taken. Nothing of that is ever
answered. A connection whose first line asks for a kernel (:mod:`kaas.proto.plain_request`) is for that alone.
A line that is none of these ends its connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from kaas.cache.layout import is_key
from kaas.proto.errors import KaasError
from kaas.proto.log_facts import facts
from kaas.proto.plain_request import MAX_LINE_BYTES, Want
from kaas.server import listeners, plain_requests
from kaas.server.audit import Audit
from kaas.server.lease_table import Holder, LeaseTable
from kaas.server.listeners import SocketAccess
from kaas.server.plain_requests import MAX_JOB, MAX_RANK, Ask
from kaas.server.process_facts import start_ticks, user_name

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
MAX_CONNECTIONS_PER_PROCESS = 8
HELLO_LIMIT_S = 10.0
HANG_UP_CHECK_S = 0.5
"""How late it is noticed that whoever will say nothing more has gone for good."""

_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    lease: Literal[1]
    job: str = ""
    rank: str = ""


class _Kernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every other line: keys with where they came from; ``held`` ones were taken before and told before."""

    took: list[tuple[str, Literal["store", "hit", "compiled", "joined", "fetched"]]] = []
    held: list[str] = []


_HELLO_DECODER = msgspec.json.Decoder(_Hello)
_KERNELS_DECODER = msgspec.json.Decoder(_Kernels)


class LeaseServer:
    """Listens beside the daemon's main socket. ``used`` and ``released`` hear of keys."""

    def __init__(
        self,
        leases: LeaseTable,
        audit: Audit,
        *,
        used: Callable[[str], None],
        released: Callable[[list[str]], None],
        ask: Ask | None = None,
    ) -> None:
        """Without ``ask`` there are leases only."""
        self.leases = leases
        self.audit = audit
        self.used = used
        self.released = released
        self.ask = ask
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._access: SocketAccess | None = None
        self._own: tuple[int, int] | None = None
        self._connections: Counter[int] = Counter()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Whoever connects for ever must not take the files that compiles and artifacts need.
        self._most = MAX_CONNECTIONS if soft < 0 else min(MAX_CONNECTIONS, soft // 4)

    async def start(self, path: Path, access: SocketAccess) -> None:
        """Listen at ``path``. Without it kernels are served all the same, so trouble is only logged."""
        try:
            listener = listeners.bind_unix(path, access, field="socket")
        except (KaasError, OSError) as error:
            log.warning("no leases, because their socket cannot be had: %s", error)
            return
        self._path, self._access, self._own = path, access, listeners.identity(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listener)

    async def renew(self) -> bool:
        """Listen anew if the socket was deleted; whether it was. Connections and their leases stay."""
        path, access = self._path, self._access
        if path is None or access is None or os.path.lexists(path):
            return False
        if self._server is not None:
            self._server.close()
        await self.start(path, access)
        return True

    async def stop(self) -> None:
        """Stop listening; connections end with the process."""
        if self._server is not None:
            self._server.close()
        if self._path is not None:
            listeners.remove_own(self._path, self._own)

    def admit(self, pid: int) -> bool:
        """Count a connection; ``False`` when there are too many."""
        if self._connections.total() >= self._most:
            return False
        if pid > 0 and self._connections[pid] >= MAX_CONNECTIONS_PER_PROCESS:
            return False
        self._connections[pid] += 1
        return True

    def dismiss(self, pid: int) -> None:
        """A counted connection ended."""
        self._connections[pid] -= 1
        if self._connections[pid] <= 0:
            del self._connections[pid]


class _Connection(asyncio.Protocol):
    """One client process."""

    def __init__(self, server: LeaseServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._pid = self._uid = 0
        self._is_counted = False
        self._holder: Holder | None = None
        self._answering: asyncio.Task[None] | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._hang_up_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("socket")
        try:
            self._pid, self._uid, _ = _PEER.unpack(
                peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            )
        except OSError:
            transport.abort()
            return
        self._is_counted = self._server.admit(self._pid)
        if not self._is_counted:
            transport.abort()
            return
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_LIMIT_S, self._refuse_silence)

    def data_received(self, data: bytes) -> None:
        if not self._is_counted:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                self._take(line)
            if len(self._rest) > MAX_LINE_BYTES:
                raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.warning("a lease connection ended: %s", error, extra=facts(pid=self._pid, uid=self._uid))
            self._end()

    def eof_received(self) -> bool:
        """The client says nothing more: a lease ends, a question is answered while there is somebody to."""
        return self._answering is not None and self._is_listened_to()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _take(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        if self._answering is not None:
            raise ValueError("one question is all that a connection is for")
        if self._holder is None:
            if self._server.ask is not None and plain_requests.is_want(line):
                self._answer(plain_requests.decode_want(line), self._server.ask)
            else:
                self._greet(_HELLO_DECODER.decode(line))
            return
        kernels = _KERNELS_DECODER.decode(line)
        for key in (*(key for key, _ in kernels.took), *kernels.held):
            if not is_key(key):
                raise ValueError("a key is none")
        for key, origin in kernels.took:
            self._hold(key, origin)
        for key in kernels.held:
            self._hold(key, "held")

    def _answer(self, want: Want, ask: Ask) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()

        async def answer() -> None:
            line = await plain_requests.answer(want, self._pid, ask)
            assert self._transport is not None
            self._transport.write(line)
            self._transport.close()

        self._answering = asyncio.create_task(answer(), name=f"answer {self._pid}")

    def _is_listened_to(self) -> bool:
        """Whether the client can still read; looked at again and again, as the loop does not tell."""
        assert self._transport is not None
        if self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            return False
        loop = asyncio.get_running_loop()
        self._hang_up_timer = loop.call_later(HANG_UP_CHECK_S, self._end_if_alone)
        return True

    def _end_if_alone(self) -> None:
        if not self._is_listened_to():
            self._end()

    def _greet(self, hello: _Hello) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._holder = Holder(
            session=secrets.token_hex(6),
            pid=self._pid,
            uid=self._uid,
            user=user_name(self._uid),
            job=hello.job[:MAX_JOB],
            rank=hello.rank[:MAX_RANK],
            since_unix=time.time(),
            started=start_ticks(self._pid),
        )
        self._server.leases.open(self._holder)

    def _hold(self, key: str, origin: str) -> None:
        holder = self._holder
        assert holder is not None
        if not self._server.leases.take(holder.session, key, time.time()):
            return
        if origin == "store":  # of the others the daemon knows, having served them
            self._server.used(key)
        self._server.audit.note(
            "use",
            key=key,
            origin=origin,
            pid=holder.pid,
            uid=holder.uid,
            user=holder.user,
            job=holder.job,
            rank=holder.rank,
            session=holder.session,
            started=holder.started,
        )

    def _refuse_silence(self) -> None:
        log.info("a lease connection said nothing and was ended", extra=facts(pid=self._pid, uid=self._uid))
        self._end()

    def _end(self) -> None:
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._hang_up_timer is not None:
            self._hang_up_timer.cancel()
        if self._answering is not None:
            self._answering.cancel()  # nobody waits any more
        if self._is_counted:
            self._is_counted = False
            self._server.dismiss(self._pid)
        holder, self._holder = self._holder, None
        if holder is None:
            return
        held = self._server.leases.close(holder.session)
        if held:
            self._server.released(held)
            self._server.audit.note(
                "ended",
                pid=holder.pid,
                user=holder.user,
                session=holder.session,
                started=holder.started,
                kernels=len(held),
            )
