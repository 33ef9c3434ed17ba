"""Leases from an audit log: of live processes only, and of records that are whole."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kaas.server import remembered_leases
from kaas.server.process_facts import liveness, start_ticks
from kaas.server.remembered_leases import RememberedLeases

KEY = "a" * 64
OURS = {"key": KEY, "pid": os.getpid(), "started": start_ticks(os.getpid())}


def test_a_live_process_holds_what_it_took() -> None:
    leases = RememberedLeases()
    leases.learn([OURS])
    assert leases.holds(KEY)
    assert not leases.holds("b" * 64)


@pytest.mark.parametrize(
    "change",
    [
        {"started": OURS["started"] + 1},  # a process before us with our number
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
        {"pid": 2**40},
        {"started": 0},
        {"started": None},
        {"key": "x"},
        {"key": None},
    ],
)
def test_other_records_hold_nothing(change: dict[str, Any]) -> None:
    leases = RememberedLeases()
    leases.learn([{**OURS, **change}, {}])
    assert len(leases) == 0
    assert not leases.holds(KEY)


def test_a_process_that_ended_holds_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = RememberedLeases()
    leases.learn([OURS])
    assert leases.holds(KEY)
    monkeypatch.setattr(remembered_leases, "liveness", lambda pid, started: "ended")
    assert not leases.holds(KEY)
    assert len(leases) == 0


def test_liveness_tells_processes_with_one_number_apart() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks > 0
    assert liveness(os.getpid(), ticks) == "alive"
    assert liveness(os.getpid(), ticks + 1) == "ended"
    assert liveness(0, ticks) == "unknown"
