"""Flipped and missing bytes everywhere: damage is a miss, put away once, repaired once; no other suffers."""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.fault_counts import Counter
from support.kernels import encoded, passport, summary

from kaas import GemmSpec
from kaas.cache.artifact import PARTS, Artifact
from kaas.cache.index import KernelIndex
from kaas.cache.layout import StoreLayout
from kaas.cache.store import Store
from kaas.client.daemon_link import DaemonLink
from kaas.client.handle import KernelHandle
from kaas.client.kernel_client import KernelClient
from kaas.client.store_reader import StoreReader
from kaas.proto.passport import KernelKey

DAMAGED, OTHERS = passport(64), [passport(n) for n in (80, 96, 112)]
GOOD = encoded(DAMAGED)
PAGE_BYTES = 4096

HEAD = {
    "magic": (0, 8),
    "format version": (8, 12),
    "part count": (12, 16),
    "file size": (16, 24),
    "creation time": (24, 32),
    "compile seconds": (32, 40),
}
ROW = {
    "offset": (0, 8),
    "stored size": (8, 16),
    "decoded size": (16, 24),
    "encoding": (24, 32),
    "digest": (32, 64),
}
ROW_BYTES = 64
TABLE_END = 40 + ROW_BYTES * len(PARTS)
CHECKSUM_END = TABLE_END + 32


def regions() -> dict[str, tuple[int, int]]:
    """Every part of the file by name, without gaps: fields of the header, checksum, parts and padding."""
    found = dict(HEAD)
    end = CHECKSUM_END
    for number, part in enumerate(PARTS):
        row = 40 + number * ROW_BYTES
        found |= {f"{part}'s {field}": (row + a, row + b) for field, (a, b) in ROW.items()}
        offset, size = struct.unpack_from("<QQ", GOOD, row)
        if offset > end:
            found[f"gap before the {part}"] = (end, offset)
        found[part] = (offset, offset + size)
        end = offset + size
    assert end == len(GOOD)
    return found | {"checksum": (TABLE_END, CHECKSUM_END)}


