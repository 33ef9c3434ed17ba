"""The worker that stands by after a compile: it takes the next job and never outlives anybody."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compiling import PoolRunner, job, running_pool
from support.daemon import until
from support.fake_toolkit import FakeToolkit

from kaas.compiler.job import CompileOutput
from kaas.compiler.process_tree import children_of, descendants, is_alive
from kaas.compiler.standby import FOR_S, REHEARSED_AFTER_S, Standby


@pytest.fixture
def toolkit(tmp_path: Path) -> FakeToolkit:
    return FakeToolkit(tmp_path / "cann")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolRunner]:
    with running_pool(tmp_path_factory.mktemp("pool")) as running:
        yield running


REHEARSED = "kaas-standby"
REHEARSING = "kaas-rehearsal"
AT_HAND = "kaas-at-hand"


def named(zygote: int, name: str) -> list[int]:
    """Processes right below ``zygote`` of that name."""
    return [
        pid
        for pid in children_of(zygote)
        if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n" and is_alive(pid)
    ]


def wait_for_standby(runner: PoolRunner, name: str = REHEARSED) -> tuple[int, int]:
    """(supervisor, worker) that stand by."""
    zygote = runner.pool.zygote_pid
    assert zygote is not None
    until(lambda: named(zygote, name), what=f"a {name}")
    (supervisor,) = named(zygote, name)
    until(lambda: children_of(supervisor), what="its worker")
    (worker,) = children_of(supervisor)
    return supervisor, worker


def test_the_next_compile_runs_on_the_worker_that_stands_by_and_gives_the_same(runner, toolkit):
    wanted = job(toolkit.home, toolchain=toolkit.read().identity)
    first = runner.compile(wanted)
    _, worker = wait_for_standby(runner)
    toolkit.behaviour = "barrier"

    async def second() -> tuple[list[int], object]:
        running = asyncio.create_task(runner.pool.compile(wanted))
        while toolkit.waiting() < 1:
            await asyncio.sleep(0.01)
        workers = runner.pool.workers()
        toolkit.open_barrier()
        return workers, await running

    workers, output = runner.run(second())

    assert workers == [worker]
    assert (output.source, output.launch, output.choices) == (first.source, first.launch, first.choices)
    assert output.image == first.image
    assert not is_alive(worker)
    assert runner.leftovers() == []


def test_nobody_rehearses_while_something_is_compiled(runner, toolkit):
    wanted = job(toolkit.home, toolchain=toolkit.read().identity)
    runner.compile(wanted)
    wait_for_standby(runner)
    toolkit.behaviour = "barrier"

    async def rehearsing() -> list[int]:
        running = asyncio.create_task(runner.pool.compile(wanted))
        while toolkit.waiting() < 1:
            await asyncio.sleep(0.01)
        found = named(runner.pool.zygote_pid, REHEARSING) + named(runner.pool.zygote_pid, REHEARSED)
        toolkit.open_barrier()
        await running
        return found

    assert runner.run(rehearsing()) == []


def test_another_compile_beside_it_runs_on_the_one_at_hand_and_gives_the_same(runner, toolkit):
    wanted = job(toolkit.home, toolchain=toolkit.read().identity)
    first = runner.compile(wanted)
    waiting = [wait_for_standby(runner, name)[1] for name in (REHEARSED, AT_HAND)]
    toolkit.behaviour = "barrier"

    async def two() -> tuple[list[int], list[CompileOutput]]:
        running = [asyncio.create_task(runner.pool.compile(wanted)) for _ in range(2)]
        while toolkit.waiting() < len(running):
            await asyncio.sleep(0.01)
        workers = runner.pool.workers()
        toolkit.open_barrier()
        return workers, await asyncio.gather(*running)

    workers, outputs = runner.run(two())

    assert sorted(workers) == sorted(waiting)
    assert [output.image for output in outputs] == [first.image] * 2
    assert runner.leftovers() == []


def test_limits_of_a_job_do_not_count_what_was_rehearsed(runner, toolkit):
    wanted = job(toolkit.home, toolchain=toolkit.read().identity)
    fresh = runner.compile(wanted)
    wait_for_standby(runner)

    output = runner.compile(wanted)

    assert output.peak_rss_bytes <= fresh.peak_rss_bytes + (64 << 20)
    assert output.cpu_seconds > 0


def test_a_worker_that_is_lost_while_it_stands_by_costs_nobody_a_compile(runner, toolkit):
    wanted = job(toolkit.home, toolchain=toolkit.read().identity)
    first = runner.compile(wanted)
    supervisor, worker = wait_for_standby(runner)

    os.kill(worker, signal.SIGKILL)
    until(lambda: not is_alive(supervisor), what="the end of its supervisor")

    assert runner.compile(wanted).image == first.image


def test_it_ends_with_its_zygote_even_if_that_is_killed(runner, toolkit):
    runner.compile(job(toolkit.home, toolchain=toolkit.read().identity))
    all_four = *wait_for_standby(runner), *wait_for_standby(runner, AT_HAND)

    os.kill(runner.pool.zygote_pid, signal.SIGKILL)

    until(lambda: not any(map(is_alive, all_four)), what="the end of all")


def test_nobody_stands_by_before_the_first_compile_or_after_the_last(tmp_path, toolkit):
    with running_pool(tmp_path) as runner:
        assert descendants(runner.pool.zygote_pid) == []
        runner.compile(job(toolkit.home, toolchain=toolkit.read().identity))
        all_four = *wait_for_standby(runner), *wait_for_standby(runner, AT_HAND)

        runner.run(runner.pool.close())

        assert not any(map(is_alive, all_four))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_is_let_go_when_nothing_is_compiled_for_long():
    clock = Clock()
    started: list[subprocess.Popen[bytes]] = []

    def fork(ours, theirs) -> int:
        started.append(subprocess.Popen(["sleep", "100"]))
        return started[-1].pid

    standby = Standby(select.poll(), fork, after_s=REHEARSED_AFTER_S, clock=clock)
    try:
        standby.set_idle(True)
        assert standby.wait_s is None  # nobody has compiled anything

        standby.learn("/a/toolkit")
        standby.set_idle(True)
        standby.act()
        assert standby.pid is None
        assert standby.wait_s == pytest.approx(REHEARSED_AFTER_S)

        clock.now += 1.0
        standby.act()
        assert standby.pid == started[0].pid
        assert standby.wait_s == pytest.approx(FOR_S - 1.0)

        clock.now += FOR_S
        standby.act()
        assert standby.pid is None
        assert started[0].wait(timeout=30) == -signal.SIGKILL
        assert standby.wait_s is None

        standby.set_idle(False)
        standby.set_idle(True)
        clock.now += 1.0
        standby.act()
        assert standby.pid == started[1].pid
    finally:
        standby.dismiss()
        for process in started:
            process.kill()
            process.wait()
