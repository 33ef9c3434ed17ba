"""The environment file: whole or absent, and cheap while it does not change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.client_store import environment

from kaas.cache import environment_file
from kaas.cache.environment_file import publish_environment, read_environment
from kaas.proto.errors import StoreUnavailable

NODE = environment()


def test_what_was_published_is_read(tmp_path: Path) -> None:
    path = publish_environment(tmp_path, NODE)
    assert read_environment(tmp_path) == NODE
    assert read_environment(str(tmp_path)) == NODE
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_strict_umask_does_not_hide_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert publish_environment(tmp_path, NODE).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_new_one_is_seen_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for generation in range(1, 6):
        publish_environment(tmp_path, environment(generation=generation))
        read = read_environment(tmp_path)
        assert read is not None
        assert read.generation == generation
    assert list((tmp_path / "staging").iterdir()) == []


def test_absent_reads_as_none(tmp_path: Path) -> None:
    assert read_environment(tmp_path) is None
    assert read_environment(tmp_path / "no" / "store") is None
    (tmp_path / "environment.json").mkdir()
    assert read_environment(tmp_path) is None


def test_any_flipped_bit_reads_as_none_or_as_what_was_published(tmp_path: Path) -> None:
    path = publish_environment(tmp_path, NODE)
    good = path.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 7)
        path.write_bytes(damaged)
        assert read_environment(tmp_path) in (None, NODE)
    assert environment_file.decode_environment(good) == NODE


def test_any_cut_reads_as_none(tmp_path: Path) -> None:
    path = publish_environment(tmp_path, NODE)
    good = path.read_bytes()
    for length in range(0, len(good) - 1, 5):
        path.write_bytes(good[:length])
        assert read_environment(tmp_path) is None


def test_damage_is_forgotten_once_it_is_repaired(tmp_path: Path) -> None:
    path = publish_environment(tmp_path, NODE)
    path.write_bytes(b"{}")
    assert read_environment(tmp_path) is None
    publish_environment(tmp_path, NODE)
    assert read_environment(tmp_path) == NODE


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_environment(tmp_path, NODE)
    first = read_environment(tmp_path)

    def refuse(path: str) -> None:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(environment_file, "_read", refuse)
    assert read_environment(tmp_path) is first


def test_a_giant_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_bytes(b" " * (environment_file.MAX_BYTES + 1))
    assert read_environment(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_environment(tmp_path) is None


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("in the way")
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        publish_environment(tmp_path, NODE)
