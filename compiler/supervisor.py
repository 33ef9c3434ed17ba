"""Supervisor: the process between the zygote and one worker. It only watches, so nothing can hang it.

Liveness is the connection to the daemon: when that closes (the daemon died, or nobody wants the result any
more), the job ends. As a subreaper the supervisor inherits every orphan of its job, also those that left the
session, and leaves no process and no file behind.
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Literal

from kaas.compiler.frames import Verdict, WorkerStarted, decode, receive_frame, send_frame
from kaas.compiler.guarded_process import LEAST_POLL_S, MemoryGauge
from kaas.compiler.job import CompileJob
from kaas.compiler.loaded_generator import LoadedGenerator
from kaas.compiler.process_tree import become_subreaper, descendants, end_descendants, held_bytes, set_name
from kaas.compiler.worker import log_tail, run_worker

_STAGE_BYTES = 64

Outcome = Literal["finished", "crashed", "timeout", "memory", "abandoned"]


class StageBoard:
    """One short text that the worker writes and the supervisor reads, also after a crash."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STAGE_BYTES)

    def set(self, stage: str) -> None:
        """Show ``stage``."""
        self._memory[:] = stage.encode()[: _STAGE_BYTES - 1].ljust(_STAGE_BYTES, b"\0")

    def get(self) -> str:
        """What is shown."""
        return self._memory[:].rstrip(b"\0").decode(errors="replace")


def supervise(connection: socket.socket, folder: Path, loaded: LoadedGenerator) -> None:
    """Receive one job on ``connection``, see it through and answer; its files lie in ``folder``."""
    become_subreaper()
    set_name("kaas-supervisor")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    request = receive_frame(connection)
    if request is None:
        return
    job = decode(request, CompileJob)
    try:
        folder.mkdir(mode=0o700)
        verdict = _Watch(connection, job, Path(tempfile.mkdtemp(dir=folder)), loaded).run()
        # Whoever hears the verdict may rely on it that nothing is left.
        shutil.rmtree(folder, ignore_errors=True)
        if verdict is not None:
            send_frame(connection, verdict)
    except (BrokenPipeError, ConnectionResetError):
        pass  # nobody wants the result any more
    except OSError as error:
        end_descendants()
        send_frame(connection, Verdict(outcome="crashed", stage="prepare", status=70, log_tail=str(error)))
    finally:
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)


class _Watch:
    """One worker under watch."""

    def __init__(
        self, connection: socket.socket, job: CompileJob, workdir: Path, loaded: LoadedGenerator
    ) -> None:
        self._connection = connection
        self._job = job
        self._workdir = workdir
        self._loaded = loaded
        self._stage = StageBoard()
        self._result_fd = os.memfd_create("kaas-result", os.MFD_CLOEXEC)
        self._log_fd = os.memfd_create("kaas-log", os.MFD_CLOEXEC)
        self._born_with = held_bytes(os.getpid())
        self._gauge = MemoryGauge(job.limits.memory_bytes)

    def run(self) -> Verdict | None:
        """Start the worker, wait for its end or a reason to end it; ``None`` if nobody listens any more."""
        started = time.monotonic()
        self._worker = self._fork()
        # It has its session and its urgency: from here on it may be hurried.
        send_frame(self._connection, WorkerStarted(pid=self._worker))
        outcome, status = self._wait(started + self._job.limits.wall_s)
        stage, log = self._stage.get(), log_tail(self._log_fd)
        end_descendants()
        shutil.rmtree(self._workdir, ignore_errors=True)
        if outcome == "abandoned":
            return None
        if outcome == "finished" and status != 0:
            outcome = "crashed"
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Verdict(
            outcome=outcome,
            stage=stage,
            status=status,
            log_tail=log if outcome != "finished" else "",
            result=self._read_result() if outcome == "finished" else b"",
            wall_seconds=time.monotonic() - started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_bytes=self._gauge.peak_bytes,
        )

    def _fork(self) -> int:
        supervisor = os.getpid()
        settled, settled_fd = os.pipe2(os.O_CLOEXEC)
        worker = os.fork()
        if worker == 0:
            self._connection.close()
            os.close(settled)
            run_worker(
                self._job,
                self._loaded,
                supervisor=supervisor,
                workdir=self._workdir,
                result_fd=self._result_fd,
                log_fd=self._log_fd,
                set_stage=self._stage.set,
                settled_fd=settled_fd,
            )
        os.close(settled_fd)
        os.read(settled, 1)
        os.close(settled)
        return worker

    def _wait(self, deadline: float) -> tuple[Outcome, int]:
        """(outcome, the worker's exit status if it ended by itself)."""
        worker_fd = os.pidfd_open(self._worker)
        poller = select.poll()
        poller.register(worker_fd, select.POLLIN)
        poller.register(self._connection, select.POLLIN)
        look_at = time.monotonic() + LEAST_POLL_S
        try:
            while True:
                wait_s = max(0.0, min(look_at, deadline) - time.monotonic())
                ready = {fd for fd, _ in poller.poll(1000 * wait_s)}
                if worker_fd in ready:
                    _, status = os.waitpid(self._worker, 0)
                    return "finished", os.waitstatus_to_exitcode(status)
                if self._connection.fileno() in ready:
                    # The daemon sends nothing after the job: this is the end of the connection.
                    return "abandoned", 0
                if time.monotonic() >= look_at:
                    if self._gauge.is_exceeded_by(self._held()):
                        return "memory", 0
                    look_at = time.monotonic() + self._gauge.wait_s
                if time.monotonic() > deadline:
                    return "timeout", 0
        finally:
            os.close(worker_fd)

    def _held(self) -> int:
        """Bytes that the job holds beyond the copy of the zygote that it was born with."""
        return sum(map(held_bytes, descendants(os.getpid()))) - self._born_with

    def _read_result(self) -> bytes:
        size = os.fstat(self._result_fd).st_size
        parts = []
        at = 0
        while at < size and (part := os.pread(self._result_fd, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
