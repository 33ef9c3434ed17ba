"""Pre-warm: many specs compiled behind foreground work, as one job whose progress can be followed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from kaas.kernel_library.registry import kernel_specs, may_be_composite
from kaas.proto.errors import InvalidRequest, JobNotFound, KaasError, Overloaded, ShuttingDown
from kaas.proto.log_facts import facts
from kaas.server.kernel_request import Outcome
from kaas.server.status import as_kaas_error

log = logging.getLogger(__name__)

MAX_ENTRIES = 20_000
MAX_ACTIVE_JOBS = 64
FINISHED_JOBS_KEPT = 64
FIRST_RETRY_S = 0.25
LAST_RETRY_S = 5.0


class PrewarmEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel to have ready; ``spec`` is JSON text or a plain mapping, checked when its turn comes."""

    spec: bytes | dict[str, Any]
    soc_name: str = ""


def kernels_of(entry: PrewarmEntry) -> list[PrewarmEntry]:
    """The entry, or one for each stage if it is a composite's; what is wrong shows when its turn comes."""
    if not may_be_composite(entry.spec):
        return [entry]
    try:
        specs = kernel_specs(entry.spec)
    except KaasError:
        return [entry]
    return [PrewarmEntry(spec=spec.to_record(), soc_name=entry.soc_name) for spec in specs]


class PrewarmEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One entry is done (``key`` and ``outcome``, or ``error``), or the job is (``finished``).

    ``seconds`` is that entry's time from its start to now, or the whole job's when ``finished``.
    """

    job_id: str
    total: int
    done: int
    ready: int
    failed: int
    index: int = 0
    key: str = ""
    outcome: Outcome | None = None
    error: dict[str, Any] | None = None
    seconds: float = 0.0
    finished: bool = False


Warm = Callable[[PrewarmEntry], Awaitable[tuple[str, Outcome]]]
"""Makes one entry ready: returns its key and how, or raises :class:`KaasError`."""


class PrewarmJob:
    """A running or finished job. Its events are kept, so a late follower sees all of them."""

    def __init__(self, entries: Sequence[PrewarmEntry], label: str) -> None:
        self.id = secrets.token_hex(8)
        self.label = label
        self.entries = tuple(entries)
        self.created_unix = time.time()
        self.ready = 0
        self.failed = 0
        self.is_finished = False
        self.is_cancelled = False
        self.events: list[PrewarmEvent] = []
        self.errors: list[tuple[int, dict[str, Any]]] = []
        self._news = asyncio.Event()
        self._started = time.monotonic()

    @property
    def total(self) -> int:
        """Entries in the job."""
        return len(self.entries)

    @property
    def done(self) -> int:
        """Entries that are ready or failed."""
        return self.ready + self.failed

    @property
    def state(self) -> Literal["running", "finished", "cancelled"]:
        """One word for people and programs."""
        if not self.is_finished:
            return "running"
        return "cancelled" if self.is_cancelled else "finished"

    async def ended(self) -> None:
        """Return once the job is finished or cancelled."""
        async for _ in self.follow():
            pass

    async def follow(self) -> AsyncIterator[PrewarmEvent]:
        """Every event from the first to the last, as they come."""
        position = 0
        while True:
            while position < len(self.events):
                event = self.events[position]
                position += 1
                yield event
                if event.finished:
                    return
            await self._news.wait()

    def entry_ready(self, index: int, key: str, outcome: Outcome, seconds: float) -> None:
        """Record that an entry's kernel is in the store."""
        self.ready += 1
        self._publish(index=index, key=key, outcome=outcome, seconds=seconds)

    def entry_failed(self, index: int, error: KaasError, seconds: float) -> None:
        """Record that an entry failed; the others go on."""
        self.failed += 1
        record = error.to_record()
        self.errors.append((index, record))
        self._publish(index=index, error=record, seconds=seconds)

    def finish(self) -> None:
        """Publish the summary; nothing follows it."""
        self.is_finished = True
        self._publish(finished=True, seconds=time.monotonic() - self._started)

    def _publish(self, **fields: Any) -> None:
        self.events.append(
            PrewarmEvent(
                job_id=self.id,
                total=self.total,
                done=self.done,
                ready=self.ready,
                failed=self.failed,
                **fields,
            )
        )
        # Wake present followers; the next ones wait on a fresh event.
        self._news.set()
        self._news = asyncio.Event()


