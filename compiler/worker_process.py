"""Worker process: a supervisor's end of its one worker, forked for a job or ahead of it."""

from __future__ import annotations

import abc
import contextlib
import gc
import mmap
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kaas.compiler.frames import Order, decode, decode_order, receive_frame, send_encoded, send_frame
from kaas.compiler.loaded_generator import LoadedGenerator
from kaas.compiler.process_tree import held_bytes
from kaas.compiler.urgency import be_gentle, hurry, may_be_hurried, own_niceness
from kaas.compiler.worker import BEGAN, log_tail, run_worker

_STAGE_BYTES = 64
_PATH_BYTES = 4096


class _StageBoard:
    """One short text that the worker writes and the supervisor reads, also after a crash."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STAGE_BYTES)

    def set(self, stage: str) -> None:
        """Show ``stage``."""
        self._memory[:] = stage.encode()[: _STAGE_BYTES - 1].ljust(_STAGE_BYTES, b"\0")

    def get(self) -> str:
        """What is shown."""
        return self._memory[:].rstrip(b"\0").decode(errors="replace")


class WorkerProcess(abc.ABC):
    """What is left of a worker when it has ended: its last stage, its log, its result."""

    def __init__(self, loaded: LoadedGenerator) -> None:
        self.pid = 0
        self.born_with = 0
        """Bytes held when the job began, which are none of the job's."""
        self.rehearsed_cpu_s = 0.0
        """Processor time before the job began, likewise."""
        self.began_unix = 0.0
        """When it began."""
        self._loaded = loaded
        self._board = _StageBoard()
        self._result_fd = os.memfd_create("kaas-result", os.MFD_CLOEXEC)
        self._log_fd = os.memfd_create("kaas-log", os.MFD_CLOEXEC)
        self._settled, self._settled_fd = os.pipe2(os.O_CLOEXEC)

    @abc.abstractmethod
    def start(self, order: bytes) -> None:
        """Begin the job of an encoded :class:`Order`; then the worker has its session and its urgency."""

    @property
    def stage(self) -> str:
        """What it was at last about."""
        return self._board.get()

    @property
    def log(self) -> str:
        """The end of what it printed."""
        return log_tail(self._log_fd)

    @property
    def result(self) -> bytes:
        """What it reported."""
        size = os.fstat(self._result_fd).st_size
        parts = []
        at = 0
        while at < size and (part := os.pread(self._result_fd, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

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
                result_fd=self._result_fd,
                log_fd=self._log_fd,
                set_stage=self._board.set,
                settled_fd=self._settled_fd,
            )
        os.close(self._settled_fd)

    def _wait_until_settled(self) -> None:
        told = os.read(self._settled, BEGAN.size)
        os.close(self._settled)
        # One that died before it began says nothing.
        self.began_unix = BEGAN.unpack(told)[0] if len(told) == BEGAN.size else time.time()


class FreshWorker(WorkerProcess):
    """Forked when there is a job."""

    def __init__(self, loaded: LoadedGenerator, connection: socket.socket) -> None:
        """``connection`` is the supervisor's, which the worker does not keep."""
        super().__init__(loaded)
        self._connection = connection

    def start(self, order: bytes) -> None:
        """Fork; the worker begins at once."""
        self.born_with = held_bytes(os.getpid())
        self._fork(lambda: decode_order(order), close=[self._connection])
        self._wait_until_settled()


class StandbyWorker(WorkerProcess):
    """Forked ahead of its job, which it can begin at once. When it has rehearsed, the pages that lowering
    writes to are its own already, where a fresh worker copies each from the zygote when it comes to it."""

    def __init__(
        self, loaded: LoadedGenerator, channel: socket.socket, rehearse: Callable[[], None] | None
    ) -> None:
        """A job will come on ``channel``, which the supervisor alone keeps; its end is the worker's."""
        super().__init__(loaded)
        self._channel = channel
        self._rehearse = rehearse
        self._orders, self._taken = socket.socketpair()
        self._fork(self._take_order, close=[channel, self._orders])
        self._taken.close()

    def wait_until_ready(self) -> bool:
        """``False`` when the worker or the channel ended instead."""
        if self._channel in _readable(self._orders, self._channel):
            return False
        rehearsed = receive_frame(self._orders)
        if rehearsed is None:
            return False
        self.rehearsed_cpu_s = decode(rehearsed, float)
        return True

    def wait_for_job(self) -> tuple[Path, socket.socket] | None:
        """A job's folder and connection; ``None`` when there will be none, or the worker is gone."""
        if self._orders in _readable(self._orders, self._channel):
            return None
        data, fds, _, _ = socket.recv_fds(self._channel, _PATH_BYTES, 1)
        if not data or not fds:
            return None
        return Path(os.fsdecode(data)), socket.socket(fileno=fds[0])

    def start(self, order: bytes) -> None:
        """Tell the worker, which waits for it."""
        self.born_with = held_bytes(self.pid)
        with contextlib.suppress(OSError), self._orders:  # a worker that is gone is seen by who waits for it
            send_encoded(self._orders, order)
        self._wait_until_settled()

    def _take_order(self) -> Order | None:
        """In the worker: rehearse behind everybody else, then wait for the job."""
        if self._rehearse is not None:
            niceness = own_niceness()
            if may_be_hurried():
                be_gentle()
            self._rehearse()
            hurry(os.getpid(), niceness)
            os.ftruncate(self._log_fd, 0)
            os.lseek(self._log_fd, 0, os.SEEK_SET)
            gc.freeze()
        with self._taken as orders:
            send_frame(orders, time.process_time())
            order = receive_frame(orders)
        return None if order is None else decode_order(order)


def _readable(*sockets: socket.socket) -> set[socket.socket]:
    """Wait until at least one has something to read, its end included."""
    poller = select.poll()
    by_fd = {one.fileno(): one for one in sockets}
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    return {by_fd[fd] for fd, _ in poller.poll()}
