"""Compiler pool: the daemon's way to compile, one process tree per job, never in the daemon itself.

The pool keeps one warm zygote, replaces it when it has done enough or dies, and turns what becomes of a job
into an output or a typed error. It does not limit how many jobs run at once: that is the scheduler's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from kaas.compiler.device_build import signal_name
from kaas.compiler.frames import (
    Result,
    Verdict,
    WorkerStarted,
    decode,
    decode_supervisor_message,
    read_frame,
    write_frame,
)
from kaas.compiler.job import CompileJob, CompileOutput
from kaas.compiler.loaded_generator import GENERATOR_STAGE
from kaas.compiler.process_tree import descendants, held_bytes, is_alive
from kaas.compiler.restart_delay import RestartDelay
from kaas.compiler.urgency import hurry
from kaas.compiler.work_root import WorkRoot
from kaas.compiler.zygote_link import ZygoteLink
from kaas.proto.errors import (
    CompileFailed,
    CompileOutOfMemory,
    CompileTimeout,
    KaasError,
    ShuttingDown,
    WorkerCrashed,
    error_from_record,
)
from kaas.proto.log_facts import facts

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""A job whose worker or compiler dies of something outside the job is tried once more, on a fresh worker."""

READY_LIMIT_S = 180.0
_OVERDUE_S = 10.0
_GONE_LIMIT_S = 5.0
_CLOSE_LIMIT_S = 4.0
_NEAR_LIMIT = 0.8


