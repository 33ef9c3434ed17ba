"""Run one command under a wall-clock and a memory limit, over all its processes, and keep a bounded log."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from kaas.compiler.job import CompileLimits
from kaas.compiler.process_tree import descendants, die_with_parent, end_tree, held_bytes
from kaas.compiler.urgency import be_as_gentle_in_this_session

LEAST_POLL_S = 0.02
MOST_POLL_S = 0.1
_GROWTH_BYTES_PER_S = 4 << 30
"""Faster than a few threads can touch new memory."""

LOG_HEAD_BYTES = 32 << 10
LOG_TAIL_BYTES = 96 << 10
OUTPUT_FILE_LIMIT_BYTES = 1 << 30
_ADDRESS_SLACK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a guarded command ended. ``status`` is the exit status, negative for a signal."""

    outcome: Literal["exited", "timeout", "memory"]
    status: int
    log: str
    peak_bytes: int


class MemoryGauge:
    """Judges a series of measurements of a process tree.

    Only what two measurements in a row show counts: between fork and exec a child seems to hold a second copy
    of its parent.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._last = 0
        self.peak_bytes = 0

    @property
    def wait_s(self) -> float:
        """How soon to measure again: the nearer to the limit, the sooner. Looking costs processor time that
        the job could use."""
        left_s = (self._limit - self._last) / _GROWTH_BYTES_PER_S
        return max(LEAST_POLL_S, min(MOST_POLL_S, left_s))

    def is_exceeded_by(self, held: int) -> bool:
        """Take in one measurement; whether the limit is broken."""
        sustained = min(self._last, held)
        self._last = held
        self.peak_bytes = max(self.peak_bytes, sustained)
        return sustained > self._limit


class BoundedLog:
    """The beginning and the end of a byte stream of any length."""

    def __init__(self, head: int = LOG_HEAD_BYTES, tail: int = LOG_TAIL_BYTES) -> None:
        self._head_limit, self._tail_limit = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append."""
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        """What was kept, with a note where bytes are missing."""
        gap = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")


def run_guarded(
    argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], limits: CompileLimits
) -> Finished:
    """Run ``argv`` in a session of its own until it ends or breaks a limit; then kill what is left of it.

    A descendant that has left both the session and its parent is out of reach here; the supervisor, to which
    such orphans fall, ends them with the job. Raises ``OSError`` when it cannot be started. Call it from a
    single-threaded process.
    """
    deadline = time.monotonic() + limits.wall_s
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_child_setup(limits.memory_bytes, os.getpid()),
    )
    log = BoundedLog()
    gauge = MemoryGauge(limits.memory_bytes)
    outcome: Literal["exited", "timeout", "memory"] = "exited"
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    process_fd = os.pidfd_open(process.pid)
    poller = select.poll()
    poller.register(process_fd, select.POLLIN)
    poller.register(process.stdout, select.POLLIN)
    look_at = time.monotonic() + LEAST_POLL_S
    try:
        while process.poll() is None:
            ready = {fd for fd, _ in poller.poll(1000 * max(0.0, min(look_at, deadline) - time.monotonic()))}
            if process.stdout.fileno() in ready and not _read_available(process.stdout, log):
                poller.unregister(process.stdout)  # closed by all writers, but the process may run on
            if time.monotonic() >= look_at:
                if gauge.is_exceeded_by(sum(map(held_bytes, (process.pid, *descendants(process.pid))))):
                    outcome = "memory"
                    break
                look_at = time.monotonic() + gauge.wait_s
            if time.monotonic() > deadline:
                outcome = "timeout"
                break
    finally:
        os.close(process_fd)
        _end_session(process)
        with process.stdout:
            _read_available(process.stdout, log)
    return Finished(outcome=outcome, status=process.wait(), log=log.text(), peak_bytes=gauge.peak_bytes)


def _child_setup(memory_bytes: int, parent: int) -> Callable[[], None]:
    data_limit = 2 * memory_bytes + _ADDRESS_SLACK_BYTES

    def setup() -> None:
        die_with_parent(signal.SIGKILL, parent)
        be_as_gentle_in_this_session()
        # The poll above is the limit; this stops what allocates faster than it looks.
        _lower_limit(resource.RLIMIT_DATA, data_limit)
        _lower_limit(resource.RLIMIT_FSIZE, OUTPUT_FILE_LIMIT_BYTES)
        _lower_limit(resource.RLIMIT_CORE, 0)

    return setup


def _lower_limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (limit, limit))


def _read_available(stream: IO[bytes], log: BoundedLog) -> bool:
    """Read a bounded amount without waiting; whether anything may still come."""
    for _ in range(64):
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        log.add(data)
    return True


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the command with all below it, and whatever stayed in its process group when it ended by
    itself."""
    if process.poll() is None:
        end_tree(process.pid)
        process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
