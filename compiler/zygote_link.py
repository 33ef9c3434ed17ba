"""The daemon's end of one zygote: start it, hand it jobs, hear of ends, let it go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kaas.compiler.frames import (
    Command,
    Drain,
    KillJob,
    Ready,
    Refused,
    StartJob,
    SupervisorEnded,
    decode_report,
    encode,
)
from kaas.compiler.job import CompileJob
from kaas.compiler.process_tree import end_tree, resident_bytes
from kaas.compiler.tool_environment import worker_environment
from kaas.proto.errors import WorkerCrashed, error_from_record

_MESSAGE_BYTES = 1 << 16
_LOG_TAIL_BYTES = 4000


class ZygoteLink:
    """One zygote process. All methods belong to the event loop that started it."""

    def __init__(
        self, work_root: Path, environ: Mapping[str, str], on_end: Callable[[ZygoteLink], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._log_path = work_root / "zygote.log"
        self._ends: dict[int, asyncio.Future[int | None]] = {}
        self.jobs_given = 0
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.ended = asyncio.Event()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "kaas.compiler.zygote"),
                    *("--control-fd", str(theirs.fileno())),
                    *("--work-root", str(work_root)),
                    *("--daemon", str(os.getpid())),
                ],
                cwd="/",
                env=worker_environment(environ, work_root),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._control.setblocking(False)
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._control, self._hear)
        self._loop.add_reader(self._pid_fd, self._process_ended)

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Warm and alive."""
        return self.ready.done() and not self.ended.is_set() and self.ready.exception() is None

    def has_grown_beyond(self, limit_bytes: int) -> bool:
        """Whether its resident size is over ``limit_bytes`` for another reason than that it was born so."""
        if not self.is_usable:
            return False
        return resident_bytes(self.pid) > max(limit_bytes, self.ready.result().resident_bytes * 5 // 4)

    def start_job(
        self, job_id: int, job: CompileJob, connection: socket.socket
    ) -> asyncio.Future[int | None]:
        """Have a supervisor forked that talks over ``connection``. The future gives its exit status in the
        end (``None`` when the zygote ended first). Raises ``OSError`` when the zygote is gone."""
        command = StartJob(job_id=job_id, toolkit_home=job.toolkit_home, toolchain=job.toolchain)
        socket.send_fds(self._control, [encode(command)], [connection.fileno()])
        self.jobs_given += 1
        end: asyncio.Future[int | None] = self._loop.create_future()
        self._ends[job_id] = end
        return end

    def kill_job(self, job_id: int) -> None:
        """End a supervisor that does not end by itself."""
        self._command(KillJob(job_id=job_id))

    def drain(self) -> None:
        """Let the running jobs finish, then end."""
        self._command(Drain())

    def hang_up(self) -> None:
        """Close the control socket: the zygote ends its jobs and itself."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()

    async def end(self, limit_s: float) -> None:
        """Hang up and wait; after ``limit_s`` kill it and everything below."""
        self.hang_up()
        try:
            await asyncio.wait_for(self.ended.wait(), limit_s)
        except TimeoutError:
            end_tree(self.pid, deadline_s=1.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), 1.0)

    def _command(self, command: Command) -> None:
        with contextlib.suppress(OSError):
            self._control.send(encode(command))

    def _hear(self) -> None:
        try:
            data = self._control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return
        report = decode_report(data)
        if isinstance(report, Ready):
            if not self.ready.done():
                self.ready.set_result(report)
        elif isinstance(report, Refused):
            if not self.ready.done():
                self.ready.set_exception(error_from_record(report.error))
        elif isinstance(report, SupervisorEnded):
            end = self._ends.pop(report.job_id, None)
            if end is not None and not end.done():
                end.set_result(report.status)

    def _process_ended(self) -> None:
        self._loop.remove_reader(self._pid_fd)
        os.close(self._pid_fd)
        status = self._process.wait()
        while self._control.fileno() >= 0:  # what it said before it ended
            self._hear()
        if not self.ready.done():
            self.ready.set_exception(
                WorkerCrashed(
                    f"the compile zygote ended with status {status} before it was ready",
                    exit_status=status,
                    log_tail=self._log_tail(),
                )
            )
        self.ready.exception()  # an exception that nobody waits for is not worth a warning
        for end in self._ends.values():
            if not end.done():
                end.set_result(None)
        self._ends.clear()
        self.ended.set()
        self._on_end(self)

    def _log_tail(self) -> str:
        try:
            data = self._log_path.read_bytes()
        except OSError:
            return ""
        return data[-_LOG_TAIL_BYTES:].decode(errors="replace")
