"""Supervisor: the process between the zygote and one worker. It only watches, so nothing can hang it.

Liveness is the connection to the daemon: when that closes (the daemon died, or nobody wants the result any
more), the job ends. As a subreaper the supervisor inherits every orphan of its job, also those that left the
session, and leaves no process and no file behind.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from kaas.compiler.frames import Verdict, WorkerStarted, decode, receive_frame, send_frame
from kaas.compiler.guarded_process import LEAST_POLL_S, MemoryGauge
from kaas.compiler.job import CompileJob
from kaas.compiler.loaded_generator import LoadedGenerator
from kaas.compiler.process_tree import become_subreaper, descendants, end_descendants, held_bytes, set_name
from kaas.compiler.urgency import be_gentle, hurry, may_be_hurried, own_niceness
from kaas.compiler.worker import Order, log_tail, run_worker

SPARE_READY = b"ready"

_STAGE_BYTES = 64
_PATH_BYTES = 4096

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
    _begin()
    _see_through(connection, folder, FreshWorker(loaded, connection))


def stand_by(channel: socket.socket, loaded: LoadedGenerator, rehearse: Callable[[], None]) -> None:
    """Fork a worker that rehearses, say on ``channel`` when it has, and wait there for a job.

    The job comes as the path of its folder, with its connection attached. Ends when ``channel`` does.
    """
    _begin()
    set_name("kaas-spare")
    spare = RehearsedWorker(channel, loaded, rehearse)
    try:
        if not spare.wait_until_rehearsed():
            return
        channel.send(SPARE_READY)
        given = spare.wait_for_job(channel)
    except (BrokenPipeError, ConnectionResetError):
        return  # the zygote ends, or wants no spare any more
    finally:
        if spare.is_idle:
            end_descendants()
    if given is not None:
        folder, connection = given
        channel.close()
        with connection:
            _see_through(connection, folder, spare)


def _begin() -> None:
    become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _see_through(connection: socket.socket, folder: Path, worker: FreshWorker | RehearsedWorker) -> None:
    set_name("kaas-supervisor")
    request = receive_frame(connection)
    if request is None:
        end_descendants()
        return
    job = decode(request, CompileJob)
    try:
        folder.mkdir(mode=0o700)
        verdict = _Watch(connection, job, Path(tempfile.mkdtemp(dir=folder)), worker).run()
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


class _Worker:
    """What a worker shares with its supervisor."""

    def __init__(self, loaded: LoadedGenerator) -> None:
        self.stage = StageBoard()
        self.result_fd = os.memfd_create("kaas-result", os.MFD_CLOEXEC)
        self.log_fd = os.memfd_create("kaas-log", os.MFD_CLOEXEC)
        self.pid = 0
        self.born_with = 0
        self.rehearsed_cpu_s = 0.0
        self._loaded = loaded
        self._settled, self._settled_fd = os.pipe2(os.O_CLOEXEC)

    def _fork(self, take_order: Callable[[], Order | None], *, close: Sequence[socket.socket]) -> None:
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for connection in close:
                connection.close()
            os.close(self._settled)
            run_worker(
                take_order,
                self._loaded,
                supervisor=supervisor,
                result_fd=self.result_fd,
                log_fd=self.log_fd,
                set_stage=self.stage.set,
                settled_fd=self._settled_fd,
            )
        os.close(self._settled_fd)

    def _wait_until_settled(self) -> None:
        os.read(self._settled, 1)
        os.close(self._settled)


class FreshWorker(_Worker):
    """Forked when there is a job."""

    def __init__(self, loaded: LoadedGenerator, connection: socket.socket) -> None:
        super().__init__(loaded)
        self._connection = connection

    def start(self, job: CompileJob, workdir: Path) -> None:
        """Begin the job; afterwards the worker has its session and its urgency."""
        self.born_with = held_bytes(os.getpid())
        self._fork(lambda: (job, workdir), close=[self._connection])
        self._wait_until_settled()


class RehearsedWorker(_Worker):
    """Forked ahead of its job, which it can begin at once: the pages that lowering writes to are its own
    already, where a fresh worker copies each of them from the zygote when it comes to it."""

    def __init__(self, channel: socket.socket, loaded: LoadedGenerator, rehearse: Callable[[], None]) -> None:
        super().__init__(loaded)
        self._rehearse = rehearse
        self._orders, theirs = socket.socketpair()
        self._theirs = theirs
        self._fork(self._take_order, close=[channel, self._orders])
        theirs.close()
        self.is_idle = True

    def wait_until_rehearsed(self) -> bool:
        """``False`` when the worker ended instead."""
        rehearsed = receive_frame(self._orders)
        if rehearsed is None:
            return False
        self.rehearsed_cpu_s = decode(rehearsed, float)
        return True

    def wait_for_job(self, channel: socket.socket) -> tuple[Path, socket.socket] | None:
        """A job's folder and connection; ``None`` when there will be none, or the worker is gone."""
        worker_fd = os.pidfd_open(self.pid)
        poller = select.poll()
        poller.register(worker_fd, select.POLLIN)
        poller.register(channel, select.POLLIN)
        ready = {fd for fd, _ in poller.poll()}
        os.close(worker_fd)
        if channel.fileno() not in ready:
            return None
        data, fds, _, _ = socket.recv_fds(channel, _PATH_BYTES, 1)
        if not data or not fds:
            return None
        self.is_idle = False
        return Path(os.fsdecode(data)), socket.socket(fileno=fds[0])

    def start(self, job: CompileJob, workdir: Path) -> None:
        """Begin the job; afterwards the worker has its urgency."""
        self.born_with = held_bytes(self.pid)
        with contextlib.suppress(OSError), self._orders:  # a worker that is gone is seen by who waits for it
            send_frame(self._orders, (job, os.fspath(workdir)))
        self._wait_until_settled()

    def _take_order(self) -> Order | None:
        """In the worker: rehearse behind everybody else, then wait for the job."""
        niceness = own_niceness()
        if may_be_hurried():
            be_gentle()
        self._rehearse()
        hurry(os.getpid(), niceness)
        os.ftruncate(self.log_fd, 0)
        os.lseek(self.log_fd, 0, os.SEEK_SET)
        gc.freeze()
        with self._theirs as orders:
            send_frame(orders, time.process_time())
            order = receive_frame(orders)
        if order is None:
            return None
        job, workdir = decode(order, tuple[CompileJob, str])
        return job, Path(workdir)


class _Watch:
    """One worker under watch."""

    def __init__(
        self,
        connection: socket.socket,
        job: CompileJob,
        workdir: Path,
        worker: FreshWorker | RehearsedWorker,
    ) -> None:
        self._connection = connection
        self._job = job
        self._workdir = workdir
        self._worker = worker
        self._gauge = MemoryGauge(job.limits.memory_bytes)

    def run(self) -> Verdict | None:
        """Start the worker, wait for its end or a reason to end it; ``None`` if nobody listens any more."""
        worker = self._worker
        started = time.monotonic()
        worker.start(self._job, self._workdir)
        send_frame(self._connection, WorkerStarted(pid=worker.pid))  # from here on it may be hurried
        outcome, status = self._wait(started + self._job.limits.wall_s)
        stage, log = worker.stage.get(), log_tail(worker.log_fd)
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

    def _read_result(self) -> bytes:
        size = os.fstat(self._worker.result_fd).st_size
        parts = []
        at = 0
        while at < size and (part := os.pread(self._worker.result_fd, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
