"""Eviction: what is worth least goes first, in short steps; never what is held, pinned or was just used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import encoded, passport, row

from kaas.cache import eviction as eviction_module
from kaas.cache.artifact import open_artifact
from kaas.cache.eviction import GRACE_S, IDLE_CHECK_S, Evicted, Eviction
from kaas.cache.index import KernelIndex
from kaas.cache.limits import LOW_WATER, StoreLimits, worth
from kaas.cache.store import Store

DAY_S = 86_400.0
START = 1_000 * DAY_S


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class Shelf:
    """A store with an index, a clock and kernels by number."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.store = Store.open(root)
        self.index = KernelIndex(root, self.clock)
        self.held: set[str] = set()
        for _ in self.store.measure():
            pass

    def add(self, n: int, *, compile_seconds: float = 1.0, used_days_ago: float = 1.0) -> str:
        of = passport(n)
        content = encoded(of)
        self.store.publish(of.key(), content)
        self.index.record(
            row(
                of,
                size_bytes=len(content),
                created_unix=1.0,
                compile_seconds=compile_seconds,
                last_used_unix=self.clock.now - used_days_ago * DAY_S,
            )
        )
        return of.key()

    def evict(self, **limits: float) -> list[Evicted]:
        """Everything that leaves under these limits."""
        eviction = self.eviction(**limits)
        return run(eviction)

    def eviction(self, **limits: float) -> Eviction:
        allowed = StoreLimits(**{"half_life_s": DAY_S, **limits})  # type: ignore[arg-type]
        return Eviction(self.store, self.index, allowed, self.held.__contains__, self.clock)

    def left(self) -> set[str]:
        return set(self.store.keys())


def run(eviction: Eviction) -> list[Evicted]:
    gone: list[Evicted] = []
    for _ in range(10_000):
        evicted, has_more = eviction.step()
        gone += evicted
        if not has_more:
            return gone
    raise AssertionError("eviction does not end")


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path / "store")
    yield shelf
    shelf.store.close()


def keys(evicted: list[Evicted]) -> list[str]:
    return [one.key for one in evicted]


def test_below_its_limits_nothing_leaves(shelf: Shelf) -> None:
    for n in range(1, 5):
        shelf.add(n, used_days_ago=50)
    assert shelf.evict(soft_files=4, soft_bytes=10**9, max_idle_s=51 * DAY_S) == []
    assert shelf.evict() == []


def test_what_saves_least_per_byte_leaves_first(shelf: Shelf) -> None:
    dear, cheap, middling = (shelf.add(n, compile_seconds=seconds) for n, seconds in ((1, 9), (2, 1), (3, 3)))
    assert keys(shelf.evict(soft_files=1)) == [cheap, middling]
    assert shelf.left() == {dear} == set(shelf.index.keys())


def test_time_since_use_halves_the_worth(shelf: Shelf) -> None:
    # After three half-lives, nine seconds are worth little more than one.
    old_and_dear = shelf.add(1, compile_seconds=7.9, used_days_ago=4)
    fresh_and_cheap = shelf.add(2, compile_seconds=1.0, used_days_ago=1)
    assert keys(shelf.evict(soft_files=1)) == [old_and_dear]
    assert shelf.left() == {fresh_and_cheap}


def test_a_byte_limit_counts_the_bytes_on_disk(shelf: Shelf) -> None:
    for n in range(1, 11):
        shelf.add(n, compile_seconds=n)
    limit = shelf.store.usage.bytes // 2
    gone = shelf.evict(soft_bytes=limit)
    assert LOW_WATER * limit >= shelf.store.usage.bytes > LOW_WATER * limit - gone[0].size_bytes
    on_disk = sum(shelf.store.layout.artifact_path(key).stat().st_size for key in shelf.left())
    assert shelf.store.usage.bytes == on_disk
    assert keys(gone) == [passport(n).key() for n in range(1, 1 + len(gone))]


def test_what_nobody_used_for_too_long_leaves_without_any_pressure(shelf: Shelf) -> None:
    old, young = shelf.add(1, used_days_ago=91), shelf.add(2, used_days_ago=89)
    gone = shelf.evict(max_idle_s=90 * DAY_S)
    assert [(one.key, one.why) for one in gone] == [(old, "idle")]
    assert shelf.left() == {young}


