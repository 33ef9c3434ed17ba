"""The artifact file: nothing in it can change without being noticed, and nothing behind a reader changes."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from support.kernels import LAUNCH, encoded, passport

from kaas.cache import artifact as format_
from kaas.cache.artifact import (
    HEADER_BYTES,
    MAX_FILE_BYTES,
    MAX_PART_BYTES,
    PAGE_BYTES,
    Artifact,
    encode_artifact,
    open_artifact,
)
from kaas.proto.errors import ArtifactDamaged, CompileFailed, PermissionDenied, StoreUnavailable

KERNEL = passport()
GOOD = encoded(KERNEL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.kernel"
    path.write_bytes(GOOD)
    return path


def regions() -> dict[str, range]:
    """Every region of the file, from the file's own table; together they cover all of it."""
    table_end = HEADER_BYTES - 32
    found = {"head": range(40), "table": range(40, table_end), "checksum": range(table_end, HEADER_BYTES)}
    end = HEADER_BYTES
    for number, name in enumerate(format_.PARTS):
        offset, stored = struct.unpack_from("<QQ", GOOD, 40 + 64 * number)
        if offset > end:
            found[f"gap before {name}"] = range(end, offset)
        found[name] = range(offset, offset + stored)
        end = offset + stored
    assert end == len(GOOD)
    assert sum(map(len, found.values())) == len(GOOD)
    return found


REGIONS = regions()


def test_what_was_written_is_read() -> None:
    source = "".join(f"  line {number};\n" for number in range(600))
    with Artifact(GOOD, expected_key=KERNEL.key()) as kernel:
        assert kernel.key == KERNEL.key()
        assert kernel.passport == KERNEL
        assert kernel.launch == LAUNCH
        assert kernel.choices == {"block_m": 128, "stages": 3}
        assert bytes(kernel.image) == bytes(range(256)) * 9 + KERNEL.key().encode()
        assert (kernel.source, kernel.log) == (source, "warning: none\n")
        assert (kernel.created_unix, kernel.compile_seconds) == (1_790_000_000.25, 0.75)
        assert kernel.size_bytes == len(GOOD)


def test_equal_input_gives_equal_bytes() -> None:
    assert encoded(passport()) == GOOD
    assert encoded(passport(65)) != GOOD


def test_the_image_starts_on_a_page_and_the_source_is_compressed() -> None:
    assert REGIONS["image"].start % PAGE_BYTES == 0
    assert len(REGIONS["source"]) < 2000 < len(Artifact(GOOD).source)


@pytest.mark.parametrize("region", REGIONS)
def test_a_flipped_bit_anywhere_is_noticed(region: str) -> None:
    """Every byte of every small region, and a sample of the long ones."""
    positions = list(REGIONS[region])
    if len(positions) > 400:
        middle = random.Random(7).sample(positions[1:-1], 398)
        positions = [positions[0], *middle, positions[-1]]
    for position in positions:
        damaged = bytearray(GOOD)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(ArtifactDamaged) as noticed:
            Artifact(bytes(damaged), expected_key=KERNEL.key())
        assert noticed.value.details["part"]


def test_the_damaged_part_is_named() -> None:
    for part in format_.PARTS:
        damaged = bytearray(GOOD)
        damaged[REGIONS[part].start] ^= 0xFF
        with pytest.raises(ArtifactDamaged) as noticed:
            Artifact(bytes(damaged))
        assert noticed.value.details["part"] == part


