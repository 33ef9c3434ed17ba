"""PlainLink: asks the daemon for a kernel on its plain socket, where no more than one connect is needed."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import msgspec

from kaas.cache.held_file import with_room
from kaas.client.process_identity import legible_job_and_rank
from kaas.proto.errors import DaemonUnavailable, DeadlineExceeded, InternalError, error_from_record
from kaas.proto.locations import lease_socket

if TYPE_CHECKING:
    from _socket import socket as RawSocket
    from pathlib import Path

    from kaas.client.priority import Priority

_OUTCOMES = {"hit": 1, "compiled": 2, "joined": 3, "fetched": 4}
"""The wire's Outcome in gRPC."""


class PlainReply(msgspec.Struct, frozen=True, kw_only=True):
    """What gRPC's GetKernelResponse says; never the kernel's bytes."""

    key: str
    outcome: int
    artifact_path: str
    compile_seconds: float
    waited_seconds: float
    artifact: bytes = b""


def ask_plainly(
    socket: Path,
    spec_json: bytes,
    *,
    soc_name: str | None,
    strict: bool,
    priority: Priority,
    timeout: float | None,
) -> PlainReply | None:
    """The daemon's answer; ``None`` when it cannot be asked this way.

    Raises what the daemon raised, :class:`DaemonUnavailable` when the connection breaks before there is an
    answer, or :class:`DeadlineExceeded` after ``timeout`` seconds.
    """
    from kaas.proto.plain_request import MAX_LINE_BYTES, Given, Want

    job, rank = legible_job_and_rank()
    want = Want(
        spec=msgspec.Raw(spec_json),
        soc_name=soc_name or "",
        priority=priority,
        strict=strict,
        timeout_s=timeout,
        job=job,
        rank=rank,
    )
    line = msgspec.json.encode(want) + b"\n"
    if len(line) > MAX_LINE_BYTES or b"\n" in line[:-1]:
        return None
    answer = _exchange(os.fspath(lease_socket(socket)), line, timeout)
    if answer is None:
        return None
    try:
        given = msgspec.json.decode(answer, type=Given)
    except msgspec.DecodeError as error:
        raise InternalError(
            f"the daemon's answer cannot be read: {error}", hint="daemon and client versions differ"
        ) from None
    if given.error is not None:
        raise error_from_record(given.error)
    return PlainReply(
        key=given.key,
        outcome=_OUTCOMES.get(given.outcome, 1),
        artifact_path=given.path,
        compile_seconds=given.compile_seconds,
        waited_seconds=given.waited_seconds,
    )


def _exchange(path: str, line: bytes, timeout: float | None) -> bytes | None:
    """The line that answers ``line``; ``None`` when nobody can be reached."""
    # The module under `socket`: that one costs a rank 10 ms at its first kernel, this one nothing.
    import _socket

    try:
        connection = with_room(
            lambda: _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        )
    except OSError:
        return None
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        try:
            connection.settimeout(timeout)
            connection.connect(path)
        except OSError:
            return None
        connection.sendall(line)
        return _read_line(connection, deadline)
    except TimeoutError:
        raise DeadlineExceeded("the daemon did not answer in time") from None
    except OSError as error:
        raise DaemonUnavailable(
            f"the connection to the kaas daemon at {path} was lost: {error.strerror}", socket=path
        ) from None
    finally:
        connection.close()


def _read_line(connection: RawSocket, deadline: float | None) -> bytes:
    answer = b""
    while not answer.endswith(b"\n"):
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the daemon hung up")
        answer += part
    return answer
