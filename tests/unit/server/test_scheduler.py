"""The scheduler at its public surface; every order of events is staged by futures, never by sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from kaas.proto.errors import (
    CompileFailed,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    ShuttingDown,
)
from kaas.server.scheduler import Priority, Scheduler


class StagedCompiles:
    """A compile function whose runs end when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._ends: dict[str, asyncio.Future[str]] = {}

    def work(self, name: str) -> Callable[[], Awaitable[str]]:
        async def compile_it() -> str:
            self.started.append(name)
            self._ends[name] = asyncio.get_running_loop().create_future()
            return await self._ends[name]

        return compile_it

    def finish(self, name: str, value: str | None = None) -> None:
        self._ends[name].set_result(value or f"kernel {name}")

    def fail(self, name: str, error: BaseException) -> None:
        self._ends[name].set_exception(error)


async def settle() -> None:
    """Let every callback that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


def ask(scheduler: Scheduler[str], compiles: StagedCompiles, name: str, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(scheduler.run(name, compiles.work(name), **options))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_many_requests_for_one_key_are_one_compile() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=4, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, "a") for _ in range(100)]
        await settle()
        assert compiles.started == ["a"]
        compiles.finish("a")
        landings = await asyncio.gather(*waiters)
        assert {landing.value for landing in landings} == {"kernel a"}
        assert sum(not landing.joined for landing in landings) == 1
        assert (scheduler.counters.started, scheduler.counters.joined) == (1, 99)
        assert (scheduler.running, scheduler.queued) == (0, 0)

    run(scenario())


def test_at_most_workers_compiles_run_at_once() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=2, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, name) for name in "abcd"]
        await settle()
        assert compiles.started == ["a", "b"]
        assert (scheduler.running, scheduler.queued) == (2, 2)
        assert [(key, state) for key, state, _ in scheduler.in_flight()] == [
            ("a", "compiling"),
            ("b", "compiling"),
            ("c", "queued"),
            ("d", "queued"),
        ]
        compiles.finish("a")
        await settle()
        assert compiles.started == ["a", "b", "c"]
        for name in "bc":
            compiles.finish(name)
        await settle()
        compiles.finish("d")
        assert [landing.value for landing in await asyncio.gather(*waiters)] == [
            f"kernel {n}" for n in "abcd"
        ]

    run(scenario())


def test_a_failure_reaches_every_waiter_and_is_not_remembered() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, "a") for _ in range(100)]
        await settle()
        compiles.fail("a", CompileFailed("no", stage="lowering"))
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(outcome, CompileFailed) for outcome in outcomes)
        assert compiles.started == ["a"]
        assert scheduler.counters.failures == {"compile_failed": 1}
        again = ask(scheduler, compiles, "a")
        await settle()
        compiles.finish("a")
        assert (await again).value == "kernel a"

    run(scenario())


def test_an_unexpected_exception_becomes_an_incident(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiter = ask(scheduler, compiles, "a")
        await settle()
        compiles.fail("a", ZeroDivisionError("secret detail"))
        with pytest.raises(InternalError) as caught:
            await waiter
        assert "secret detail" not in str(caught.value)
        assert caught.value.details["incident"] in caplog.text
        assert "secret detail" in caplog.text

    run(scenario())


def test_a_waiters_deadline_does_not_end_the_compile() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        hasty = ask(scheduler, compiles, "a", timeout_s=0.001)
        patient = ask(scheduler, compiles, "a")
        with pytest.raises(DeadlineExceeded):
            await hasty
        assert not patient.done()
        compiles.finish("a")
        assert (await patient).value == "kernel a"

    run(scenario())


def test_a_running_compile_outlives_its_last_waiter() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiter = ask(scheduler, compiles, "a")
        await settle()
        waiter.cancel()
        await settle()
        assert waiter.cancelled()
        assert scheduler.running == 1
        compiles.finish("a")
        await settle()
        assert scheduler.counters.succeeded == 1

    run(scenario())


def test_a_queued_compile_that_nobody_waits_for_is_dropped() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        first = ask(scheduler, compiles, "a")
        await settle()
        unwanted = ask(scheduler, compiles, "b")
        wanted_by_one = [ask(scheduler, compiles, "c") for _ in range(2)]
        await settle()
        unwanted.cancel()
        wanted_by_one[0].cancel()
        await settle()
        assert scheduler.queued == 1
        assert scheduler.counters.dropped == 1
        compiles.finish("a")
        await first
        await settle()
        assert compiles.started == ["a", "c"]
        compiles.finish("c")
        assert (await wanted_by_one[1]).value == "kernel c"

    run(scenario())


def test_a_deadline_that_has_passed_starts_nothing() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        with pytest.raises(DeadlineExceeded):
            await scheduler.run("a", compiles.work("a"), timeout_s=0.0)
        await settle()
        assert compiles.started == []
        assert scheduler.queued == 0

    run(scenario())


def test_foreground_runs_before_prewarm_and_within_a_class_first_come_first_served() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, "busy")]
        await settle()
        for name in ("p1", "p2"):
            waiters.append(ask(scheduler, compiles, name, priority=Priority.PREWARM))
        for name in ("f1", "f2"):
            waiters.append(ask(scheduler, compiles, name))
        for name in ("busy", "f1", "f2", "p1", "p2"):
            await settle()
            compiles.finish(name)
        await asyncio.gather(*waiters)
        assert compiles.started == ["busy", "f1", "f2", "p1", "p2"]

    run(scenario())


def test_a_foreground_joiner_promotes_a_queued_prewarm() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, "busy")]
        await settle()
        for name in ("p1", "p2"):
            waiters.append(ask(scheduler, compiles, name, priority=Priority.PREWARM))
        await settle()
        waiters.append(ask(scheduler, compiles, "p2"))
        await settle()
        assert scheduler.counters.promoted == 1
        for name in ("busy", "p2", "p1"):
            await settle()
            compiles.finish(name)
        await asyncio.gather(*waiters)
        assert compiles.started == ["busy", "p2", "p1"]

    run(scenario())


def test_prewarm_takes_every_worker_and_keeps_none_from_those_who_wait() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=2, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, f"p{i}", priority=Priority.PREWARM) for i in range(4)]
        await settle()
        assert compiles.started == ["p0", "p1"]
        waiters += [ask(scheduler, compiles, name) for name in ("f1", "f2", "f3")]
        await settle()
        assert compiles.started == ["p0", "p1", "f1", "f2"]
        compiles.finish("p0")
        await settle()
        assert compiles.started == ["p0", "p1", "f1", "f2"]  # f1 and f2 have all workers, p2 none
        for name in ("f1", "f2", "f3", "p1", "p2", "p3"):
            compiles.finish(name)
            await settle()
        await asyncio.gather(*waiters)
        assert compiles.started[4:] == ["f3", "p2", "p3"]
        assert scheduler.running == 0

    run(scenario())


def test_prewarm_work_that_somebody_joins_counts_as_theirs() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, "p", priority=Priority.PREWARM)]
        await settle()
        waiters += [ask(scheduler, compiles, name) for name in ("p", "f")]
        await settle()
        assert compiles.started == ["p"]
        compiles.finish("p")
        await settle()
        assert compiles.started == ["p", "f"]
        compiles.finish("f")
        await asyncio.gather(*waiters)
        assert scheduler.running == 0

    run(scenario())


def test_prewarm_runs_on_the_only_worker() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiter = ask(scheduler, compiles, "p", priority=Priority.PREWARM)
        await settle()
        compiles.finish("p")
        assert (await waiter).value == "kernel p"

    run(scenario())


def test_a_full_queue_refuses_but_still_joins() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=2)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, name) for name in "abc"]
        await settle()
        with pytest.raises(Overloaded) as refusal:
            await scheduler.run("d", compiles.work("d"))
        assert refusal.value.details["queue_limit"] == 2
        waiters.append(ask(scheduler, compiles, "b"))
        for name in "abc":
            await settle()
            compiles.finish(name)
        await asyncio.gather(*waiters)
        assert scheduler.counters.rejected == 1

    run(scenario())


def test_a_full_queue_sheds_the_youngest_prewarm_for_foreground_work() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=2)
        compiles = StagedCompiles()
        busy = ask(scheduler, compiles, "busy")
        await settle()
        older, younger = (ask(scheduler, compiles, name, priority=Priority.PREWARM) for name in ("p1", "p2"))
        await settle()
        with pytest.raises(Overloaded):
            await scheduler.run("p3", compiles.work("p3"), priority=Priority.PREWARM)
        foreground = ask(scheduler, compiles, "f")
        with pytest.raises(Overloaded):
            await younger
        assert scheduler.counters.shed == 1
        for name in ("busy", "f", "p1"):
            await settle()
            compiles.finish(name)
        await asyncio.gather(busy, older, foreground)
        assert compiles.started == ["busy", "f", "p1"]

    run(scenario())


def test_stopping_wakes_running_and_queued_waiters_and_refuses_newcomers() -> None:
    async def scenario() -> None:
        scheduler: Scheduler[str] = Scheduler(workers=1, queue_limit=10)
        compiles = StagedCompiles()
        waiters = [ask(scheduler, compiles, name) for name in ("running", "queued")]
        await settle()
        await scheduler.stop(timeout_s=5)
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(outcome, ShuttingDown) for outcome in outcomes)
        assert compiles.started == ["running"]
        with pytest.raises(ShuttingDown):
            await scheduler.run("late", compiles.work("late"))
        assert (scheduler.running, scheduler.queued) == (0, 0)

    run(scenario())