def test_a_file_cut_anywhere_is_noticed(path: Path) -> None:
    boundaries = {edge for region in REGIONS.values() for edge in (region.start, region.stop)}
    cuts = {edge + shift for edge in boundaries for shift in (-1, 0, 1)} | set(range(0, len(GOOD), 97))
    for length in sorted(cut for cut in cuts if 0 <= cut < len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(ArtifactDamaged):
            open_artifact(path, KERNEL.key())


@pytest.mark.parametrize("tail", [b"\0", b"x" * 5000, GOOD])
def test_bytes_after_the_end_are_noticed(path: Path, tail: bytes) -> None:
    path.write_bytes(GOOD + tail)
    with pytest.raises(ArtifactDamaged):
        open_artifact(path)


def test_another_kernels_artifact_is_refused(path: Path) -> None:
    other = passport(128)
    with pytest.raises(ArtifactDamaged) as refused:
        open_artifact(path, other.key())
    assert refused.value.details["expected"] == other.key()
    assert refused.value.details["found"] == KERNEL.key()


def test_parts_of_two_builds_cannot_be_mixed() -> None:
    other = encoded(KERNEL, image=bytes(reversed(range(256))) * 9 + KERNEL.key().encode())
    assert len(other) == len(GOOD)
    for region in REGIONS.values():
        mixed = GOOD[: region.start] + other[region.start : region.stop] + GOOD[region.stop :]
        if mixed not in (GOOD, other):
            with pytest.raises(ArtifactDamaged):
                Artifact(mixed)


def resealed(data: bytes, position: int, layout: str, *values: Any) -> bytes:
    """``data`` with fields of the header replaced and the header's checksum made right again."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, *values)
    end = HEADER_BYTES - 32
    changed[end:HEADER_BYTES] = hashlib.sha256(changed[:end]).digest()
    return bytes(changed)


LIES = [
    (position, value)
    for position in range(40, HEADER_BYTES - 32, 8)
    if (position - 40) % 64 < 32  # offset, stored size, decoded size and encoding; the digests follow
    for value in (0, 1, 2, 4096, 2**31, 2**40, 2**63, 2**64 - 1)
    if struct.unpack_from("<Q", GOOD, position) != (value,)
]


def read_wholly(data: bytes) -> tuple[str, str]:
    kernel = Artifact(data)
    return kernel.source, kernel.log


@pytest.mark.parametrize(("position", "value"), LIES)
def test_a_lying_header_is_refused_without_allocation(position: int, value: int) -> None:
    lying = resealed(GOOD, position, "<Q", value)
    with pytest.raises(ArtifactDamaged):
        read_wholly(lying)


@pytest.mark.parametrize(("position", "layout", "value"), [(8, "<I", 2), (12, "<I", 6), (16, "<Q", 2**62)])
def test_other_formats_and_sizes_are_refused(position: int, layout: str, value: int) -> None:
    with pytest.raises(ArtifactDamaged):
        Artifact(resealed(GOOD, position, layout, value))


def test_a_compressed_part_cannot_unpack_to_more_than_it_claims() -> None:
    bomb = encoded(KERNEL, source="\0" * (30 << 20))
    lying = resealed(bomb, 40 + 64 * 3 + 16, "<Q", 5000)
    with pytest.raises(ArtifactDamaged, match="unpack"):
        _ = Artifact(lying).source


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_file_smaller_than_a_header_is_refused(path: Path, size: int) -> None:
    path.write_bytes(GOOD[:size])
    with pytest.raises(ArtifactDamaged):
        open_artifact(path)


def test_a_sparse_giant_is_refused_unread(path: Path) -> None:
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(ArtifactDamaged, match="no artifact has"):
        open_artifact(path)


def test_absent_is_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_artifact(tmp_path / "none")


def test_links_folders_and_pipes_are_refused_at_once(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ArtifactDamaged):
            open_artifact(tmp_path / name)


def test_running_out_of_descriptors_is_not_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        open_artifact(path)


@pytest.mark.parametrize(
    ("number", "expected"), [(13, PermissionDenied), (5, ArtifactDamaged), (116, StoreUnavailable)]
)
def test_each_failure_to_read_has_its_class(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(expected):
        open_artifact(path)


def test_reading_leaves_no_descriptor_behind(path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    kernels = [open_artifact(path) for _ in range(20)]
    path.write_bytes(GOOD[:-1])
    for _ in range(20):
        with pytest.raises(ArtifactDamaged):
            open_artifact(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(kernels) == 20


@pytest.mark.parametrize("harm", ["overwrite", "truncate", "unlink", "replace"])
def test_bytes_behind_an_open_artifact_never_change(path: Path, harm: str) -> None:
    kernel = open_artifact(path)
    view = kernel.image
    if harm == "overwrite":
        with path.open("r+b") as file:
            file.write(b"\0" * len(GOOD))
    elif harm == "truncate":
        os.truncate(path, 0)
    elif harm == "unlink":
        path.unlink()
    else:
        path.write_bytes(encoded(passport(65)))
    expected = Artifact(GOOD)
    assert view == expected.image
    assert (kernel.source, kernel.log) == (expected.source, expected.log)


def test_the_image_cannot_be_written_and_survives_closing() -> None:
    kernel = Artifact(GOOD)
    view = kernel.image
    assert view.readonly
    kernel.close()
    kernel.close()
    assert bytes(view[:4]) == b"\0\1\2\3"
    with pytest.raises(ValueError, match="closed"):
        _ = kernel.image


def test_an_empty_binary_is_a_failed_compile() -> None:
    with pytest.raises(CompileFailed, match="empty"):
        encoded(KERNEL, image=b"")


def test_a_part_above_its_limit_is_a_failed_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_PART_BYTES, "image", 1000)
    with pytest.raises(CompileFailed, match="image"):
        encoded(KERNEL, image=b"x" * 1001)


def test_a_log_without_end_keeps_both_its_ends() -> None:
    log = "first\n" + "é" * MAX_PART_BYTES["log"] + "\nlast"
    kept = Artifact(encoded(KERNEL, log=log)).log
    assert kept.startswith("first\n")
    assert kept.endswith("\nlast")
    assert "left out" in kept
    assert len(kept.encode()) <= MAX_PART_BYTES["log"]


@pytest.mark.parametrize("text", ["", "\ud800 lone surrogate", "é\0\n" * 3000])
def test_any_text_can_be_source_and_log(text: str) -> None:
    kernel = Artifact(encoded(KERNEL, source=text, log=text))
    assert kernel.source == kernel.log == text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.parametrize("when", [float("nan"), float("inf")])
def test_times_must_be_finite(when: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        encode_artifact(
            passport=KERNEL,
            launch=LAUNCH,
            choices={},
            image=b"x",
            source="",
            log="",
            created_unix=when,
            compile_seconds=0.0,
        )