class CompilerPool:
    """Compiles jobs in forked workers. Belongs to one event loop."""

    def __init__(
        self,
        *,
        max_jobs: int = 500,
        max_rss_bytes: int = 2 << 30,
        attempts: int = ATTEMPTS,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """A zygote is replaced after ``max_jobs`` jobs or above ``max_rss_bytes``; running jobs are left
        alone. A job whose worker dies, or that may come out otherwise the next time, is tried ``attempts``
        times at once; 1 leaves that to the caller."""
        self._attempts = attempts
        self._max_jobs = max_jobs
        self._max_rss_bytes = max_rss_bytes
        self._environ = environ
        self._root: WorkRoot | None = None
        self._link: ZygoteLink | None = None
        self._links: set[ZygoteLink] = set()
        self._starting: asyncio.Task[ZygoteLink] | None = None
        self._job_ids = itertools.count(1)
        self._workers: dict[int, int] = {}
        self._background: dict[int, str] = {}
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._restart_delay = RestartDelay()
        self._closing = False
        self._starts = 0
        self.warmth_changed = asyncio.Event()
        """Set whenever :attr:`is_warm` may have changed; whoever waits for it clears it first."""

    @property
    def starts(self) -> int:
        """Compiles started so far, repeated attempts included."""
        return self._starts

    @property
    def is_warm(self) -> bool:
        """Whether a job would start at once."""
        return self._link is not None and self._link.is_usable

    @property
    def zygote_pid(self) -> int | None:
        """The current zygote's process id."""
        return self._link.pid if self._link is not None and self._link.is_usable else None

    def workers(self) -> list[int]:
        """Process ids of the live workers."""
        return [pid for pid in self._workers.values() if is_alive(pid)]

    def held_bytes(self) -> int:
        """Memory that running jobs hold now, on top of what their workers share with the zygote."""
        shared = held_bytes(self._link.pid) if self._link is not None else 0
        total = 0
        for worker in self.workers():
            total += max(0, held_bytes(worker) - shared)
            total += sum(map(held_bytes, descendants(worker)))
        return total

    async def start(self) -> None:
        """Start the zygote and wait until it is warm (about 5 s).

        Raises :class:`ToolchainMissing` when TileLang cannot be imported, :class:`WorkerCrashed` when the
        zygote dies, :class:`StoreUnavailable` when there is no room for temporary files.
        """
        await self._usable_link()

    def hurry(self, tag: str) -> None:
        """Somebody waits now for the background job of that tag."""
        for job_id in [job_id for job_id, own in self._background.items() if own == tag]:
            del self._background[job_id]
            if job_id in self._workers:
                hurry(self._workers[job_id])

    async def compile(self, job: CompileJob, tag: str = "") -> CompileOutput:
        """Compile one job. Cancelling the caller kills the job; ``tag`` is what :meth:`hurry` knows it by.

        Raises :class:`CompileFailed`, :class:`CompileTimeout`, :class:`CompileOutOfMemory`,
        :class:`WorkerCrashed` (at the last attempt), ShuttingDown, and what the family's builder refuses.
        """
        for attempt in itertools.count(1):
            try:
                return await self._attempt(job, tag)
            except (WorkerCrashed, CompileFailed) as error:
                if attempt >= self._attempts or self._closing or not _is_worth_repeating(error):
                    raise
                log.warning("trying a compile again after: %s", error)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """End every job and every process within seconds; compiles that wait raise :class:`ShuttingDown`."""
        self._closing = True
        if self._starting is not None:
            self._starting.cancel()
        for connection in list(self._connections.values()):
            connection.transport.abort()
        await asyncio.gather(*(link.end(_CLOSE_LIMIT_S) for link in list(self._links)))
        if self._root is not None:
            await asyncio.to_thread(self._root.remove)
            self._root = None

    async def _attempt(self, job: CompileJob, tag: str) -> CompileOutput:
        job_id = next(self._job_ids)
        if job.background:
            self._background[job_id] = tag
        try:
            return await self._run(job_id, job)
        finally:
            self._background.pop(job_id, None)

    async def _run(self, job_id: int, job: CompileJob) -> CompileOutput:
        link = await self._usable_link()
        ours, theirs = socket.socketpair()
        self._starts += 1
        try:
            with theirs:
                end = await _start(link, job_id, job, theirs)
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._connections[job_id] = writer
        verdict = None
        try:
            async with asyncio.timeout(job.limits.wall_s + _OVERDUE_S):
                verdict = await self._converse(job_id, job, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._raise_lost(end)
        except TimeoutError:
            link.kill_job(job_id)
            raise CompileTimeout(
                f"the compile was killed {_OVERDUE_S:g} s after its limit of {job.limits.wall_s:g} s",
                limit_s=job.limits.wall_s,
            ) from None
        finally:
            writer.transport.abort()
            del self._connections[job_id]
            if verdict is None:  # else all that is left of the job is a supervisor that is about to end
                await _settled(end)
                if self._root is not None:
                    # Only a supervisor that was killed leaves anything here.
                    folder = self._root.path / f"job-{job_id}"
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            self._workers.pop(job_id, None)
        output = _output_of(verdict, job)
        self._restart_delay.succeeded()
        return output

    async def _converse(
        self, job_id: int, job: CompileJob, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Verdict:
        write_frame(writer, job)
        await writer.drain()
        while True:
            message = decode_supervisor_message(await read_frame(reader))
            if isinstance(message, Verdict):
                return message
            if isinstance(message, WorkerStarted):
                self._workers[job_id] = message.pid
                log.info("worker started", extra=facts(began=message.began_unix))
                if job.background and job_id not in self._background:
                    hurry(message.pid)

    async def _raise_lost(self, end: asyncio.Future[int | None]) -> NoReturn:
        """The connection broke without a verdict: the supervisor died, or the pool is closing."""
        if self._closing:
            raise ShuttingDown("the daemon is stopping")
        await _settled(end)
        status = end.result() if end.done() and not end.cancelled() else None
        raise _crash(status, "its supervisor", stage=None, tail=None)

    async def _usable_link(self) -> ZygoteLink:
        """The current zygote, or the next one once it is warm. Starts a successor to a spent one
        meanwhile."""
        if self._closing:
            raise ShuttingDown("the daemon is stopping")
        link = self._link
        if link is not None and link.is_usable:
            if link.jobs_given >= self._max_jobs or link.has_grown_beyond(self._max_rss_bytes):
                self._start_zygote()
            return link
        starting = self._start_zygote()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and self._closing:
                raise ShuttingDown("the daemon is stopping") from None
            raise

    def _start_zygote(self) -> asyncio.Task[ZygoteLink]:
        """The task that brings up the next zygote; there is one at a time."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._bring_up(), name="compile-zygote")
            self._starting.add_done_callback(self._brought_up)
        return self._starting

    def _brought_up(self, task: asyncio.Task[ZygoteLink]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is not None:
            self._restart_delay.failed()
            log.error("the compile zygote did not start: %s", task.exception())

    async def _bring_up(self) -> ZygoteLink:
        await asyncio.sleep(self._restart_delay.seconds)
        if self._root is None:
            self._root = await asyncio.to_thread(WorkRoot.create)
        link = ZygoteLink(self._root.path, self._environ, self._zygote_ended)
        self._links.add(link)
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                await asyncio.shield(link.ready)
        except TimeoutError:
            await link.end(_CLOSE_LIMIT_S)
            raise WorkerCrashed(f"the compile zygote was not ready after {READY_LIMIT_S:g} s") from None
        before, self._link = self._link, link
        self.warmth_changed.set()
        if before is not None:
            before.drain()
        return link

    def _zygote_ended(self, link: ZygoteLink) -> None:
        self._links.discard(link)
        link.hang_up()
        if link is self._link:
            self._link = None
            self.warmth_changed.set()
            if not self._closing:
                self._restart_delay.failed()
                log.warning("the compile zygote %d died; starting another", link.pid)
                self._start_zygote()


async def _start(
    link: ZygoteLink, job_id: int, job: CompileJob, connection: socket.socket
) -> asyncio.Future[int | None]:
    while True:
        try:
            return link.start_job(job_id, job, connection)
        except BlockingIOError:
            await asyncio.sleep(0.01)  # many jobs at once, or a zygote busy with a toolkit's digests
        except OSError as error:
            raise WorkerCrashed(f"the compile zygote is gone: {error.strerror}") from None


async def _settled(end: asyncio.Future[int | None]) -> None:
    """Wait, not for ever, until a supervisor is gone and with it everything of its job."""
    await asyncio.wait([end], timeout=_GONE_LIMIT_S)


def _is_worth_repeating(error: KaasError) -> bool:
    """A crash, or a failure that another try may not show. A changed toolkit or generator stays changed."""
    if isinstance(error, CompileFailed):
        is_changed = error.details.get("stage") in ("toolkit", GENERATOR_STAGE)
        # A full disk can make a tool report success and leave nothing: that gets a second chance.
        may_pass = error.details.get("deterministic") is False or error.details.get("no_output") is True
        return may_pass and not is_changed
    return True


def _output_of(verdict: Verdict, job: CompileJob) -> CompileOutput:
    limits = job.limits
    if verdict.outcome == "timeout":
        raise CompileTimeout(
            f"the compile was killed after {limits.wall_s:g} s, in stage {verdict.stage}",
            limit_s=limits.wall_s,
            stage=verdict.stage,
            log_tail=verdict.log_tail or None,
        )
    near_limit = verdict.status == -signal.SIGKILL and verdict.peak_bytes > _NEAR_LIMIT * limits.memory_bytes
    if verdict.outcome == "memory" or (verdict.outcome == "crashed" and near_limit):
        raise CompileOutOfMemory(
            f"the compile needed more than {limits.memory_bytes >> 20} MiB, in stage {verdict.stage}",
            limit_bytes=limits.memory_bytes,
            peak_bytes=verdict.peak_bytes,
            stage=verdict.stage,
            log_tail=verdict.log_tail or None,
        )
    if verdict.outcome == "crashed":
        raise _crash(verdict.status, "it", stage=verdict.stage, tail=verdict.log_tail or None)
    try:
        result = decode(verdict.result, Result)
    except msgspec.DecodeError as error:
        raise WorkerCrashed(f"the compile worker's result cannot be read: {error}") from None
    if result.output is None:
        raise error_from_record(result.error or {})
    log.info(
        "worker ended",
        extra=facts(own_seconds=result.output.compile_seconds, wall_seconds=verdict.wall_seconds),
    )
    return msgspec.structs.replace(
        result.output,
        compile_seconds=verdict.wall_seconds,
        cpu_seconds=verdict.cpu_seconds,
        peak_rss_bytes=verdict.peak_bytes,
    )


def _crash(status: int | None, who: str, *, stage: str | None, tail: str | None) -> WorkerCrashed:
    if status is None:
        reason = "its zygote died"
    elif status < 0:
        reason = f"{who} was killed by {signal_name(-status)}"
    else:
        reason = f"{who} exited with status {status}"
    return WorkerCrashed(
        f"a compile worker was lost: {reason}",
        signal=signal_name(-status) if status is not None and status < 0 else None,
        exit_status=status if status is not None and status >= 0 else None,
        stage=stage,
        log_tail=tail,
    )
