"""Clocks that jump a day on, a day back or to 1970: what is in use stays, nothing raises, order is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fault_counts import Counter
from support.kernels import encoded, passport, row

from kaas.cache.audit_log import AuditLog
from kaas.cache.eviction import Eviction
from kaas.cache.index import KernelIndex
from kaas.cache.limits import StoreLimits
from kaas.cache.pins import Pins
from kaas.cache.store import Store
from kaas.proto.errors import CompileFailed
from kaas.server.audit import Audit
from kaas.server.lease_table import Holder, LeaseTable
from kaas.server.negative_results import NegativeResults

DAY_S = 86_400.0
START = 1_790_000_000.0
JUMPS = {"a day forward": START + DAY_S, "a day back": START - DAY_S, "to 1970": 0.0}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class Node:
    """Store, index, leases and pins on one clock that a test sets."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.store = Store.open(root)
        self.index = KernelIndex(root, self.clock)
        self.leases = LeaseTable()
        self.pins = Pins(self.store.layout, self.clock)
        for _ in self.store.measure():
            pass

    def add(self, n: int) -> str:
        of = passport(n)
        self.store.publish(of.key(), encoded(of))
        self.index.record(row(of, size_bytes=len(encoded(of)), created_unix=self.clock.now))
        return of.key()

    def evict(self, **limits: float) -> None:
        eviction = Eviction(
            self.store,
            self.index,
            StoreLimits(**limits),  # type: ignore[arg-type]
            lambda key: self.leases.is_leased(key) or self.pins.is_pinned(key),
            self.clock,
        )
        for _ in range(1000):
            if not eviction.step()[1]:
                return
        raise AssertionError("eviction does not end")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "store")
    with node.store, contextlib.closing(node.index):
        yield node


@pytest.fixture(params=JUMPS, ids=lambda name: str(name).replace(" ", "-"))
def jump(request: pytest.FixtureRequest, count_fault: Counter) -> float:
    """The time after the jump."""
    count_fault(f"clock jump {request.param}")
    return JUMPS[request.param]


def holder() -> Holder:
    return Holder(session="s", pid=1, uid=0, user="u", job="", rank="", since_unix=START, started=1)


def test_what_is_leased_or_pinned_for_good_stays_under_any_clock(node: Node, jump: float) -> None:
    leased, pinned, free = (node.add(n) for n in (64, 80, 96))
    node.leases.open(holder())
    node.leases.take("s", leased, node.clock())
    node.pins.pin([pinned], "a test")
    node.clock.now = jump
    node.evict(soft_files=1, max_idle_s=3600.0)
    node.clock.now = START
    node.evict(soft_files=1, max_idle_s=3600.0)
    assert {leased, pinned} <= set(node.store.keys())
    assert {lease.key for lease in node.leases.leases()} == {leased}
    assert {pin.key for pin in node.pins.all()} == {pinned}
    assert set(node.index.keys()) == set(node.store.keys()) <= {leased, pinned, free}


def test_without_a_limit_nothing_leaves_and_lists_keep_their_order(node: Node, jump: float) -> None:
    before = [node.add(n) for n in (64, 80)]
    order = [one["key"] for one in node.index.list({}, 10, "")[0]]
    node.clock.now = jump
    after = node.add(96)
    for key in (*before, after):
        node.index.touch(key)
    node.evict()
    listed = [one["key"] for one in node.index.list({}, 10, "")[0]]
    assert sorted(listed) == sorted([*before, after])
    assert [key for key in listed if key != after] == order
    node.evict(max_idle_s=3600.0)
    assert set(node.store.keys()) == {*before, after}, "evicted as idle although all were just used"


def test_a_clock_set_back_does_not_keep_uses_from_the_disk(node: Node, jump: float) -> None:
    key = node.add(64)
    node.index.flush()
    node.clock.now = jump
    node.index.touch(key)
    again = KernelIndex(node.store.root, node.clock)
    again.rebuild(node.store, lambda artifact: pytest.fail(f"read {artifact}"))
    found = again.get(key)
    assert found is not None
    assert found["hits"] == 1


def test_a_store_above_its_limit_is_brought_below_it_whatever_the_clock_says(node: Node, jump: float) -> None:
    kept = [node.add(n) for n in (64, 80, 96, 112)]
    node.clock.now = START + 600
    for key in kept[2:]:
        node.index.touch(key)
    node.clock.now = jump
    node.evict(soft_files=2)
    assert set(node.store.keys()) == set(kept[2:]), "what was used last is worth most under any clock"


def test_a_pin_with_an_end_holds_until_that_time_and_again_when_the_clock_was_wrong(node: Node) -> None:
    key = node.add(64)
    node.pins.pin([key], "an hour", expires_unix=START + 3600)
    for moment, holds in ((START - DAY_S, True), (0.0, True), (START + DAY_S, False), (START, True)):
        node.clock.now = moment
        assert node.pins.is_pinned(key) is holds


def test_a_remembered_failure_never_outlives_a_jump(jump: float) -> None:
    clock = Clock()
    failures = NegativeResults(lifetime_s=3600, transient_lifetime_s=30, clock=clock)
    failed = passport(64)
    failures.remember(failed, CompileFailed("no", stage="bisheng", deterministic=True), 1)
    assert failures.recall(failed.key()) is not None
    clock.now = jump
    assert failures.recall(failed.key()) is None, "asked again, which costs one compile"
    assert failures.remember(failed, CompileFailed("no", stage="bisheng", deterministic=True), 1) is not None
    assert failures.recall(failed.key()) is not None
    assert [failure.key for failure in failures.all()] == [failed.key()]
    clock.now = START
    assert failures.all() == []


def test_quarantine_and_its_bound_follow_what_happened_first(
    node: Node, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaas.cache.quarantine.MAX_ENTRIES", 2)
    keys = [node.add(n) for n in (64, 80, 96)]
    for moment, key in zip((START, jump, jump), keys, strict=True):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        assert node.store.quarantine(key, "a test") is not None
    assert [record.key for record in node.store.quarantined()] == keys[1:], "the oldest went"


async def _noted(audit: Audit, moments: list[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    for moment in moments:
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        audit.note("evicted", key="k", reason="a test")
    return [record.get("when_unix", 0.0) for record in await audit.find(event="evicted")]


@pytest.mark.asyncio
async def test_the_audit_keeps_the_order_of_events(
    node: Node, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(AuditLog(node.store.layout, 1 << 20))
    moments = [START, jump, jump + 1, START + 5]
    assert await _noted(audit, moments, monkeypatch) == moments
    assert audit.lost == 0
    assert "It was evicted at" in audit.removal("k")
