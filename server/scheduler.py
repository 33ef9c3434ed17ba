"""Scheduler: one compile per key however many ask, in priority order, on a bounded number of workers.

All state belongs to one event loop; nothing here blocks or locks. A waiter's deadline or cancellation ends
that waiter's wait only: a running compile goes on, since the cache wants its result, and a queued one is
dropped when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import heapq
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kaas.proto.errors import DeadlineExceeded, KaasError, Overloaded, ShuttingDown
from kaas.server.status import as_kaas_error

T = TypeVar("T")

FlightState = Literal["queued", "compiling"]


class Priority(enum.IntEnum):
    """Lower runs first."""

    FOREGROUND = 0
    PREWARM = 1


@dataclass(frozen=True, kw_only=True)
class Landing(Generic[T]):
    """What a waiter gets: the work's result, and whether another request had started it."""

    value: T
    joined: bool


@dataclass
class SchedulerCounters:
    """Totals since start. ``failures`` counts failed flights by error code, not failed waiters."""

    started: int = 0
    joined: int = 0
    succeeded: int = 0
    failed: int = 0
    rejected: int = 0
    shed: int = 0
    dropped: int = 0
    promoted: int = 0
    deadlines_missed: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _Flight(Generic[T]):
    key: str
    work: Callable[[], Awaitable[T]]
    priority: Priority
    subject: Any
    result: asyncio.Future[T]
    waiters: int = 0
    task: asyncio.Task[None] | None = None


