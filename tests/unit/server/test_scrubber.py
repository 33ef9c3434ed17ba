"""The scrubber: what was asked for is done, whatever the disk says meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.kernels import encoded, passport
from support.service_node import Node, environment

from kaas.server.scrubber import Scrubber

KERNELS = [passport(n) for n in range(1, 5)]


class FailingDisk:
    """Directories in ``bad`` cannot be listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: set[Path] = set()
        listed = os.listdir

        def listdir(directory: Any) -> list[str]:
            if Path(directory) in self.bad:
                raise OSError(errno.EIO, "broken", str(directory))
            return listed(directory)

        monkeypatch.setattr(os, "listdir", listdir)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def scrubbing(root: Path, scenario: Callable[[Node, Scrubber], Coroutine[Any, Any, None]]) -> None:
    """Run ``scenario`` beside a scrubber that makes no pass by itself."""

    async def with_scrubber() -> None:
        node = Node(root, environment())
        for kernel in KERNELS:
            node.store.publish(kernel.key(), encoded(kernel))
        scrubber = Scrubber(node.store, node.catalog, bytes_per_s=0, period_s=0)
        running = asyncio.create_task(scrubber.run())
        try:
            await asyncio.wait_for(scenario(node, scrubber), 60)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await node.close()

    asyncio.run(with_scrubber())


def test_a_bad_directory_is_skipped_and_named_and_the_others_are_checked(
    tmp_path: Path, disk: FailingDisk
) -> None:
    async def scenario(node: Node, scrubber: Scrubber) -> None:
        bad = node.store.layout.artifacts / KERNELS[0].key()[:2]
        inside = sum(kernel.key()[:2] == bad.name for kernel in KERNELS)
        disk.bad.add(bad)
        wanted = scrubber.ask()
        await until(lambda: scrubber.state.passes >= wanted)
        assert scrubber.state.checked == len(KERNELS) - inside
        assert [one.path for one in scrubber.state.skipped] == [str(bad)]
        assert "broken" in scrubber.state.skipped[0].reason
        disk.bad.clear()
        wanted = scrubber.ask()
        await until(lambda: scrubber.state.passes >= wanted)
        assert (scrubber.state.checked, scrubber.state.skipped) == (len(KERNELS), [])

    scrubbing(tmp_path / "store", scenario)


def test_what_was_asked_for_is_not_lost_when_the_store_cannot_be_listed(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaas.server.scrubber.RETRY_S", 0.001)

    async def scenario(node: Node, scrubber: Scrubber) -> None:
        disk.bad.add(node.store.layout.artifacts)
        wanted = scrubber.ask()
        await until(lambda: scrubber.state.failures >= 3)
        assert (scrubber.state.passes, scrubber.state.asked_for) == (0, wanted)
        assert "broken" in scrubber.state.trouble
        disk.bad.clear()
        await until(lambda: scrubber.state.passes >= wanted)
        assert (scrubber.state.checked, scrubber.state.trouble) == (len(KERNELS), "")

    scrubbing(tmp_path / "store", scenario)
