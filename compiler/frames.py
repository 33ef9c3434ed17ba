"""Length-prefixed MessagePack frames and the messages between daemon, zygote, supervisors and workers.

Eight bytes of little-endian length, then one message. Nothing here can carry code.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Literal, TypeVar

import msgspec

from kaas.compiler.job import CompileJob, CompileLimits, CompileOutput
from kaas.proto.toolchain import Toolchain

MAX_FRAME_BYTES = 2 << 30
_PREFIX_BYTES = 8

M = TypeVar("M")


class StartJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Daemon to zygote, with the job's socket attached: fork a supervisor for it."""

    job_id: int
    toolkit_home: str
    toolchain: Toolchain | None


class KillJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Daemon to zygote: end that supervisor and everything below it."""

    job_id: int


class Drain(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Daemon to zygote: take no more jobs, end when the running ones have."""


Command = StartJob | KillJob | Drain


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Zygote to daemon: TileLang is imported and warm."""

    resident_bytes: int
    threads: int


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Zygote to daemon: it cannot do its work; an error record."""

    error: dict[str, Any]


class SupervisorEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Zygote to daemon: a job's supervisor is gone. ``status`` is negative for a signal."""

    job_id: int
    status: int


Report = Ready | Refused | SupervisorEnded


class WorkerStarted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Supervisor to daemon: the process that compiles, and when it began to (Unix seconds)."""

    pid: int
    began_unix: float


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    """All that a supervisor needs to know of a :class:`CompileJob`, which it hands on as it came."""

    limits: CompileLimits


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Supervisor to worker: a job, and the empty folder for its files."""

    job: CompileJob
    folder: str


class Verdict(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Supervisor to daemon: how a job ended; by now all its processes and files are gone.

    ``status`` is the worker's exit status, negative for a signal. ``result`` is an encoded :class:`Result`
    when the outcome is ``finished``.
    """

    outcome: Literal["finished", "crashed", "timeout", "memory"]
    stage: str
    status: int = 0
    log_tail: str = ""
    result: bytes = b""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


SupervisorMessage = WorkerStarted | Verdict


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Worker to supervisor: an output or an error record."""

    output: CompileOutput | None = None
    error: dict[str, Any] | None = None


def encode(message: Any) -> bytes:
    """MessagePack of one message; what MessagePack cannot hold becomes text."""
    return msgspec.msgpack.encode(message, enc_hook=str)


def decode(data: bytes, kind: type[M]) -> M:
    """One message of a type. Raises ``msgspec.DecodeError``."""
    return msgspec.msgpack.decode(data, type=kind)


def decode_command(data: bytes) -> Command:
    """What the zygote is told."""
    return _COMMANDS.decode(data)


def decode_report(data: bytes) -> Report:
    """What the zygote tells."""
    return _REPORTS.decode(data)


def decode_supervisor_message(data: bytes) -> SupervisorMessage:
    """What a supervisor tells."""
    return _SUPERVISOR_MESSAGES.decode(data)


_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_SUPERVISOR_MESSAGES: msgspec.msgpack.Decoder[SupervisorMessage] = msgspec.msgpack.Decoder(SupervisorMessage)
# Made ahead, since who waits for a job inherits them: making one costs more than its use.
_JOB_LIMITS = msgspec.msgpack.Decoder(JobLimits)
_ORDERS = msgspec.msgpack.Decoder(Order)


def decode_job_limits(data: bytes) -> CompileLimits:
    """The limits of a job."""
    return _JOB_LIMITS.decode(data).limits


def encode_order(job: bytes, folder: str) -> bytes:
    """An :class:`Order` of a job that is encoded already."""
    return encode({"job": msgspec.Raw(job), "folder": folder})


def decode_order(data: bytes) -> Order:
    """What a worker is told."""
    return _ORDERS.decode(data)


def send_frame(connection: socket.socket, message: Any) -> None:
    """Blocking send of one frame."""
    send_encoded(connection, encode(message))


def send_encoded(connection: socket.socket, data: bytes) -> None:
    """Blocking send of one frame whose message is encoded already."""
    connection.sendall(len(data).to_bytes(_PREFIX_BYTES, "little") + data)


def receive_frame(connection: socket.socket) -> bytes | None:
    """Blocking receive of one frame; ``None`` if the other side closed first."""
    prefix = _receive_exactly(connection, _PREFIX_BYTES)
    if prefix is None:
        return None
    return _receive_exactly(connection, _checked_length(prefix))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame. Raises ``asyncio.IncompleteReadError`` when the other side closed first."""
    return await reader.readexactly(_checked_length(await reader.readexactly(_PREFIX_BYTES)))


def write_frame(writer: asyncio.StreamWriter, message: Any) -> None:
    """Queue one frame."""
    data = encode(message)
    writer.write(len(data).to_bytes(_PREFIX_BYTES, "little") + data)


def _checked_length(prefix: bytes) -> int:
    length = int.from_bytes(prefix, "little")
    if length > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes is not one of ours")
    return length


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
