"""A disk filled to the last byte: clients get kernels all the same, and room is used once there is some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.kernels import encoded, passport
from support.small_disk import fill, small_disk

from kaas import GemmSpec
from kaas.cache.audit_log import AuditLog
from kaas.cache.pins import Pins
from kaas.cache.store import Store
from kaas.client.daemon_link import DaemonLink
from kaas.client.handle import KernelHandle
from kaas.client.kernel_client import KernelClient
from kaas.proto.errors import StoreFull, StrictMiss

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 8 * MIB) as path:
        yield path


def got(daemon: DaemonProcess, n: int) -> KernelHandle:
    """A kernel, as a process gets it that has none yet."""
    client = KernelClient(daemon.store, Path(daemon.socket))
    question = (GemmSpec(n=n, k=64), None)
    return client.find(question) or client.fetch(question, 120.0, False)


def test_kernels_are_served_from_memory_until_the_disk_has_room_again(tmp_path: Path, disk: Path) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    store = disk / "store"
    with DaemonProcess(
        tmp_path,
        store=str(store),
        toolkit_home=str(toolkit.home),
        store_min_free_bytes="0",
        rest_address="off",
    ) as daemon:
        link = DaemonLink(Path(daemon.socket))
        daemon.wait_ready()
        stored = got(daemon, 64)
        filler = fill(disk)
        assert os.statvfs(disk).f_bavail == 0

        kept = [got(daemon, n) for n in (80, 96)]
        assert [handle.origin for handle in kept] == ["compiled", "compiled"]
        again = [got(daemon, n) for n in (64, 80, 96)]
        assert [handle.origin for handle in again] == ["store", "hit", "hit"]
        assert [bytes(a._artifact.image) for a in again] == [
            bytes(b._artifact.image) for b in (stored, *kept)
        ]
        assert len(toolkit.starts()) == 3
        assert link.usage()["in_memory"]["kernels"] == 2
        assert link.describe(kept[0].key).source == kept[0].source
        assert {kernel.key for kernel in link.list_kernels().kernels} >= {handle.key for handle in kept}

        pid = daemon.pid
        filler.unlink()
        for handle in kept:
            path = KernelClient(store, Path(daemon.socket)).artifact_path(handle.key)
            until(path.exists, what="a kernel from memory in the store")
        assert [got(daemon, n).origin for n in (64, 80, 96, 112)] == ["store", "store", "store", "compiled"]
        assert got(daemon, 112).origin == "store"
        until(lambda: link.usage()["in_memory"]["kernels"] == 0, what="an empty memory")
        assert len(toolkit.starts()) == 4
        assert daemon.pid == pid
        assert daemon.process is not None
        assert daemon.process.poll() is None
        link.close()


def test_nothing_of_a_publication_that_did_not_fit_is_left(disk: Path) -> None:
    with Store.open(disk / "store") as store:
        first, second = passport(1), passport(2)
        store.publish(first.key(), encoded(first))
        filler = fill(disk)
        for _ in range(50):
            with pytest.raises(StoreFull):
                store.publish(second.key(), encoded(second))
        assert list(store.layout.staging.iterdir()) == []
        assert list(store.keys()) == [first.key()]
        loaded = store.load(first.key())
        assert loaded is not None
        filler.unlink()
        store.publish(second.key(), encoded(second))
        assert store.load(second.key()) is not None


def test_a_full_disk_keeps_the_pins_and_whole_audit_lines(disk: Path) -> None:
    with Store.open(disk / "store") as store:
        key, other = passport(1).key(), passport(2).key()
        pins, log = Pins(store.layout), AuditLog(store.layout, MIB)
        pins.pin([key], "kept")
        log.append([b'{"number":1}'])
        filler = fill(disk)
        with pytest.raises(StoreFull):
            pins.pin([other], "no room")
        for _ in range(200):
            log.append([b'{"number":2,"pad":"' + b"x" * 100 + b'"}'])
        assert log.lost_lines > 0
        assert [pin.key for pin in Pins(store.layout).all()] == [key]
        filler.unlink()
        log.append([b'{"number":3}'])
        numbers = [record["number"] for record in log.records()]
        assert numbers == [1, *[2] * (200 - log.lost_lines), 3]
        assert pins.unpin([key]) == [key]


def test_no_inodes_are_a_full_disk_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 * MIB, inodes=16) as disk, Store.open(disk / "store") as store:
        refusals = 0
        for n in range(1, 20):
            try:
                store.publish(passport(n).key(), encoded(passport(n)))
            except StoreFull:
                refusals += 1
        assert refusals > 5
        keys = list(store.keys())
        assert keys
        assert all(store.load(key) is not None for key in keys)
        assert list(store.layout.staging.iterdir()) == []


def test_strict_means_no_compile_so_what_only_the_daemons_memory_holds_is_a_hit(
    tmp_path: Path, disk: Path
) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    store = disk / "store"
    with DaemonProcess(
        tmp_path,
        store=str(store),
        toolkit_home=str(toolkit.home),
        store_min_free_bytes="0",
        rest_address="off",
    ) as daemon:
        daemon.wait_ready()
        fill(disk)
        kept = got(daemon, 80)
        strict = KernelClient(store, Path(daemon.socket))
        assert strict.find((GemmSpec(n=80, k=64), None)) is None
        again = strict.fetch((GemmSpec(n=80, k=64), None), 60.0, strict=True)
        assert (again.key, again.origin) == (kept.key, "hit")
        assert bytes(again._artifact.image) == bytes(kept._artifact.image)
        with pytest.raises(StrictMiss):
            strict.fetch((GemmSpec(n=96, k=64), None), 60.0, strict=True)
        assert len(toolkit.starts()) == 1
        daemon.stop()
        # The daemon's memory went with it: without one, the store has the last word.
        with pytest.raises(StrictMiss, match="not in the store"):
            KernelClient(store, Path(daemon.socket)).fetch((GemmSpec(n=80, k=64), None), 60.0, strict=True)
