"""The queue: order by who waits, admission by memory, places and estimates, tries and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from kaas.proto.errors import (
    CompileFailed,
    CompileOutOfMemory,
    DeadlineExceeded,
    KaasError,
    Overloaded,
    WorkerCrashed,
)
from kaas.server.admission import Admission, MemoryBudget
from kaas.server.compile_costs import CompileCosts
from kaas.server.control_group import MemoryRoom
from kaas.server.failure_kind import LONGEST_DELAY_S, RetryPolicy
from kaas.server.scheduler import Priority, Scheduler

GIB = 1 << 30
CRASH = WorkerCrashed("a compile worker was lost", exit_status=3)
PAUSE_S = LONGEST_DELAY_S


class Compiles:
    """Compiles that end when the test says so, each recorded with how many ran when it started."""

    def __init__(self, scheduler: Scheduler[str]) -> None:
        self._scheduler = scheduler
        self.started: list[str] = []
        self.most_at_once = 0
        self._ends: dict[str, asyncio.Future[str]] = {}

    def ask(self, name: str, **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(
            self._scheduler.run(name, self._work(name), family=name.rstrip("0123456789"), **options)
        )

    def _work(self, name: str) -> Callable[[], Awaitable[str]]:
        async def compile_it() -> str:
            self.started.append(name)
            self.most_at_once = max(self.most_at_once, self._scheduler.running)
            self._ends[name] = asyncio.get_running_loop().create_future()
            return await self._ends[name]

        return compile_it

    def end(self, name: str, error: KaasError | None = None) -> None:
        if error is not None:
            self._ends[name].set_exception(error)
        else:
            self._ends[name].set_result(f"kernel {name}")

    async def end_all(self, *waiters: asyncio.Task[Any]) -> None:
        while not all(waiter.done() for waiter in waiters):
            await settle()
            for end in self._ends.values():
                if not end.done():
                    end.set_result("kernel")
        await asyncio.gather(*waiters, return_exceptions=True)


class MovableTime(asyncio.SelectorEventLoop):
    """A loop whose timers wait for the test: pauses are longer than any test takes, unless time is passed."""

    moved_s = 0.0

    def time(self) -> float:
        return super().time() + self.moved_s


async def pass_pause() -> None:
    """Let every pause between two tries end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableTime)
    loop.moved_s += PAUSE_S
    await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def scheduler(
    *, budget_gib: float = 1000, workers: int = 64, attempts: int = 1, queue_limit: int = 1000, **peaks: int
) -> Scheduler[str]:
    """A scheduler that has learned ``peaks`` (GiB by family; 10 s each); others are guessed at 2 GiB."""
    costs = CompileCosts(first_guess_bytes=2 * GIB, limit_bytes=8 * GIB)
    for family, peak in peaks.items():
        costs.learn(family, peak_bytes=peak * GIB, seconds=10.0)
    room = MemoryRoom(total_bytes=16 * GIB, free_bytes=16 * GIB)
    return Scheduler(
        workers=workers,
        queue_limit=queue_limit,
        admission=Admission(
            slots=workers,
            costs=costs,
            budget=MemoryBudget(int(budget_gib * GIB), room=lambda: room),
            limit_bytes=8 * GIB,
        ),
        retries=RetryPolicy(attempts=attempts, first_delay_s=PAUSE_S),
    )


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=MovableTime) as runner:
        runner.run(scenario)


def test_ranks_go_before_users_and_users_before_prewarming() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=1)
        compiles = Compiles(queue)
        waiters = [compiles.ask("busy")]
        await settle()
        for name, priority in (
            ("p1", Priority.PREWARM),
            ("u1", Priority.USER),
            ("r1", Priority.RANK),
            ("u2", Priority.USER),
            ("r2", Priority.RANK),
        ):
            waiters.append(compiles.ask(name, priority=priority))
        await compiles.end_all(*waiters)
        assert compiles.started == ["busy", "r1", "r2", "u1", "u2", "p1"]

    run(scenario())


def test_a_rank_that_joins_a_queued_user_compile_brings_it_forward() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=1)
        compiles = Compiles(queue)
        waiters = [compiles.ask("busy")]
        await settle()
        waiters += [compiles.ask(name) for name in ("u1", "u2")]
        await settle()
        waiters.append(compiles.ask("u2", priority=Priority.RANK))
        await compiles.end_all(*waiters)
        assert compiles.started == ["busy", "u2", "u1"]

    run(scenario())