def harmed() -> Iterator[tuple[str, bytes]]:
    """Kinds of damage with the damaged file."""
    for first, end in regions().values():
        for place in sorted({first, (first + end) // 2, end - 1}):
            for flip in (0x01, 0x80):
                changed = bytearray(GOOD)
                changed[place] ^= flip
                yield "artifact: flipped bit", bytes(changed)
        for size in sorted({first, (first + end) // 2}):
            yield "artifact: truncated", GOOD[:size]
        blank = GOOD[:first] + bytes(end - first) + GOOD[end:]
        if blank != GOOD:
            yield "artifact: zeroed region", blank
        # A hole in the file: what follows moved up.
        yield "artifact: lost region", GOOD[:first] + GOOD[end:]
    for tail in (b"\0", b"\n", bytes(PAGE_BYTES), GOOD):
        yield "artifact: trailing bytes", GOOD + tail


def test_the_regions_cover_every_byte() -> None:
    places = [place for first, end in regions().values() for place in range(first, end)]
    assert sorted(places) == list(range(len(GOOD)))


def test_a_damaged_artifact_is_one_miss_with_one_record_and_is_repaired_once(
    tmp_path: Path, count_fault: Counter
) -> None:
    key = DAMAGED.key()
    with Store.open(tmp_path / "store") as store:
        reader = StoreReader(store.root)
        path = store.publish(key, GOOD)
        for other in OTHERS:
            store.publish(other.key(), encoded(other))
        for number, (kind, damaged) in enumerate(harmed()):
            path.unlink()
            path.write_bytes(damaged)
            count_fault(kind)

            assert reader.find(KernelKey(key)) is None, f"case {number} ({kind}) was served to a client"
            if number % 2:  # by a reader in the daemon, or by the publication that finds it
                assert store.load(key) is None, f"case {number} ({kind}) was served"
                assert store.load(key) is None
            store.publish(key, GOOD)
            repaired = store.load(key)
            assert repaired is not None
            assert bytes(repaired.image) == bytes(Artifact(GOOD).image)
            assert path.read_bytes() == GOOD
            (record,) = store.quarantined()
            assert record.key == key
            assert (store.layout.quarantine / record.file).read_bytes() == damaged
            shutil.rmtree(store.layout.quarantine)
            store.layout.quarantine.mkdir()
        for other in OTHERS:
            intact = store.load(other.key())
            assert intact is not None
            assert intact.size_bytes == len(encoded(other))
        assert number > 200


class Shelf:
    """A store whose index has been written, as a closed daemon leaves it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
            for n in range(1, 41):
                of = passport(n)
                store.publish(of.key(), encoded(of))
            index.rebuild(store, summary)
            self.rows = self.sorted_rows(index)
        self.database = StoreLayout(root).index / "cache.db"
        self.good = self.database.read_bytes()

    @staticmethod
    def sorted_rows(index: KernelIndex) -> list[dict[str, Any]]:
        rows = index.list({}, 1000, "")[0]
        return sorted(rows, key=lambda row: str(row["key"]))

    def restarted(self) -> tuple[list[dict[str, Any]], int]:
        """The rows that a new daemon lists, and how many artifacts it had to read for that."""
        read: list[str] = []

        def summarize(artifact: Artifact) -> dict[str, Any]:
            read.append(artifact.key)
            return summary(artifact)

        with Store.open(self.root) as store, contextlib.closing(KernelIndex(self.root)) as index:
            index.rebuild(store, summarize)
            assert store.quarantined() == []
            return self.sorted_rows(index), len(read)


def harmed_databases(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Several bits of every page, pages that are gone, and files cut within and between pages."""
    for page in range(0, len(good), PAGE_BYTES):
        for within in (0, 3, 7, 18, 100, 1000, 2500, 4000, 4095):
            changed = bytearray(good)
            changed[page + within] ^= 1 << (page // PAGE_BYTES + within) % 8
            yield "index: flipped bit", bytes(changed)
        yield "index: zeroed page", good[:page] + bytes(PAGE_BYTES) + good[page + PAGE_BYTES :]
        yield "index: truncated", good[:page]
        yield "index: truncated", good[: page + PAGE_BYTES // 2]


def test_a_damaged_index_costs_no_kernel_and_no_wrong_row(tmp_path: Path, count_fault: Counter) -> None:
    shelf = Shelf(tmp_path / "store")
    assert len(shelf.rows) == 40
    assert shelf.restarted() == (shelf.rows, 0)
    for number, (kind, damaged) in enumerate(harmed_databases(shelf.good)):
        shutil.rmtree(shelf.database.parent)
        shelf.database.parent.mkdir(mode=0o700)
        shelf.database.write_bytes(damaged)
        count_fault(kind)
        rows, _ = shelf.restarted()
        assert rows == shelf.rows, f"case {number}: {kind}"
        rows, read = shelf.restarted()
        assert rows == shelf.rows, f"case {number}: {kind}, at the second start"
        assert read == 0, f"case {number}: {kind}, repaired more than once"


def got(daemon: DaemonProcess, n: int) -> KernelHandle:
    """A kernel, as a process gets it that has none yet."""
    client = KernelClient(daemon.store, Path(daemon.socket))
    question = (GemmSpec(n=n, k=64), None)
    return client.find(question) or client.fetch(question, 120.0, False)


def test_a_daemons_clients_get_the_same_kernel_whatever_byte_was_flipped(
    tmp_path: Path, count_fault: Counter
) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    sizes = (64, 80, 96)
    daemon = DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off")
    with daemon:
        daemon.wait_ready()
        layout = StoreLayout(daemon.store)
        images = {n: bytes(got(daemon, n)._artifact.image) for n in sizes}
        key = got(daemon, 64).key
        path = layout.artifact_path(key)
        good = path.read_bytes()
        image_at = struct.unpack_from("<Q", good, 40 + ROW_BYTES * PARTS.index("image"))[0]
        places = [20, CHECKSUM_END + 5, image_at, len(good) - 1]
        for number, place in enumerate(places, start=1):
            changed = bytearray(path.read_bytes())
            if place < len(changed) - 1:
                changed[place] ^= 0x10
            else:
                del changed[place:]
            path.unlink()
            path.write_bytes(changed)
            count_fault("artifact under a daemon: flipped bit or lost end")
            repaired = got(daemon, 64)
            assert repaired.origin == "compiled"
            assert [got(daemon, n).origin for n in sizes] == ["store"] * 3
            assert {n: bytes(got(daemon, n)._artifact.image) for n in sizes} == images
            assert len(toolkit.starts()) == len(sizes) + number
            assert len(list(layout.quarantine.glob("*.json"))) == number
    database = layout.index / "cache.db"
    damaged = bytearray(database.read_bytes())
    for page in range(0, len(damaged), PAGE_BYTES):
        damaged[page + 2000] ^= 0xFF
        count_fault("index under a daemon: flipped byte")
    database.write_bytes(damaged)
    with DaemonProcess(tmp_path, toolkit_home=str(toolkit.home), rest_address="off") as daemon:
        daemon.wait_ready()
        link = DaemonLink(Path(daemon.socket))
        until(lambda: len(link.list_kernels().kernels) == 3, what="a list of all kernels")
        assert [got(daemon, n).origin for n in sizes] == ["store"] * 3
        link.close()
