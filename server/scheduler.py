"""Scheduler: one compile per key however many ask, in order of urgency, as many at once as admission allows.

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
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kaas.proto.errors import DeadlineExceeded, KaasError, Overloaded, ShuttingDown
from kaas.server.admission import LOOK_AGAIN_S, Admission, unlimited_memory
from kaas.server.failure_kind import RetryPolicy, is_shortage
from kaas.server.status import as_kaas_error

log = logging.getLogger(__name__)

T = TypeVar("T")

FlightState = Literal["queued", "compiling"]

LONG_QUEUE = 64
FORECAST_AGE_S = 0.25
"""Of a long queue, forecasts may be this old: many deadlines can pass at one time."""

OnFailure = Callable[[KaasError, int], None]
"""Told a compile's last failure and how often it was tried."""


class Priority(enum.IntEnum):
    """Lower runs first: a rank holds up its whole job, a user only themselves, pre-warming nobody."""

    RANK = 0
    USER = 1
    PREWARM = 2


@dataclass(frozen=True, kw_only=True)
class Landing(Generic[T]):
    """What a waiter gets: the work's result, and whether another request had started it."""

    value: T
    joined: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How far a flight is. ``place`` counts queued flights from 1 (0: it runs); ``estimate_s`` is seconds
    until its result, as far as can be told from the compiles before it."""

    state: FlightState
    place: int
    estimate_s: float


@dataclass
class SchedulerCounters:
    """Totals since start. ``failures`` counts failed flights by error code, not failed waiters."""

    started: int = 0
    joined: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
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
    family: str
    subject: Any
    on_failure: OnFailure | None
    result: asyncio.Future[T]
    order: int
    waiters: int = 0
    task: asyncio.Task[None] | None = None
    started_at: float = 0.0
    reserved_bytes: int = 0
    attempts: int = 0
    had_shortage: bool = False
    last_error: KaasError | None = None
    pause: asyncio.TimerHandle | None = None

    @property
    def gives_way(self) -> bool:
        """Whether nobody waits for it, so that those who wait start beside it."""
        return self.priority is Priority.PREWARM


class Scheduler(Generic[T]):
    """Single-flight execution with admission and bounded retries.

    The most urgent flight starts as soon as admission allows it; one that must wait holds back those behind
    it, so that small ones cannot starve a large one. Pre-warm work takes slots that nobody else wants and
    keeps none from those who wait, who start beside it; it starts only while memory for another like it stays
    free for them (unless nothing runs). At most ``queue_limit`` flights wait; beyond that a request displaces
    the youngest of the least urgent ones below it, or is refused.
    """

    def __init__(
        self,
        *,
        workers: int,
        queue_limit: int,
        admission: Admission | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Without ``admission``, at most ``workers`` run at once whatever they take; without ``retries``,
        each is tried once."""
        self._admission = admission or unlimited_memory(workers)
        self._retries = retries or RetryPolicy()
        self._queue_limit = queue_limit
        self._flights: dict[str, _Flight[T]] = {}
        self._queue: list[tuple[int, int, _Flight[T]]] = []
        self._order = itertools.count()
        self._running: Counter[bool] = Counter()  # by whether they give way to those who wait
        self._reserved_bytes = 0
        self._look_again: asyncio.TimerHandle | None = None
        self._stopping = False
        self._forecasts: dict[str, Forecast] = {}
        self._forecast_at = -1.0
        self.counters = SchedulerCounters()

    @property
    def running(self) -> int:
        """Flights that are being worked on."""
        return self._running.total()

    @property
    def queued(self) -> int:
        """Flights that wait for a slot."""
        return len(self._flights) - self.running

    @property
    def reserved_bytes(self) -> int:
        """Memory that running flights have set aside."""
        return self._reserved_bytes

    def priority_of(self, key: str) -> Priority | None:
        """How urgent the flight of ``key`` is by now; ``None`` without one."""
        flight = self._flights.get(key)
        return flight.priority if flight is not None else None

    def in_flight(self) -> Iterator[tuple[str, FlightState, Any]]:
        """Key, state and subject of every flight, oldest first."""
        for flight in list(self._flights.values()):
            yield flight.key, ("compiling" if flight.task else "queued"), flight.subject

    def forecasts(self) -> dict[str, Forecast]:
        """How far every flight is, by key."""
        now = asyncio.get_running_loop().time()
        if len(self._flights) > LONG_QUEUE and 0 <= now - self._forecast_at < FORECAST_AGE_S:
            return self._forecasts
        found: dict[str, Forecast] = {}
        ends: list[tuple[float, int, bool]] = []
        for flight in self._flights.values():
            if flight.task is not None:
                elapsed_s = now - flight.started_at
                # One that takes longer than usual is expected to take a little longer still.
                left_s = max(self._admission.seconds(flight.family) - elapsed_s, 0.1 * elapsed_s)
                found[flight.key] = Forecast(state="compiling", place=0, estimate_s=left_s)
                heapq.heappush(ends, (left_s, flight.reserved_bytes, flight.gives_way))
        running, reserved, clock_s = self._running.copy(), self._reserved_bytes, 0.0
        waiting = sorted(
            (flight for flight in self._flights.values() if flight.task is None),
            key=lambda flight: (flight.priority, flight.order),
        )
        for place, flight in enumerate(waiting, start=1):
            need = self._need_bytes(flight)
            while ends and not self._fits(flight.gives_way, need, running, reserved):
                clock_s, freed, gave_way = heapq.heappop(ends)
                running[gave_way] -= 1
                reserved -= freed
            end_s = clock_s + self._admission.seconds(flight.family)
            heapq.heappush(ends, (end_s, need, flight.gives_way))
            running[flight.gives_way] += 1
            reserved += need
            found[flight.key] = Forecast(state="queued", place=place, estimate_s=end_s)
        self._forecasts, self._forecast_at = found, now
        return found

    async def run(
        self,
        key: str,
        work: Callable[[], Awaitable[T]],
        *,
        priority: Priority = Priority.USER,
        timeout_s: float | None = None,
        family: str = "",
        subject: Any = None,
        on_failure: OnFailure | None = None,
    ) -> Landing[T]:
        """Join the flight of ``key``, or start one that runs ``work``; wait at most ``timeout_s``.

        ``family`` is what costs are learned by. Transient failures are tried again as long as somebody waits
        and tries are left; ``on_failure`` is told the last one. Raises what the work raised,
        :class:`CompileOutOfMemory` when this node can never do it, :class:`DeadlineExceeded` (with the state,
        place and estimate), :class:`Overloaded` or :class:`ShuttingDown`.
        """
        if self._stopping:
            raise ShuttingDown("the daemon is stopping and takes no new work")
        if timeout_s is not None and timeout_s <= 0:
            raise self._deadline_missed(key, timeout_s)
        flight = self._flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = self._admit(key, work, priority, family, subject, on_failure)
        else:
            self.counters.joined += 1
            self._promote(flight, priority)
        flight.waiters += 1
        try:
            self._dispatch()
            done, _ = await asyncio.wait((flight.result,), timeout=timeout_s)
            if not done:
                raise self._deadline_missed(key, timeout_s or 0.0)
        finally:
            flight.waiters -= 1
            self._drop_if_unwanted(flight)
        return Landing(value=flight.result.result(), joined=joined)

    async def stop(self, timeout_s: float) -> None:
        """Refuse new work, wake every waiter with :class:`ShuttingDown`, cancel what runs."""
        self._stopping = True
        self._queue.clear()
        if self._look_again is not None:
            self._look_again.cancel()
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for flight in list(self._flights.values()):
            _fail(flight, ShuttingDown("the daemon stopped before this kernel was ready"))
            if flight.task is None:
                self._remove(flight)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _deadline_missed(self, key: str, timeout_s: float) -> DeadlineExceeded:
        self.counters.deadlines_missed += 1
        forecast = self.forecasts().get(key)
        if forecast is None:
            where = ""
        elif forecast.state == "compiling":
            where = f"; it is being compiled, about {forecast.estimate_s:.0f} s more"
        else:
            where = (
                f"; it is number {forecast.place} of {self.queued} in the queue, "
                f"about {forecast.estimate_s:.0f} s away"
            )
        return DeadlineExceeded(
            f"the kernel was not ready within {timeout_s:.3g} s{where}",
            hint="ask again with a longer timeout; a compile under way goes on",
            timeout_s=timeout_s,
            state=forecast.state if forecast else None,
            place=forecast.place if forecast and forecast.place else None,
            estimate_s=round(forecast.estimate_s, 3) if forecast else None,
        )

    def _admit(
        self,
        key: str,
        work: Callable[[], Awaitable[T]],
        priority: Priority,
        family: str,
        subject: Any,
        on_failure: OnFailure | None,
    ) -> _Flight[T]:
        self._admission.refuse_impossible(family)
        result = asyncio.get_running_loop().create_future()
        flight = _Flight(key, work, priority, family, subject, on_failure, result, next(self._order))
        if self.queued >= self._queue_limit and not self._may_start(flight):
            self._make_room(priority)
        # A failure that nobody waits for any more is no news.
        flight.result.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._flights[key] = flight
        self._enqueue(flight)
        return flight

    def _make_room(self, priority: Priority) -> None:
        """Displace the youngest of the least urgent queued flights, or refuse the newcomer."""
        victims = [
            flight for flight in self._flights.values() if flight.task is None and flight.priority > priority
        ]
        full = Overloaded(
            f"the queue is full: {self.queued} kernels are waiting for a compile worker",
            hint="ask again later",
            queue_limit=self._queue_limit,
        )
        if not victims:
            self.counters.rejected += 1
            raise full
        victim = max(victims, key=lambda flight: (flight.priority, flight.order))
        self.counters.shed += 1
        self._remove(victim)
        _fail(victim, full)

    def _enqueue(self, flight: _Flight[T]) -> None:
        heapq.heappush(self._queue, (flight.priority, flight.order, flight))

    def _promote(self, flight: _Flight[T], priority: Priority) -> None:
        if priority >= flight.priority:
            return
        gave_way, flight.priority = flight.gives_way, priority
        if flight.task is not None:
            self._running[gave_way] -= 1
            self._running[flight.gives_way] += 1
        else:
            self.counters.promoted += 1
            flight.order = next(self._order)
            if flight.pause is None:
                self._enqueue(flight)

    def _is_queued(self, flight: _Flight[T], order: int) -> bool:
        """False for a queue entry that was outrun: started, dropped, or queued again in another place."""
        return (
            self._flights.get(flight.key) is flight
            and flight.task is None
            and flight.pause is None
            and flight.order == order
        )

    def _need_bytes(self, flight: _Flight[T]) -> int:
        return self._admission.need_bytes(flight.family, after_shortage=flight.had_shortage)

    def _fits(self, gives_way: bool, need_bytes: int, running: Counter[bool], reserved_bytes: int) -> bool:
        return self._admission.fits(
            need_bytes,
            running=running.total(),
            reserved_bytes=reserved_bytes,
            giving_way=0 if gives_way else running[True],
            keep_free_bytes=need_bytes if gives_way else 0,
        )

    def _may_start(self, flight: _Flight[T]) -> bool:
        return self._fits(flight.gives_way, self._need_bytes(flight), self._running, self._reserved_bytes)

    def _dispatch(self) -> None:
        while self._queue and not self._stopping:
            _, order, flight = self._queue[0]
            if not self._is_queued(flight, order):
                heapq.heappop(self._queue)
            elif self._may_start(flight):
                heapq.heappop(self._queue)
                self._start(flight)
            else:
                self._look_again_later()
                return

    def _start(self, flight: _Flight[T]) -> None:
        flight.reserved_bytes = self._need_bytes(flight)
        flight.started_at = asyncio.get_running_loop().time()
        self._running[flight.gives_way] += 1
        self._reserved_bytes += flight.reserved_bytes
        self.counters.started += 1
        flight.task = asyncio.create_task(self._fly(flight), name=f"compile {flight.key[:12]}")

    def _look_again_later(self) -> None:
        """Memory may become free although none of ours ends."""
        if self._look_again is None and self._running[False] < self._admission.slots:
            self._look_again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_at_queue)

    def _look_at_queue(self) -> None:
        self._look_again = None
        self._dispatch()

    async def _fly(self, flight: _Flight[T]) -> None:
        try:
            value = await flight.work()
        except asyncio.CancelledError:
            self._release(flight)
            self._remove(flight)
            _fail(flight, ShuttingDown("the daemon stopped before this kernel was ready"))
            raise
        except Exception as error:  # every waiter must be woken, whatever went wrong
            self._release(flight)
            self._failed(flight, as_kaas_error(error))
        else:
            self._release(flight)
            self._remove(flight)
            self.counters.succeeded += 1
            if not flight.result.done():
                flight.result.set_result(value)
        self._dispatch()

    def _release(self, flight: _Flight[T]) -> None:
        self._running[flight.gives_way] -= 1
        self._reserved_bytes -= flight.reserved_bytes
        flight.task = None

    def _failed(self, flight: _Flight[T], error: KaasError) -> None:
        """Try again after a pause, without holding a slot meanwhile, or let it be the last word."""
        flight.attempts += 1
        flight.had_shortage |= is_shortage(error)
        flight.last_error = error
        delay_s = self._retries.delay_s(error, flight.attempts)
        if delay_s is None or flight.waiters == 0 or self._stopping:
            self._conclude(flight, error)
            return
        self.counters.retried += 1
        log.warning("trying a compile again in %.3g s after: %s", delay_s, error.message)
        flight.pause = asyncio.get_running_loop().call_later(delay_s, self._resume, flight)

    def _resume(self, flight: _Flight[T]) -> None:
        flight.pause = None
        self._enqueue(flight)
        self._dispatch()

    def _conclude(self, flight: _Flight[T], error: KaasError) -> None:
        self._remove(flight)
        self.counters.failed += 1
        self.counters.failures[error.code] += 1
        if flight.on_failure is not None:
            flight.on_failure(error, flight.attempts)
        _fail(flight, error)

    def _remove(self, flight: _Flight[T]) -> None:
        if flight.pause is not None:
            flight.pause.cancel()
            flight.pause = None
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _drop_if_unwanted(self, flight: _Flight[T]) -> None:
        if flight.waiters or self._flights.get(flight.key) is not flight or flight.task is not None:
            return
        if flight.last_error is not None:
            # It was tried already: the next one who asks must hear of it rather than start all over.
            self._conclude(flight, flight.last_error)
            return
        self.counters.dropped += 1
        self._remove(flight)
        flight.result.cancel()


def _fail(flight: _Flight[Any], error: KaasError) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        flight.result.set_exception(error)