def test_a_full_queue_sheds_a_user_for_a_rank_but_no_rank_for_anybody() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=1, queue_limit=2)
        compiles = Compiles(queue)
        busy = compiles.ask("busy")
        await settle()
        older, younger = compiles.ask("u1"), compiles.ask("u2")
        await settle()
        first = compiles.ask("r1", priority=Priority.RANK)
        await settle()
        with pytest.raises(Overloaded):
            await younger
        second = compiles.ask("r2", priority=Priority.RANK)
        await settle()
        with pytest.raises(Overloaded):
            await older
        with pytest.raises(Overloaded):
            await compiles.ask("r3", priority=Priority.RANK)
        await compiles.end_all(busy, first, second)

    run(scenario())


def test_as_many_compile_at_once_as_the_budget_holds() -> None:
    async def scenario() -> None:
        queue = scheduler(budget_gib=6, gemm=2)
        compiles = Compiles(queue)
        waiters = [compiles.ask(f"gemm{number}") for number in range(40)]
        await settle()
        assert (queue.running, queue.queued, queue.reserved_bytes) == (3, 37, 6 * GIB)
        await compiles.end_all(*waiters)
        assert compiles.most_at_once == 3
        assert (queue.running, queue.reserved_bytes) == (0, 0)

    run(scenario())


def test_a_large_one_runs_alone_and_small_ones_behind_it_do_not_starve_it() -> None:
    async def scenario() -> None:
        queue = scheduler(budget_gib=4, small=1, huge=7)
        compiles = Compiles(queue)
        waiters = [compiles.ask(f"small{number}") for number in range(3)]
        waiters.append(compiles.ask("huge"))
        waiters += [compiles.ask(f"small{number}") for number in range(3, 9)]
        await settle()
        assert compiles.started == ["small0", "small1", "small2"]  # the fourth would fit, but huge is first
        for number in range(3):
            compiles.end(f"small{number}")
        await settle()
        assert compiles.started[3:] == ["huge"]
        compiles.end("huge")
        await settle()
        assert compiles.started[4:] == ["small3", "small4", "small5", "small6"]
        await compiles.end_all(*waiters)

    run(scenario())


def test_prewarming_leaves_memory_for_those_who_wait() -> None:
    async def scenario() -> None:
        queue = scheduler(budget_gib=6, gemm=2)
        compiles = Compiles(queue)
        waiters = [compiles.ask(f"gemm{number}", priority=Priority.PREWARM) for number in range(5)]
        await settle()
        assert compiles.started == ["gemm0", "gemm1"]
        waiters.append(compiles.ask("gemm9", priority=Priority.RANK))
        await settle()
        assert compiles.started == ["gemm0", "gemm1", "gemm9"]
        await compiles.end_all(*waiters)

    run(scenario())


def test_a_family_that_can_never_fit_this_node_is_refused_at_once() -> None:
    async def scenario() -> None:
        costs = CompileCosts(first_guess_bytes=GIB, limit_bytes=8 * GIB)
        costs.learn("huge", peak_bytes=6 * GIB, seconds=1.0)
        room = MemoryRoom(total_bytes=4 * GIB, free_bytes=4 * GIB)
        admission = Admission(
            slots=2, costs=costs, budget=MemoryBudget(room=lambda: room), limit_bytes=8 * GIB
        )
        queue: Scheduler[str] = Scheduler(workers=2, queue_limit=9, admission=admission)
        compiles = Compiles(queue)
        with pytest.raises(CompileOutOfMemory, match="takes at least 6144 MiB"):
            await compiles.ask("huge")
        assert (compiles.started, queue.queued) == ([], 0)

    run(scenario())


def test_places_and_estimates_follow_the_queue() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=2, gemm=1)
        compiles = Compiles(queue)
        waiters = [compiles.ask(f"gemm{number}") for number in range(5)]
        waiters.append(compiles.ask("gemm9", priority=Priority.RANK))
        await settle()
        told = queue.forecasts()
        assert [told[f"gemm{number}"].state for number in (0, 1)] == ["compiling"] * 2
        order = ["gemm9", "gemm2", "gemm3", "gemm4"]
        assert [told[name].place for name in order] == [1, 2, 3, 4]
        rounds = [round(told[name].estimate_s / 10) for name in ("gemm0", *order)]
        assert rounds == [1, 2, 2, 3, 3]
        await compiles.end_all(*waiters)
        assert queue.forecasts() == {}

    run(scenario())