def test_idle_kernels_are_looked_for_now_and_then(shelf: Shelf) -> None:
    key = shelf.add(1, used_days_ago=1)
    eviction = shelf.eviction(max_idle_s=2 * DAY_S)
    assert run(eviction) == []
    assert not eviction.is_due()
    shelf.clock.now += max(1.5 * DAY_S, IDLE_CHECK_S)
    assert keys(run(eviction)) == [key]


def test_held_and_pinned_kernels_stay_whatever_they_are_worth(shelf: Shelf) -> None:
    held = shelf.add(1, compile_seconds=0.1, used_days_ago=400)
    others = {shelf.add(n, compile_seconds=n) for n in range(2, 6)}
    shelf.held.add(held)
    assert set(keys(shelf.evict(soft_files=1, max_idle_s=90 * DAY_S))) == others
    assert shelf.left() == {held}


def test_a_store_full_of_held_kernels_gives_up_and_says_so(shelf: Shelf) -> None:
    shelf.held |= {shelf.add(n) for n in range(1, 5)}
    eviction = shelf.eviction(soft_files=1)
    assert run(eviction) == []
    assert eviction.is_stuck
    shelf.held.clear()
    assert len(run(eviction)) == 3
    assert not eviction.is_stuck


def test_what_was_just_used_stays_until_its_reader_has_opened_it(shelf: Shelf) -> None:
    key = shelf.add(1, used_days_ago=0)
    assert shelf.evict(soft_files=1, max_idle_s=60) == []
    other = shelf.add(2, used_days_ago=0)
    assert shelf.evict(soft_files=1) == []
    shelf.clock.now += GRACE_S + 1
    shelf.index.touch(other)
    assert keys(shelf.evict(soft_files=1)) == [key]


def test_a_use_between_two_steps_saves_a_kernel(shelf: Shelf) -> None:
    saved = shelf.add(1, compile_seconds=1, used_days_ago=9)
    doomed = shelf.add(2, compile_seconds=2, used_days_ago=9)
    shelf.add(3, compile_seconds=3, used_days_ago=9)
    eviction = shelf.eviction(soft_files=2)
    assert eviction.step() == ([], True)  # all rows were looked at, and the first is worth least
    shelf.index.touch(saved)
    shelf.clock.now += GRACE_S + 1
    assert keys(run(eviction)) == [doomed]


def test_a_step_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_module, "ROWS_PER_STEP", 10)
    monkeypatch.setattr(eviction_module, "REMOVALS_PER_STEP", 3)
    monkeypatch.setattr(eviction_module, "STEP_BUDGET_S", 3600.0)
    for n in range(1, 36):
        shelf.add(n, compile_seconds=n)
    eviction = shelf.eviction(soft_files=20)
    sizes = []
    while True:
        evicted, has_more = eviction.step()
        sizes.append(len(evicted))
        if not has_more:
            break
    assert sizes[:4] == [0, 0, 0, 0]  # 35 rows, ten at a time
    assert max(sizes) == 3
    assert sum(sizes) == 16  # 95 % of 20 is 19


def test_a_file_that_is_gone_already_does_not_stop_the_rest(shelf: Shelf) -> None:
    gone = shelf.add(1, compile_seconds=0.1)
    for n in range(2, 5):
        shelf.add(n, compile_seconds=n)
    shelf.store.layout.artifact_path(gone).unlink()
    shelf.evict(soft_files=2)
    assert shelf.index.get(gone) is None
    assert len(shelf.left()) <= 2


def test_eviction_never_changes_the_bytes_that_a_reader_has(shelf: Shelf) -> None:
    key = shelf.add(1)
    path = shelf.store.layout.artifact_path(key)
    reader = open_artifact(path, key)
    with path.open("rb") as mapped:
        before = mapped.read()
        assert keys(shelf.evict(max_idle_s=3600)) == [key]
        assert not path.exists()
        mapped.seek(0)
        assert mapped.read() == before
    assert bytes(reader.image).endswith(key.encode())


@given(
    st.floats(0, 1e5),
    st.integers(0, 1 << 40),
    st.floats(0, 4e9),
    st.floats(60, 1e9),
    st.floats(0, 1e8),
)
def test_the_order_of_worth_does_not_depend_on_when_one_looks(
    seconds: float, size: int, used: float, half_life: float, later: float
) -> None:
    here = worth(seconds, size, used, half_life)
    assert worth(seconds, size, used + later, half_life) >= here
    assert worth(seconds + 1, size, used, half_life) >= here
    assert worth(seconds, size + 1, used, half_life) <= here
