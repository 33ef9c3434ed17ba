"""Hard limits and the running totals that they, and eviction, go by."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.kernels import encoded, passport

from kaas.cache.limits import StoreLimits, StoreUsage, exceeds
from kaas.cache.store import Store
from kaas.proto.errors import StoreFull

SIZE = len(encoded(passport(1)))


def opened(root: Path, **limits: int) -> Store:
    store = Store.open(root, StoreLimits(**limits))
    for _ in store.measure():
        pass
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store") as store:
        yield store


def put(store: Store, n: int) -> None:
    store.publish(passport(n).key(), encoded(passport(n)))


def test_above_the_hard_limit_publishing_is_refused_and_loading_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path / "store", hard_bytes=2 * SIZE + SIZE // 2) as store:
        put(store, 1)
        put(store, 2)
        with pytest.raises(StoreFull) as refusal:
            put(store, 3)
        assert refusal.value.details["limit_bytes"] == 2 * SIZE + SIZE // 2
        assert not refusal.value.retryable or refusal.value.hint
        assert store.load(passport(1).key()) is not None
        assert list(store.layout.staging.iterdir()) == []
        put(store, 2)  # is there already, so nothing is written
        store.remove(passport(1).key())
        put(store, 3)


def test_space_is_left_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", min_free_bytes=1000) as store:
        free = [999 + SIZE]
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free[0], f_frsize=1))
        with pytest.raises(StoreFull, match="stay free"):
            put(store, 1)
        free[0] += 1
        put(store, 1)


def test_totals_follow_whatever_happens_to_artifacts(store: Store) -> None:
    for n in range(1, 6):
        put(store, n)
    assert store.usage == StoreUsage(bytes=on_disk(store), files=5, is_measured=True)
    put(store, 1)
    store.remove(passport(2).key())
    assert not store.remove(passport(2).key())
    store.quarantine(passport(3).key(), "a test")
    path = store.layout.artifact_path(passport(4).key())
    path.write_bytes(path.read_bytes()[:-1])
    assert store.load(passport(4).key()) is None
    assert store.usage.files == 2
    put(store, 4)
    assert store.usage.files == 3
    assert abs(store.usage.bytes - on_disk(store)) <= 1  # the truncated file was counted whole


def on_disk(store: Store) -> int:
    return sum(store.layout.artifact_path(key).stat().st_size for key in store.keys())  # noqa: SIM118


def test_an_existing_store_is_measured_in_steps_while_it_changes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root) as store:
        for n in range(1, 60):
            put(store, n)
    with Store.open(root) as store:
        assert not store.usage.is_measured
        for step, _ in enumerate(store.measure()):
            if step % 8 == 0:
                put(store, 100 + step)
            if step % 16 == 0:
                store.remove(passport(1 + step // 16).key())
        assert store.usage == StoreUsage(
            bytes=on_disk(store), files=len(list(store.keys())), is_measured=True
        )


def test_measuring_again_makes_good_what_others_deleted(store: Store) -> None:
    put(store, 1)
    put(store, 2)
    store.layout.artifact_path(passport(1).key()).unlink()
    assert store.usage.files == 2
    for _ in store.measure():
        pass
    assert store.usage == StoreUsage(bytes=SIZE, files=1, is_measured=True)


def test_totals_are_right_after_threads_that_publish_and_remove(store: Store) -> None:
    def work(first: int) -> None:
        for n in range(first, first + 10):
            put(store, n)
        for n in range(first, first + 10, 2):
            store.remove(passport(n).key())

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.usage.files == 20
    assert store.usage.bytes == on_disk(store)


@pytest.mark.parametrize(
    ("usage", "limits", "share", "is_above"),
    [
        (StoreUsage(bytes=10, files=10), StoreLimits(), 1.0, False),
        (StoreUsage(bytes=10), StoreLimits(soft_bytes=10), 1.0, False),
        (StoreUsage(bytes=11), StoreLimits(soft_bytes=10), 1.0, True),
        (StoreUsage(bytes=10), StoreLimits(soft_bytes=10), 0.95, True),
        (StoreUsage(files=3), StoreLimits(soft_files=2), 1.0, True),
        (StoreUsage(files=2), StoreLimits(soft_files=2), 1.0, False),
    ],
)
def test_soft_limits(usage: StoreUsage, limits: StoreLimits, share: float, is_above: bool) -> None:
    assert exceeds(usage, limits, share) is is_above
