"""Pre-warm jobs: progress that anybody can follow, failures that stay with their entry."""

from __future__ import annotations

import asyncio

import pytest

from kaas.proto.errors import CompileFailed, InvalidRequest, JobNotFound, Overloaded, ShuttingDown
from kaas.server import prewarm
from kaas.server.kernel_request import Outcome
from kaas.server.prewarm import PrewarmEntry, PrewarmEvent, PrewarmJob, PrewarmJobs


def entries(count: int) -> list[PrewarmEntry]:
    return [PrewarmEntry(spec={"family": "gemm", "n": index}) for index in range(count)]


async def warm_unless_odd(entry: PrewarmEntry) -> tuple[str, Outcome]:
    assert isinstance(entry.spec, dict)
    if entry.spec["n"] % 2:
        raise CompileFailed("odd", stage="lowering")
    return f"key {entry.spec['n']}", "compiled"


async def collect(job: PrewarmJob) -> list[PrewarmEvent]:
    return [event async for event in job.follow()]


def test_every_entry_gives_one_event_then_a_summary() -> None:
    async def scenario() -> None:
        jobs = PrewarmJobs(warm_unless_odd, width=2)
        job = jobs.start(entries(5), "label")
        events = await collect(job)
        assert [event.finished for event in events] == [False] * 5 + [True]
        assert sorted(event.index for event in events[:-1]) == [0, 1, 2, 3, 4]
        assert [event.done for event in events] == [1, 2, 3, 4, 5, 5]
        assert (events[-1].ready, events[-1].failed, events[-1].total) == (3, 2, 5)
        failed = [event for event in events if event.error]
        assert all(event.error and event.error["code"] == "compile_failed" for event in failed)
        assert [event.index for event in failed] == [1, 3]

    asyncio.run(scenario())


def test_followers_see_all_events_whenever_they_come() -> None:
    async def scenario() -> None:
        jobs = PrewarmJobs(warm_unless_odd, width=1)
        job = jobs.start(entries(4))
        early = [asyncio.create_task(collect(job)) for _ in range(3)]
        first = await asyncio.gather(*early)
        late = await collect(jobs.get(job.id))
        assert all(events == late for events in first)
        assert len(late) == 5

    asyncio.run(scenario())


def test_no_more_than_width_entries_are_in_hand() -> None:
    async def scenario() -> None:
        in_hand = 0
        most = 0

        async def warm(_: PrewarmEntry) -> tuple[str, Outcome]:
            nonlocal in_hand, most
            in_hand += 1
            most = max(most, in_hand)
            await asyncio.sleep(0)
            in_hand -= 1
            return "key", "hit"

        await collect(PrewarmJobs(warm, width=3).start(entries(20)))
        assert most == 3

    asyncio.run(scenario())


def test_a_full_queue_makes_prewarm_wait_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prewarm, "FIRST_RETRY_S", 0.0)
    monkeypatch.setattr(prewarm, "LAST_RETRY_S", 0.0)

    async def scenario() -> None:
        refusals = [Overloaded("full"), Overloaded("full")]

        async def warm(_: PrewarmEntry) -> tuple[str, Outcome]:
            if refusals:
                raise refusals.pop()
            return "key", "compiled"

        events = await collect(PrewarmJobs(warm, width=1).start(entries(1)))
        assert (events[-1].ready, events[-1].failed) == (1, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", [0, 3], ids=["before its first step", "under way"])
def test_a_cancelled_job_ends_for_its_followers(steps: int) -> None:
    async def scenario() -> None:
        never: asyncio.Future[tuple[str, Outcome]] = asyncio.get_running_loop().create_future()

        async def warm(_: PrewarmEntry) -> tuple[str, Outcome]:
            return await never

        jobs = PrewarmJobs(warm, width=2)
        job = jobs.start(entries(3))
        for _ in range(steps):
            await asyncio.sleep(0)
        jobs.cancel(job.id)
        events = await collect(job)
        assert [event.finished for event in events] == [True]
        assert (job.is_cancelled, job.is_finished, job.done) == (True, True, 0)

    asyncio.run(scenario())


def test_stopping_ends_every_job_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        async def warm(_: PrewarmEntry) -> tuple[str, Outcome]:
            await asyncio.Event().wait()
            raise AssertionError

        jobs = PrewarmJobs(warm, width=2)
        running = [jobs.start(entries(3)) for _ in range(3)]
        await jobs.stop()
        assert all(job.is_finished for job in running)
        with pytest.raises(ShuttingDown):
            jobs.start(entries(1))

    asyncio.run(scenario())


def test_finished_jobs_are_kept_within_a_bound() -> None:
    async def scenario() -> None:
        jobs = PrewarmJobs(warm_unless_odd, width=1)
        ids = []
        for _ in range(prewarm.FINISHED_JOBS_KEPT + 3):
            job = jobs.start(entries(1))
            ids.append(job.id)
            await collect(job)
        with pytest.raises(JobNotFound):
            jobs.get(ids[0])
        assert jobs.get(ids[-1]).is_finished

    asyncio.run(scenario())


def test_an_empty_or_oversized_job_is_refused() -> None:
    async def scenario() -> None:
        jobs = PrewarmJobs(warm_unless_odd, width=1)
        with pytest.raises(InvalidRequest):
            jobs.start([])
        with pytest.raises(InvalidRequest):
            jobs.start(entries(1) * (prewarm.MAX_ENTRIES + 1))

    asyncio.run(scenario())
