"""Bytes that change on their own, anywhere in an artifact or in the index: a miss, repaired, never served."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fault_counts import Counter
from support.kernels import encoded, passport, summary

from kaas.cache.artifact import HEADER_BYTES, PARTS, open_marked
from kaas.cache.index import KernelIndex
from kaas.cache.layout import StoreLayout
from kaas.cache.store import Store
from kaas.client.store_reader import StoreReader
from kaas.proto.errors import ArtifactDamaged

DAMAGED, OTHER = passport(64), passport(128)
GOOD = encoded(DAMAGED)
PER_REGION = 12


def regions() -> dict[str, range]:
    """Every region of the artifact's file, by name; the gap before the image is one."""
    found = {
        "head": range(40),
        "table": range(40, HEADER_BYTES - 32),
        "checksum": range(HEADER_BYTES - 32, HEADER_BYTES),
    }
    end = HEADER_BYTES
    for number, name in enumerate(PARTS):
        offset, stored = struct.unpack_from("<QQ", GOOD, 40 + 64 * number)
        if offset > end:
            found["gap"] = range(end, offset)
        found[name] = range(offset, offset + stored)
        end = offset + stored
    return found


REGIONS = regions()


def places(region: str) -> list[int]:
    """The region's ends and some of its middle."""
    all_of_it = REGIONS[region]
    middle = random.Random(region).sample(all_of_it, min(PER_REGION - 2, len(all_of_it)))
    return sorted({all_of_it[0], all_of_it[-1], *middle})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        for of in (DAMAGED, OTHER):
            store.publish(of.key(), encoded(of))
        yield store


def damage(store: Store, content: bytes, *, secretly: bool) -> Path:
    """Other bytes in the file; ``secretly``: as a failing disk does it, behind the file system's back."""
    path = store.layout.artifact_path(DAMAGED.key())
    times = path.stat()
    path.write_bytes(content)
    if secretly:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


def served(path: Path) -> bytes | None:
    """What a client would launch from the file: its image, or nothing."""
    try:
        with open_marked(str(path), DAMAGED.key()) as artifact:
            return bytes(artifact.image)
    except ArtifactDamaged:
        return None


def expect_one_repair(store: Store) -> None:
    before = len(store.quarantined())
    assert store.load(DAMAGED.key()) is None
    assert store.load(DAMAGED.key()) is None
    assert len(store.quarantined()) == before + 1
    store.publish(DAMAGED.key(), GOOD)
    kernel = store.load(DAMAGED.key())
    assert kernel is not None
    assert served(store.layout.artifact_path(DAMAGED.key())) == bytes(kernel.image)
    assert store.load(OTHER.key()) is not None


@pytest.mark.parametrize("region", REGIONS)
def test_a_flipped_bit_is_a_miss_and_repaired_once(store: Store, region: str, count_fault: Counter) -> None:
    reader = StoreReader(store.root)
    for place in places(region):
        for secretly in (False, True):
            content = bytearray(GOOD)
            content[place] ^= 1 << (place % 8)
            path = damage(store, bytes(content), secretly=secretly)
            assert served(path) is None
            assert secretly or reader.find(DAMAGED.key()) is None
            assert reader.find(OTHER.key()) is not None
            expect_one_repair(store)
    count_fault("artifact: flipped bit", 2 * len(places(region)))


@pytest.mark.parametrize("region", REGIONS)
def test_a_file_cut_off_is_a_miss_and_repaired_once(store: Store, region: str, count_fault: Counter) -> None:
    reader = StoreReader(store.root)
    for place in places(region):
        for content in (GOOD[:place], GOOD[:place] + bytes(len(GOOD) - place - 1) + b"\1"):
            path = damage(store, content, secretly=True)
            assert served(path) is None
            if len(content) < len(GOOD):
                assert reader.find(DAMAGED.key()) is None
            expect_one_repair(store)
    count_fault("artifact: cut off, or zeros from there on", 2 * len(places(region)))


def test_a_kernel_is_not_taken_for_another_whose_file_lies_in_its_place(
    store: Store, count_fault: Counter
) -> None:
    path = damage(store, encoded(OTHER), secretly=True)
    assert served(path) is None
    assert StoreReader(store.root).find(DAMAGED.key()) is None
    expect_one_repair(store)
    count_fault("artifact: another kernel's", 1)


INDEXED = 40


def test_damage_anywhere_in_the_index_costs_no_kernel(tmp_path: Path, count_fault: Counter) -> None:
    """Each page of the database at several places, and its length: the list is whole again at once."""
    root = tmp_path / "store"
    kernels = [passport(16 * (number + 1)) for number in range(INDEXED)]
    with Store.open(root) as store:
        for of in kernels:
            store.publish(of.key(), encoded(of))
        index = KernelIndex(root)
        index.rebuild(store, summary)
        index.close()
        good = tmp_path / "good"
        shutil.copytree(StoreLayout(root).index, good)
        database = (good / "cache.db").read_bytes()
        wanted = {of.key() for of in kernels}
        page = struct.unpack_from(">H", database, 16)[0]
        assert page >= 512
        assert len(database) % page == 0
        chosen = random.Random(5)
        pages = chosen.sample(range(1, len(database) // page), min(24, len(database) // page - 1))
        cases: list[bytes] = []
        for start in (0, *sorted(number * page for number in pages)):
            for place in (start, start + chosen.randrange(page), start + page - 1):
                changed = bytearray(database)
                changed[place] ^= 0xFF
                cases.append(bytes(changed))
            cases.append(database[:start])
            cases.append(database[:start] + os.urandom(page) + database[start + page :])
        for content in cases:
            shutil.rmtree(StoreLayout(root).index)
            shutil.copytree(good, StoreLayout(root).index)
            (StoreLayout(root).index / "cache.db").write_bytes(content)
            index = KernelIndex(root)
            index.rebuild(store, summary)
            rows, _, total = index.list({}, 2 * INDEXED, "")
            assert total == INDEXED
            assert {row["key"] for row in rows} == wanted
            index.close()
            again = KernelIndex(root)
            again.rebuild(store, summary)
            assert len(again) == INDEXED
            again.close()
    count_fault("index: damaged or cut-off database", len(cases))