class PrewarmJobs:
    """All jobs of this daemon: running ones, and the last finished ones for whoever asks late.

    ``width`` entries of one job are in hand at a time, so a large manifest cannot fill the queue.
    """

    def __init__(self, warm: Warm, *, width: int) -> None:
        self._warm = warm
        self._width = width
        self._jobs: dict[str, PrewarmJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self, entries: Sequence[PrewarmEntry], label: str = "") -> PrewarmJob:
        """Begin a job; a composite spec becomes an entry for each of its kernels.

        Raises :class:`InvalidRequest`, :class:`Overloaded` or :class:`ShuttingDown`.
        """
        if self._stopping:
            raise ShuttingDown("the daemon is stopping and takes no new work")
        if not 1 <= len(entries) <= MAX_ENTRIES:
            raise InvalidRequest(
                f"a pre-warm job of {len(entries)} entries",
                field="entries",
                legal=f"1 to {MAX_ENTRIES} entries",
            )
        if len(self._tasks) >= MAX_ACTIVE_JOBS:
            raise Overloaded(f"{MAX_ACTIVE_JOBS} pre-warm jobs are running", hint="wait for one to finish")
        job = PrewarmJob([kernel for entry in entries for kernel in kernels_of(entry)], label)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._run(job), name=f"prewarm {job.id}")
        # Also runs when the task is cancelled before its first step.
        task.add_done_callback(lambda _: self._conclude(job))
        self._tasks[job.id] = task
        self._forget_old()
        log.info("pre-warm job started", extra=facts(job=job.id, entries=job.total, label=label))
        return job

    def get(self, job_id: str) -> PrewarmJob:
        """A job by id. Raises :class:`JobNotFound`."""
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(
                f"no pre-warm job {job_id[:64]!r}", hint="finished jobs are kept for a while only"
            )
        return job

    def all(self) -> list[PrewarmJob]:
        """Every job that is still known, oldest first."""
        return list(self._jobs.values())

    def cancel(self, job_id: str) -> PrewarmJob:
        """Stop a job: entries that no worker has begun are given up. Raises :class:`JobNotFound`."""
        job = self.get(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            job.is_cancelled = True
            task.cancel()
        return job

    async def stop(self) -> None:
        """Cancel every job and let its followers see the end."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for job_id in list(self._tasks):
            self.cancel(job_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: PrewarmJob) -> None:
        waiting = iter(enumerate(job.entries))

        async def take_turns() -> None:
            for index, entry in waiting:
                await self._run_entry(job, index, entry)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._width, job.total)):
                group.create_task(take_turns())

    def _conclude(self, job: PrewarmJob) -> None:
        del self._tasks[job.id]
        job.finish()
        log.info(
            "pre-warm job cancelled" if job.is_cancelled else "pre-warm job finished",
            extra=facts(job=job.id, entries=job.total, ready=job.ready, failed=job.failed),
        )

    async def _run_entry(self, job: PrewarmJob, index: int, entry: PrewarmEntry) -> None:
        started = time.monotonic()
        try:
            key, outcome = await self._warm_patiently(entry)
        except Exception as error:  # one entry's failure is an event, never the end of the job
            job.entry_failed(index, as_kaas_error(error), time.monotonic() - started)
        else:
            job.entry_ready(index, key, outcome, time.monotonic() - started)

    async def _warm_patiently(self, entry: PrewarmEntry) -> tuple[str, Outcome]:
        """Pre-warm gives way: when the queue is full it tries again later."""
        pause_s = FIRST_RETRY_S
        while True:
            with contextlib.suppress(Overloaded):
                return await self._warm(entry)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_RETRY_S)

    def _forget_old(self) -> None:
        finished = [job_id for job_id, job in self._jobs.items() if job.is_finished]
        for job_id in finished[: max(0, len(finished) - FINISHED_JOBS_KEPT)]:
            del self._jobs[job_id]
