"""Bytes that rot on the disk while the file keeps its mark: found before the first launch, repaired once."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fault_counts import Counter
from support.kernels import encoded, passport

from kaas.cache.artifact import HEADER_BYTES, PARTS, open_marked
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


def rot(store: Store, content: bytes) -> Path:
    """Other bytes in the file, behind the file system's back."""
    path = store.layout.artifact_path(DAMAGED.key())
    times = path.stat()
    path.write_bytes(content)
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
        content = bytearray(GOOD)
        content[place] ^= 1 << (place % 8)
        assert served(rot(store, bytes(content))) is None
        assert reader.find(OTHER.key()) is not None
        expect_one_repair(store)
    count_fault("rotten artifact: flipped bit", len(places(region)))


@pytest.mark.parametrize("region", REGIONS)
def test_a_file_cut_off_is_a_miss_and_repaired_once(store: Store, region: str, count_fault: Counter) -> None:
    reader = StoreReader(store.root)
    for place in places(region):
        for content in (GOOD[:place], GOOD[:place] + bytes(len(GOOD) - place - 1) + b"\1"):
            assert served(rot(store, content)) is None
            assert len(content) == len(GOOD) or reader.find(DAMAGED.key()) is None
            expect_one_repair(store)
    count_fault("rotten artifact: cut off, or zeros from there on", 2 * len(places(region)))