def test_a_missed_deadline_says_how_far_the_kernel_was() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=1, gemm=1)
        compiles = Compiles(queue)
        waiters = [compiles.ask(f"gemm{number}") for number in range(3)]
        await settle()
        with pytest.raises(DeadlineExceeded, match="number 2 of 2 in the queue, about 30 s away") as queued:
            await compiles.ask("gemm2", timeout_s=0.001)
        assert queued.value.details["state"] == "queued"
        assert queued.value.details["place"] == 2
        assert round(queued.value.details["estimate_s"]) == 30
        with pytest.raises(DeadlineExceeded, match="it is being compiled") as compiling:
            await compiles.ask("gemm0", timeout_s=0.001)
        assert compiling.value.details["state"] == "compiling"
        assert "place" not in compiling.value.details
        await compiles.end_all(*waiters)

    run(scenario())


def test_a_transient_failure_is_tried_again_without_holding_a_slot() -> None:
    async def scenario() -> None:
        queue = scheduler(workers=1, attempts=3)
        compiles = Compiles(queue)
        waiters = [compiles.ask("a"), compiles.ask("b")]
        await settle()
        compiles.end("a", CRASH)
        await settle()
        assert compiles.started == ["a", "b"]
        compiles.end("b")
        await pass_pause()
        assert compiles.started == ["a", "b", "a"]
        compiles.end("a")
        assert (await waiters[0]).value == "kernel a"
        assert (queue.counters.retried, queue.counters.failed) == (1, 0)
        await asyncio.gather(*waiters)

    run(scenario())


def test_tries_end_and_every_waiter_hears_the_last_failure() -> None:
    async def scenario() -> None:
        queue = scheduler(attempts=3)
        compiles = Compiles(queue)
        told: list[tuple[str, int]] = []
        waiters = [
            compiles.ask("a", on_failure=lambda error, attempts: told.append((error.code, attempts)))
            for _ in range(5)
        ]
        for attempt in range(1, 4):
            await pass_pause()
            assert len(compiles.started) == attempt
            compiles.end("a", CRASH)
            await settle()
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(outcome, WorkerCrashed) for outcome in outcomes)
        assert told == [("worker_crashed", 3)]
        assert compiles.started == ["a", "a", "a"]
        assert queue.queued == 0

    run(scenario())


def test_a_deterministic_failure_is_tried_once() -> None:
    async def scenario() -> None:
        queue = scheduler(attempts=5)
        compiles = Compiles(queue)
        waiter = compiles.ask("a")
        await settle()
        compiles.end("a", CompileFailed("no", deterministic=True))
        with pytest.raises(CompileFailed):
            await waiter
        assert compiles.started == ["a"]

    run(scenario())


def test_what_nobody_waits_for_any_more_is_not_tried_again_but_told() -> None:
    async def scenario() -> None:
        queue = scheduler(attempts=5)
        compiles = Compiles(queue)
        told: list[int] = []

        def note(_: KaasError, attempts: int) -> None:
            told.append(attempts)

        running = compiles.ask("a", on_failure=note)
        await settle()
        running.cancel()
        await settle()
        compiles.end("a", CRASH)
        await settle()
        assert told == [1]

        pausing = compiles.ask("b", on_failure=note)
        await settle()
        compiles.end("b", CRASH)
        await settle()
        pausing.cancel()
        await settle()
        assert told == [1, 1]
        assert queue.queued == 0
        await pass_pause()
        assert compiles.started == ["a", "b"]

    run(scenario())


def test_after_a_shortage_a_compile_sets_aside_all_that_it_may_take() -> None:
    async def scenario() -> None:
        queue = scheduler(budget_gib=9, attempts=2, gemm=1)
        compiles = Compiles(queue)
        waiters = [compiles.ask("gemm0")]
        await settle()
        compiles.end("gemm0", WorkerCrashed("killed", signal="SIGKILL"))
        await settle()
        await pass_pause()
        assert len(compiles.started) == 2
        assert queue.reserved_bytes == 8 * GIB
        waiters += [compiles.ask(f"gemm{number}") for number in (1, 2)]
        await settle()
        assert queue.running == 2
        await compiles.end_all(*waiters)

    run(scenario())


def test_stopping_ends_pauses_too() -> None:
    async def scenario() -> None:
        queue = scheduler(attempts=5)
        compiles = Compiles(queue)
        waiter = compiles.ask("a")
        await settle()
        compiles.end("a", CRASH)
        await settle()
        await queue.stop(timeout_s=5)
        with pytest.raises(KaasError):
            await waiter
        assert (queue.running, queue.queued) == (0, 0)
        await pass_pause()
        assert compiles.started == ["a"]

    run(scenario())
