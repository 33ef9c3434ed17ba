"""Sets of wanted kernels: weights, news from any thread, and waiting for a coverage."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kaas.server.wanted_kernels import WantedKernels, WantedSets


def test_weight_counts_and_all_is_exactly_one() -> None:
    async def scenario() -> None:
        sets = WantedSets({"a"}.__contains__)
        wanted = WantedKernels({"a": 0.1, "b": 0.2, "c": 0.7})
        async with sets.opened(wanted):
            assert wanted.coverage == pytest.approx(0.1)
            sets.arrived("c")
            sets.arrived("c")
            sets.arrived("unwanted")
            assert wanted.coverage == pytest.approx(0.8)
            assert wanted.covers(0.8)
            sets.arrived("b")
            assert wanted.coverage == 1.0
            sets.left("a")
            sets.left("a")
            assert wanted.coverage == pytest.approx(0.9)
            assert list(wanted.missing) == ["a"]
        sets.arrived("a")
        assert list(wanted.missing) == ["a"]

    asyncio.run(scenario())


def test_what_can_never_be_held_keeps_a_set_from_being_complete() -> None:
    async def scenario() -> None:
        wanted = WantedKernels({"a": 3.0}, never=1.0)
        async with WantedSets(lambda _: True).opened(wanted):
            assert wanted.coverage == 0.75
            assert wanted.covers(0.75)
            assert not wanted.covers(1.0)

    asyncio.run(scenario())


def test_waiting_ends_when_another_thread_brings_the_last_kernel() -> None:
    async def scenario() -> None:
        sets = WantedSets(lambda _: False)
        wanted = WantedKernels({"a": 1.0, "b": 1.0})
        async with sets.opened(wanted):
            assert not await wanted.until(0.5, 0.0)
            waiting = asyncio.create_task(wanted.until(1.0, 60.0))
            await asyncio.sleep(0)
            threads = [threading.Thread(target=sets.arrived, args=(key,)) for key in "ab"]
            for thread in threads:
                thread.start()
            assert await waiting
            for thread in threads:
                thread.join()

    asyncio.run(scenario())


def test_two_sets_hear_of_the_same_kernel() -> None:
    async def scenario() -> None:
        sets = WantedSets(lambda _: False)
        one, two = WantedKernels({"a": 1.0}), WantedKernels({"a": 1.0, "b": 1.0})
        async with sets.opened(one), sets.opened(two):
            sets.arrived("a")
            assert (one.coverage, two.coverage) == (1.0, 0.5)

    asyncio.run(scenario())
