"""The store: publishing whole, loading verified, repairing once, and refusing unsafe places."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernels import encoded, passport

from kaas.cache import atomic, quarantine
from kaas.cache.artifact import open_artifact
from kaas.cache.layout import StoreLayout
from kaas.cache.store import PassedOver, Store
from kaas.proto.errors import (
    ArtifactDamaged,
    InvalidRequest,
    KaasError,
    StoreFull,
    StoreUnavailable,
)

KERNEL = passport()
KEY = KERNEL.key()
GOOD = encoded(KERNEL)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


def files(store: Store) -> set[str]:
    """Every file of the store but the holder's note."""
    return {
        str(path.relative_to(store.root))
        for path in store.root.rglob("*")
        if not path.is_dir() and path.name != "daemon.json"
    }


def flip(path: Path, position: int = 600) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 4
    path.write_bytes(damaged)


def test_what_is_published_can_be_loaded(store: Store) -> None:
    assert store.load(KEY) is None
    path = store.publish(KEY, GOOD)
    assert path == store.layout.artifact_path(KEY)
    assert path.read_bytes() == GOOD
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.passport == KERNEL
    assert list(store.keys()) == [KEY]
    assert files(store) == {f"artifacts/{KEY[:2]}/{KEY}.kernel"}


def test_others_may_read_and_nobody_else_may_write(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Store.open(tmp_path / "a" / "store") as store:
            path = store.publish(KEY, GOOD)
            modes = {name: stat.S_IMODE(name.stat().st_mode) for name in (path, path.parent, store.root)}
            assert modes == {path: 0o644, path.parent: 0o755, store.root: 0o755}
            assert stat.S_IMODE(store.layout.artifacts.stat().st_mode) == 0o755
            assert stat.S_IMODE(store.layout.staging.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_the_first_build_is_kept(store: Store) -> None:
    store.publish(KEY, GOOD)
    inode = store.layout.artifact_path(KEY).stat().st_ino
    store.publish(KEY, encoded(KERNEL, image=b"another build"))
    assert store.layout.artifact_path(KEY).read_bytes() == GOOD
    assert store.layout.artifact_path(KEY).stat().st_ino == inode
    assert not list(store.layout.staging.iterdir())


@pytest.mark.parametrize("harm", ["flip", "truncate", "empty", "folder", "link", "other kernel"])
def test_a_damaged_artifact_is_a_miss_that_publishing_repairs(
    store: Store, tmp_path: Path, harm: str
) -> None:
    path = store.publish(KEY, GOOD)
    if harm == "flip":
        flip(path)
    elif harm == "truncate":
        os.truncate(path, 3000)
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "other kernel":
        path.write_bytes(encoded(passport(65)))
    else:
        path.unlink()
        if harm == "folder":
            path.mkdir()
            (path / "x").write_text("x")
        else:
            (tmp_path / "elsewhere").write_bytes(GOOD)
            path.symlink_to(tmp_path / "elsewhere")
    assert store.load(KEY) is None
    assert store.load(KEY) is None
    assert list(store.keys()) == []
    (record,) = store.quarantined()
    assert record.key == KEY
    assert record.reason
    assert record.when_unix > 1.6e9
    assert os.path.lexists(store.layout.quarantine / record.file)
    store.publish(KEY, GOOD)
    loaded = store.load(KEY)
    assert loaded is not None
    assert loaded.passport == KERNEL
    assert len(store.quarantined()) == 1


def test_publishing_over_damage_that_nobody_met_repairs_too(store: Store) -> None:
    flip(store.publish(KEY, GOOD))
    assert store.publish(KEY, GOOD).read_bytes() == GOOD
    assert [record.key for record in store.quarantined()] == [KEY]


def test_one_bad_artifact_of_many_harms_no_other(store: Store) -> None:
    kernels = [passport(n) for n in range(1, 101)]
    paths = [store.publish(kernel.key(), encoded(kernel)) for kernel in kernels]
    flip(paths[41])
    loaded = [store.load(kernel.key()) for kernel in kernels]
    assert [number for number, kernel in enumerate(loaded) if kernel is None] == [41]
    assert list(store.keys()) == sorted(kernel.key() for kernel in kernels if kernel is not kernels[41])


def test_readers_keep_what_they_have_open(store: Store) -> None:
    store.publish(KEY, GOOD)
    kernel = store.load(KEY)
    assert kernel is not None
    store.quarantine(KEY, "an operator says so")
    assert store.load(KEY) is None
    assert bytes(kernel.image).endswith(KEY.encode())
    assert store.quarantined()[0].reason == "an operator says so"
    assert store.quarantine(KEY, "again") is None


def test_removing(store: Store) -> None:
    store.publish(KEY, GOOD)
    assert store.remove(KEY) is True
    assert store.remove(KEY) is False
    assert store.load(KEY) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "..",
        "../../etc/passwd",
        "A" * 64,
        "a" * 63,
        "a" * 65,
        "a" * 63 + "/",
        "a" * 63 + "\n",
        "g" * 64,
        None,
    ],
)
def test_what_is_no_key_never_becomes_a_path(store: Store, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.load(key),
        lambda: store.remove(key),
        lambda: store.publish(key, GOOD),
        lambda: store.quarantine(key, "x"),
        lambda: store.layout.artifact_path(key),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest) as refused:
            call()
        assert refused.value.details["field"] == "key"


