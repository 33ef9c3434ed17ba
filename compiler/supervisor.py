"""Supervisor: the process between the zygote and one worker. It only watches, so nothing can hang it.

Liveness is the connection to the daemon: when that closes (the daemon died, or nobody wants the result any
more), the job ends. As a subreaper the supervisor inherits every orphan of its job, also those that left the
session, and leaves no process and no file behind.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from kaas.compiler.frames import (
    Verdict,
    WorkerStarted,
    decode_job_limits,
    encode_order,
    receive_frame,
    send_frame,
)
from kaas.compiler.guarded_process import LEAST_POLL_S, MemoryGauge
from kaas.compiler.loaded_generator import LoadedGenerator
from kaas.compiler.process_tree import become_subreaper, descendants, end_descendants, held_bytes, set_name
from kaas.compiler.worker_process import FreshWorker, StandbyWorker, WorkerProcess

Outcome = Literal["finished", "crashed", "timeout", "memory", "abandoned"]


def supervise(connection: socket.socket, folder: Path, loaded: LoadedGenerator) -> None:
    """Receive one job on ``connection``, see it through and answer; its files lie in ``folder``."""
    _begin()
    _see_through(connection, folder, FreshWorker(loaded, connection))


def stand_by(channel: socket.socket, loaded: LoadedGenerator, rehearse: Callable[[], None] | None) -> None:
    """Fork a worker that rehearses, say on ``channel`` when it has, and wait there for a job. Without
    ``rehearse`` it is forked, no more.

    The job comes as the path of its folder, with its connection attached. Ends when ``channel`` does.
    """
    _begin()
    set_name("kaas-rehearsal" if rehearse else "kaas-at-hand")
    worker = StandbyWorker(loaded, channel, rehearse)
    given = None
    # A broken channel: the zygote ends, or wants nobody to stand by any more.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if worker.wait_until_ready():
            channel.send(b"stands by")
            if rehearse:
                set_name("kaas-standby")
            given = worker.wait_for_job()
    if given is None:
        end_descendants()
        return
    folder, connection = given
    channel.close()
    with connection:
        _see_through(connection, folder, worker)


def _begin() -> None:
    become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _see_through(connection: socket.socket, folder: Path, worker: WorkerProcess) -> None:
    set_name("kaas-supervisor")
    job = receive_frame(connection)
    if job is None:
        end_descendants()
        return
    try:
        folder.mkdir(mode=0o700)
        verdict = _Watch(connection, job, folder, worker).run()
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
        self,
        connection: socket.socket,
        job: bytes,
        folder: Path,
        worker: WorkerProcess,
    ) -> None:
        self._connection = connection
        self._order = encode_order(job, os.fspath(folder))
        self._worker = worker
        self._limits = decode_job_limits(job)
        self._gauge = MemoryGauge(self._limits.memory_bytes)

    def run(self) -> Verdict | None:
        """Start the worker, wait for its end or a reason to end it; ``None`` if nobody listens any more."""
        worker = self._worker
        started = time.monotonic()
        worker.start(self._order)
        # From here on it may be hurried.
        send_frame(self._connection, WorkerStarted(pid=worker.pid, began_unix=worker.began_unix))
        outcome, status = self._wait(started + self._limits.wall_s)
        stage, log = worker.stage, worker.log
        end_descendants()
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
            result=worker.result if outcome == "finished" else b"",
            wall_seconds=time.monotonic() - started,
            cpu_seconds=max(0.0, usage.ru_utime + usage.ru_stime - worker.rehearsed_cpu_s),
            peak_bytes=self._gauge.peak_bytes,
        )

    def _wait(self, deadline: float) -> tuple[Outcome, int]:
        """(outcome, the worker's exit status if it ended by itself)."""
        worker_fd = os.pidfd_open(self._worker.pid)
        poller = select.poll()
        poller.register(worker_fd, select.POLLIN)
        poller.register(self._connection, select.POLLIN)
        look_at = time.monotonic() + LEAST_POLL_S
        try:
            while True:
                wait_s = max(0.0, min(look_at, deadline) - time.monotonic())
                ready = {fd for fd, _ in poller.poll(1000 * wait_s)}
                if worker_fd in ready:
                    _, status = os.waitpid(self._worker.pid, 0)
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
        return sum(map(held_bytes, descendants(os.getpid()))) - self._worker.born_with
