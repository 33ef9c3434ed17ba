"""Zygotes that die are replaced ever more slowly, until a job succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kaas.compiler import pool as pool_module
from kaas.compiler.frames import Ready
from kaas.compiler.pool import CompilerPool
from kaas.compiler.restart_delay import RestartDelay


def test_the_delay_doubles_up_to_five_seconds_and_starts_anew_after_a_success():
    delay = RestartDelay()
    seen = [delay.seconds]
    for _ in range(8):
        delay.failed()
        seen.append(delay.seconds)
    assert seen == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    delay.succeeded()
    assert delay.seconds == 0.0
    delay.failed()
    assert delay.seconds == 0.1


class MortalLink:
    """Stands where a zygote's link stands: ready at once, dead as soon as the test says so."""

    born: list[MortalLink]

    def __init__(self, root: Path, environ: Any, on_end: Callable[[Any], None]) -> None:
        self.pid = len(self.born) + 1
        self.jobs_given = 0
        self.is_usable = True
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.ready.set_result(Ready(resident_bytes=1, threads=1))
        self._on_end = on_end
        self.born.append(self)

    def die(self) -> None:
        self.is_usable = False
        self._on_end(self)

    def has_grown_beyond(self, limit_bytes: int) -> bool:
        return False

    def hang_up(self) -> None:
        self.is_usable = False

    async def end(self, limit_s: float) -> None:
        self.is_usable = False


def test_a_zygote_that_dies_whenever_it_is_ready_is_restarted_at_a_falling_rate(monkeypatch):
    pauses: list[float] = []
    pause = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await pause(0)

    monkeypatch.setattr(MortalLink, "born", [], raising=False)
    monkeypatch.setattr(pool_module, "ZygoteLink", MortalLink)
    monkeypatch.setattr(pool_module.asyncio, "sleep", noted)

    async def scenario() -> None:
        pool = CompilerPool()
        await pool.start()
        for count in range(1, 9):
            pool.warmth_changed.clear()
            MortalLink.born[-1].die()
            assert pool.warmth_changed.is_set()
            assert not pool.is_warm
            await pool.start()
            assert pool.zygote_pid == len(MortalLink.born) == count + 1
        await pool.close()

    asyncio.run(scenario())

    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