def test_bytes_that_are_not_that_kernel_are_not_published(store: Store) -> None:
    for bad in (b"", GOOD[:-1], GOOD + b"x", encoded(passport(65))):
        with pytest.raises(ArtifactDamaged):
            store.publish(KEY, bad)
    assert files(store) == set()


def test_foreign_files_are_passed_over(store: Store) -> None:
    path = store.publish(KEY, GOOD)
    (path.parent / "README").write_text("x")
    (path.parent / f"{KEY}.kernel.old").write_text("x")
    (store.layout.artifacts / "zz").mkdir()
    (store.layout.artifacts / "zz" / f"{KEY}.kernel").write_text("x")
    (store.layout.artifacts / "file").write_text("x")
    assert list(store.keys()) == [KEY]


def test_opening_sweeps_what_a_dead_daemon_left(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root) as store:
        store.publish(KEY, GOOD)
    staging = StoreLayout(root).staging
    (staging / f"{KEY}.1.abc").write_bytes(GOOD[:100])
    (staging / "folder" / "inner").mkdir(parents=True)
    (staging / "folder" / "inner" / "x").write_text("x")
    (staging / "link").symlink_to(tmp_path)
    os.mkfifo(staging / "pipe")
    with Store.open(root) as store:
        assert list(staging.iterdir()) == []
        assert store.load(KEY) is not None
    assert tmp_path.exists()


def test_folders_removed_under_a_running_daemon_come_back(store: Store) -> None:
    import shutil

    store.publish(KEY, GOOD)
    for directory in (store.layout.artifacts, store.layout.staging, store.layout.quarantine):
        shutil.rmtree(directory)
    assert store.load(KEY) is None
    assert list(store.keys()) == []
    store.publish(KEY, GOOD)
    assert store.load(KEY) is not None


def test_a_second_daemon_is_refused_in_one_line_that_names_the_first(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        Store.open(tmp_path / "store")
    text = str(refused.value)
    assert str(store.root) in text
    assert f"process {os.getpid()}" in text
    assert "\n" not in text
    assert refused.value.details["holder"]["pid"] == os.getpid()


def test_a_closed_store_can_be_opened_by_the_next(tmp_path: Path) -> None:
    for _ in range(3):
        with Store.open(tmp_path / "store"):
            pass


def test_losing_the_note_of_the_holder_does_not_lose_the_lock(tmp_path: Path, store: Store) -> None:
    store.layout.holder_file.unlink()
    with pytest.raises(StoreUnavailable, match="in use by another process"):
        Store.open(tmp_path / "store")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("which", ["", "artifacts", "staging", "quarantine"])
def test_a_folder_that_others_may_write_is_refused_with_the_cure(
    tmp_path: Path, mode: int, which: str
) -> None:
    root = tmp_path / "store"
    Store.open(root).close()
    (root / which).chmod(mode)
    with pytest.raises(StoreUnavailable, match=f"chmod go-w {root / which}"):
        Store.open(root)
    (root / which).chmod(0o755)
    Store.open(root).close()


def test_a_parent_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StoreUnavailable, match="chmod o-w"):
        Store.open(tmp_path / "open" / "store")
    (tmp_path / "open").chmod(0o1777)
    Store.open(tmp_path / "open" / "store").close()


@pytest.mark.parametrize("which", ["artifacts", "staging", "quarantine"])
def test_a_link_inside_the_store_is_refused(tmp_path: Path, which: str) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    (tmp_path / "elsewhere").mkdir()
    (root / which).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match=which):
        Store.open(root)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("x")
    with pytest.raises(StoreUnavailable, match=str(tmp_path / "store")):
        Store.open(tmp_path / "store")
    with pytest.raises(StoreUnavailable, match=str(tmp_path / "store")):
        Store.open(tmp_path / "store" / "below")


def test_ones_own_link_to_ones_own_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Store.open(tmp_path / "link") as store:
        assert store.root == tmp_path / "real"


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(StoreUnavailable):
        Store.open(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users")
def test_somebody_elses_folder_or_link_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 65534, 65534)
    with pytest.raises(StoreUnavailable, match="belongs to user 65534"):
        Store.open(theirs)
    (tmp_path / "to theirs").symlink_to(theirs)
    with pytest.raises(StoreUnavailable, match="belongs to user 65534"):
        Store.open(tmp_path / "to theirs")
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "their link").symlink_to(tmp_path / "mine")
    os.lchown(tmp_path / "their link", 65534, 65534)
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        Store.open(tmp_path / "their link")


FAILURES = [
    (errno.ENOSPC, StoreFull),
    (errno.EDQUOT, StoreFull),
    (errno.EROFS, StoreUnavailable),
    (errno.EIO, StoreUnavailable),
    (errno.EACCES, StoreUnavailable),
]