class Scheduler(Generic[T]):
    """Single-flight execution with admission.

    At most ``workers`` flights run at once. Pre-warm work starts only while another slot stays free for
    foreground work (unless there is only one). At most ``queue_limit`` flights wait; beyond that a foreground
    request displaces the youngest queued pre-warm flight, and anything else is refused.
    """

    def __init__(self, *, workers: int, queue_limit: int) -> None:
        self._workers = workers
        self._queue_limit = queue_limit
        self._flights: dict[str, _Flight[T]] = {}
        self._queue: list[tuple[int, int, _Flight[T]]] = []
        self._order = itertools.count()
        self._running = 0
        self._stopping = False
        self.counters = SchedulerCounters()

    @property
    def running(self) -> int:
        """Flights that hold a worker slot."""
        return self._running

    @property
    def queued(self) -> int:
        """Flights that wait for a slot."""
        return len(self._flights) - self._running

    def in_flight(self) -> Iterator[tuple[str, FlightState, Any]]:
        """Key, state and subject of every flight, oldest first."""
        for flight in list(self._flights.values()):
            yield flight.key, ("compiling" if flight.task else "queued"), flight.subject

    async def run(
        self,
        key: str,
        work: Callable[[], Awaitable[T]],
        *,
        priority: Priority = Priority.FOREGROUND,
        timeout_s: float | None = None,
        subject: Any = None,
    ) -> Landing[T]:
        """Join the flight of ``key``, or start one that runs ``work``; wait at most ``timeout_s``.

        Raises what the work raised, :class:`DeadlineExceeded`, :class:`Overloaded` or :class:`ShuttingDown`.
        Failures are not remembered: the next request after a failure tries again.
        """
        if self._stopping:
            raise ShuttingDown("the daemon is stopping and takes no new work")
        if timeout_s is not None and timeout_s <= 0:
            raise self._deadline_missed(timeout_s)
        flight = self._flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = self._admit(key, work, priority, subject)
        else:
            self.counters.joined += 1
            self._promote(flight, priority)
        flight.waiters += 1
        try:
            self._dispatch()
            done, _ = await asyncio.wait((flight.result,), timeout=timeout_s)
            if not done:
                raise self._deadline_missed(timeout_s or 0.0)
        finally:
            flight.waiters -= 1
            self._drop_if_unwanted(flight)
        return Landing(value=flight.result.result(), joined=joined)

    async def stop(self, timeout_s: float) -> None:
        """Refuse new work, wake every waiter with :class:`ShuttingDown`, cancel what runs."""
        self._stopping = True
        self._queue.clear()
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for flight in list(self._flights.values()):
            _fail(flight, ShuttingDown("the daemon stopped before this kernel was ready"))
            if flight.task is None:
                del self._flights[flight.key]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _deadline_missed(self, timeout_s: float) -> DeadlineExceeded:
        self.counters.deadlines_missed += 1
        return DeadlineExceeded(
            f"the kernel was not ready within {timeout_s:.3g} s",
            hint="ask again with a longer timeout; a compile under way goes on",
            timeout_s=timeout_s,
        )

    def _admit(
        self, key: str, work: Callable[[], Awaitable[T]], priority: Priority, subject: Any
    ) -> _Flight[T]:
        if self.queued >= self._queue_limit and not self._may_start(priority):
            self._make_room(priority)
        flight = _Flight(key, work, priority, subject, asyncio.get_running_loop().create_future())
        # A failure that nobody waits for any more is no news.
        flight.result.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._flights[key] = flight
        self._enqueue(flight)
        return flight

    def _make_room(self, priority: Priority) -> None:
        """Displace the youngest queued pre-warm flight, or refuse the newcomer."""
        victims = [
            (order, flight)
            for rank, order, flight in self._queue
            if rank == Priority.PREWARM and self._is_queued(flight, rank)
        ]
        full = Overloaded(
            f"the queue is full: {self.queued} kernels are waiting for a compile worker",
            hint="ask again later",
            queue_limit=self._queue_limit,
        )
        if priority is not Priority.FOREGROUND or not victims:
            self.counters.rejected += 1
            raise full
        _, victim = max(victims, key=lambda entry: entry[0])
        self.counters.shed += 1
        del self._flights[victim.key]
        _fail(victim, full)

    def _enqueue(self, flight: _Flight[T]) -> None:
        heapq.heappush(self._queue, (flight.priority, next(self._order), flight))

    def _promote(self, flight: _Flight[T], priority: Priority) -> None:
        if priority >= flight.priority:
            return
        flight.priority = priority
        if flight.task is None:
            self.counters.promoted += 1
            self._enqueue(flight)

    def _is_queued(self, flight: _Flight[T], rank: int) -> bool:
        """False for a queue entry that was outrun: started, dropped, or queued again at a higher priority."""
        return self._flights.get(flight.key) is flight and flight.task is None and flight.priority == rank

    def _may_start(self, priority: Priority) -> bool:
        free = self._workers - self._running
        return free > (1 if priority is Priority.PREWARM and self._workers > 1 else 0)

    def _dispatch(self) -> None:
        while self._queue and not self._stopping:
            rank, _, flight = self._queue[0]
            if not self._is_queued(flight, rank):
                heapq.heappop(self._queue)
            elif self._may_start(flight.priority):
                heapq.heappop(self._queue)
                self._running += 1
                self.counters.started += 1
                flight.task = asyncio.create_task(self._fly(flight), name=f"compile {flight.key[:12]}")
            else:
                return

    async def _fly(self, flight: _Flight[T]) -> None:
        try:
            value = await flight.work()
        except asyncio.CancelledError:
            _fail(flight, ShuttingDown("the daemon stopped before this kernel was ready"))
            raise
        except Exception as error:  # every waiter must be woken, whatever went wrong
            failure = as_kaas_error(error)
            self.counters.failed += 1
            self.counters.failures[failure.code] += 1
            _fail(flight, failure)
        else:
            self.counters.succeeded += 1
            if not flight.result.done():
                flight.result.set_result(value)
        finally:
            self._running -= 1
            del self._flights[flight.key]
            self._dispatch()

    def _drop_if_unwanted(self, flight: _Flight[T]) -> None:
        if flight.waiters == 0 and self._flights.get(flight.key) is flight and flight.task is None:
            self.counters.dropped += 1
            del self._flights[flight.key]
            flight.result.cancel()


def _fail(flight: _Flight[Any], error: KaasError) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        flight.result.set_exception(error)