@pytest.mark.parametrize(("number", "expected"), FAILURES)
@pytest.mark.parametrize("operation", ["open", "write", "fchmod", "fsync", "close", "rename", "mkdir"])
def test_a_failed_publication_leaves_nothing_and_the_next_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch, operation: str, number: int, expected: type[KaasError]
) -> None:
    with monkeypatch.context() as patched:
        real = getattr(os, operation)

        def fail(*arguments: Any, **options: Any) -> Any:
            if operation == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **options)
            if operation == "close":
                real(*arguments, **options)
            raise OSError(number, os.strerror(number))

        patched.setattr(os, operation, fail)
        with pytest.raises(expected) as failed:
            store.publish(KEY, GOOD)
    assert failed.value.details["errno"] == number
    assert files(store) == set()
    assert store.load(KEY) is None
    store.publish(KEY, GOOD)
    assert store.load(KEY) is not None


def test_short_writes_are_completed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, bytes(content)[:777]))
    assert store.publish(KEY, GOOD).read_bytes() == GOOD


def test_a_folder_that_cannot_be_synced_does_not_lose_the_artifact(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    store.publish(KEY, GOOD)
    assert store.load(KEY) is not None
    assert "cannot sync" in caplog.text


def test_a_full_disk_does_not_keep_a_daemon_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    with Store.open(root) as store:
        store.publish(KEY, GOOD)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with Store.open(root) as store:
        assert store.load(KEY) is not None
        with pytest.raises(StoreFull):
            store.publish(passport(65).key(), encoded(passport(65)))


def test_damage_is_a_miss_even_where_nothing_can_be_moved(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.publish(KEY, GOOD)
    flip(path)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for operation in ("rename", "unlink"):
        monkeypatch.setattr(os, operation, read_only)
    assert store.load(KEY) is None
    assert store.load(KEY) is None


def test_a_record_that_cannot_be_written_does_not_stop_the_repair(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(store.publish(KEY, GOOD))

    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "write_staged", full)
    assert store.load(KEY) is None
    assert not store.layout.artifact_path(KEY).exists()


def test_quarantine_does_not_grow_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_ENTRIES", 5)
    for n in range(1, 13):
        kernel = passport(n)
        flip(store.publish(kernel.key(), encoded(kernel)))
        assert store.load(kernel.key()) is None
    assert [record.key for record in store.quarantined()] == [passport(n).key() for n in range(8, 13)]
    assert len(list(store.layout.quarantine.iterdir())) == 10


def test_many_threads_publishing_one_key_leave_one_whole_build(store: Store) -> None:
    builds = [encoded(KERNEL, image=bytes([n]) * 5000, log=f"build {n}") for n in range(16)]
    start = threading.Barrier(len(builds))
    seen: list[bytes] = []

    def publish(build: bytes) -> None:
        start.wait()
        seen.append(store.publish(KEY, build).read_bytes())

    threads = [threading.Thread(target=publish, args=(build,)) for build in builds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 16
    assert len(set(seen)) == 1
    assert seen[0] in builds
    with open_artifact(store.layout.artifact_path(KEY), KEY) as kernel:
        assert kernel.log == f"build {kernel.image[0]}"
    assert list(store.layout.staging.iterdir()) == []


def test_a_directory_that_cannot_be_listed_is_passed_over_for_who_wants_to_hear_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [kernel for kernel in map(passport, range(2, 8)) if kernel.key()[:2] != KEY[:2]]
    for kernel in (KERNEL, *others):
        store.publish(kernel.key(), encoded(kernel))
    bad = store.layout.artifacts / KEY[:2]
    listed = os.listdir

    def listdir(directory: Any) -> list[str]:
        if Path(directory) == bad:
            raise OSError(errno.EIO, "broken", str(directory))
        return listed(directory)

    monkeypatch.setattr(os, "listdir", listdir)
    passed: list[PassedOver] = []
    assert list(store.keys(passed.append)) == sorted(kernel.key() for kernel in others)
    assert [(one.path, one.is_foreign) for one in passed] == [(bad, False)]
    assert "broken" in passed[0].reason
    with pytest.raises(StoreUnavailable, match="broken"):
        list(store.keys())


def test_a_link_in_place_of_a_directory_is_no_part_of_the_store(store: Store, tmp_path: Path) -> None:
    path = store.publish(KEY, GOOD)
    aside = tmp_path / "aside"
    path.parent.rename(aside)
    path.parent.symlink_to(aside)
    behind = aside / path.name
    flip(behind)
    damaged = behind.read_bytes()
    passed: list[PassedOver] = []
    assert list(store.keys(passed.append)) == []
    assert [(one.path, one.is_foreign) for one in passed] == [(path.parent, True)]
    assert list(store.keys()) == []
    assert store.load(KEY) is None
    assert store.verify(KEY) is None
    assert store.quarantine(KEY, "because") is None
    assert not store.remove(KEY)
    with pytest.raises(StoreUnavailable, match="is no directory"):
        store.publish(KEY, GOOD)
    for _ in store.measure():
        pass
    assert store.usage.files == 0
    assert behind.read_bytes() == damaged
    assert store.quarantined() == []
    path.parent.unlink()
    assert store.publish(KEY, GOOD).read_bytes() == GOOD
