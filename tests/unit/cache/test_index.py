"""The index: exact lists, look-ups and nearest kernels from memory; a shadow on disk that may be lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diskcache
import pytest
from support.kernels import encoded, passport, row, summary

from kaas.cache.index import FLUSH_INTERVAL_S, KernelIndex
from kaas.cache.shadow import SCHEMA, ForeignRowError, IndexShadow, JsonOnlyDisk
from kaas.cache.store import Store
from kaas.proto.errors import InvalidRequest
from kaas.proto.passport import Passport

KERNELS = [passport(n) for n in range(1, 31)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        for number, kernel in enumerate(KERNELS):
            store.publish(kernel.key(), encoded(kernel, created_unix=float(number)))
        yield store


def built(store: Store, clock: Clock | None = None) -> KernelIndex:
    index = KernelIndex(store.root, clock or Clock())
    index.rebuild(store, summary)
    return index


def from_artifacts_only(store: Store) -> Any:
    def refuse(_: object) -> Any:
        raise AssertionError("an artifact was read although the shadow had its row")

    return refuse


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [one["key"] for one in rows]


def everything(index: KernelIndex, page_size: int = 7, **filters: str) -> list[str]:
    found: list[str] = []
    token = ""
    while True:
        rows, token, total = index.list(filters, page_size, token)
        found += keys(rows)
        if not token:
            assert total == len(found)
            return found


def in_memory(root: Path, kernels: list[Passport]) -> KernelIndex:
    index = KernelIndex(root, Clock())
    for number, kernel in enumerate(kernels):
        index.record(row(kernel, created_unix=float(number)))
    return index


def test_it_is_built_from_the_artifacts(store: Store) -> None:
    index = built(store)
    assert len(index) == len(KERNELS)
    kernel = KERNELS[4]
    assert index.get(kernel.key()) == {
        "key": kernel.key(),
        "family": "gemm",
        "spec": kernel.spec,
        "soc_name": "Ascend950PR_9579",
        "cann_version": "9.1.0",
        "toolchain_kind": "twin",
        "dtype": "bf16",
        "size_bytes": store.layout.artifact_path(kernel.key()).stat().st_size,
        "created_unix": 4.0,
        "compile_seconds": 0.75,
        "hits": 0,
        "last_used_unix": 0.0,
    }
    assert index.get("f" * 64) is None


def test_the_next_start_reads_no_artifact(store: Store) -> None:
    before = built(store)
    before.touch(KERNELS[0].key())
    before.close()
    after = KernelIndex(store.root, Clock())
    after.rebuild(store, from_artifacts_only(store))
    assert everything(after) == everything(before)
    assert after.get(KERNELS[0].key()) == before.get(KERNELS[0].key())


def test_it_follows_the_store(store: Store) -> None:
    built(store).close()
    gone, damaged, new = KERNELS[3], KERNELS[8], passport(999)
    store.remove(gone.key())
    store.quarantine(damaged.key(), "test")
    store.publish(new.key(), encoded(new))
    index = built(store)
    assert set(everything(index)) == set(store.keys())
    assert index.get(gone.key()) is None
    assert index.get(new.key()) is not None
    index.close()
    assert set(IndexShadow(store.layout).read()) == set(store.keys())


def test_a_damaged_artifact_gets_no_row(store: Store) -> None:
    path = store.layout.artifact_path(KERNELS[0].key())
    os.truncate(path, 1000)
    index = built(store)
    assert len(index) == len(KERNELS) - 1
    assert [record.key for record in store.quarantined()] == [KERNELS[0].key()]


def test_what_was_recorded_before_the_rebuild_stays(store: Store) -> None:
    index = KernelIndex(store.root, Clock())
    index.record(row(KERNELS[5], size_bytes=777))
    index.touch(KERNELS[5].key())
    index.rebuild(store, summary)
    kept = index.get(KERNELS[5].key())
    assert kept is not None
    assert (kept["size_bytes"], kept["hits"]) == (777, 1)


def test_pages_cover_everything_once_newest_first(tmp_path: Path) -> None:
    index = in_memory(tmp_path, KERNELS)
    newest_first = [kernel.key() for kernel in reversed(KERNELS)]
    for page_size in (1, 7, 30, 100):
        assert everything(index, page_size) == newest_first


def test_pages_stay_exact_while_kernels_come_go_and_are_used(tmp_path: Path) -> None:
    clock = Clock()
    index = KernelIndex(tmp_path, clock)
    for number, kernel in enumerate(KERNELS):
        index.record(row(kernel, created_unix=float(number)))
    expected = everything(index)
    seen: list[str] = []
    token = ""
    while True:
        rows, token, _ = index.list({}, 4, token)
        seen += keys(rows)
        if not token:
            break
        clock.now += 1
        index.touch(expected[-1])
        index.touch(seen[-1])
        index.record(row(passport(1000 + len(seen)), created_unix=5000.0))
        index.forget(seen[-1])
    assert seen == expected


def test_kernels_of_one_instant_are_listed_by_key(tmp_path: Path) -> None:
    index = KernelIndex(tmp_path, Clock())
    for kernel in KERNELS:
        index.record(row(kernel, created_unix=5.0))
    assert everything(index, 4) == sorted(kernel.key() for kernel in KERNELS)


def test_filters_compare_without_case_and_all_must_match(tmp_path: Path) -> None:
    index = KernelIndex(tmp_path, Clock())
    index.record(row(passport(1)))
    index.record(row(passport(2), soc_name="Ascend950DT_9581"))
    index.record(row(passport(3), cann_version="9.2.0", dtype="fp16", toolchain_kind="cann"))
    index.record(row(passport(4), family="rmsnorm", dtype="fp16"))
    for filters, expected in (
        ({"soc_name": "ascend950dt_9581"}, {2}),
        ({"cann_version": "9.2.0"}, {3}),
        ({"dtype": "FP16"}, {3, 4}),
        ({"dtype": "fp16", "family": "RMSNORM"}, {4}),
        ({"toolchain_kind": "cann"}, {3}),
        ({"text": passport(2).key()[10:30]}, {2}),
        ({"text": '"N":3,'}, {3}),
        ({"text": "no such"}, set()),
        ({"family": ""}, {1, 2, 3, 4}),
    ):
        assert set(everything(index, 1, **filters)) == {passport(n).key() for n in expected}


@pytest.mark.parametrize(
    "token", ["x", "1.0", "nan/" + "a" * 64, "inf/" + "a" * 64, "1.0/zz", "/" + "a" * 64, "1.0/../x"]
)
def test_a_foreign_token_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_memory(tmp_path, KERNELS).list({}, 5, token)
    assert refused.value.details["field"] == "page_token"


def test_an_unknown_filter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_memory(tmp_path, []).list({"colour": "red"}, 5, "")
    assert refused.value.details["field"] == "colour"


def test_prefixes(tmp_path: Path) -> None:
    index = in_memory(tmp_path, KERNELS)
    key = KERNELS[7].key()
    assert index.keys_with_prefix(key[:8], limit=5) == [key]
    assert index.keys_with_prefix(key, limit=5) == [key]
    assert index.keys_with_prefix("", limit=3) == sorted(kernel.key() for kernel in KERNELS)[:3]
    assert index.keys_with_prefix("zz", limit=3) == []


def test_the_nearest_have_the_same_spec_then_the_fewest_differences(tmp_path: Path) -> None:
    wanted = passport(64)
    older_tools = passport(64, options=("-O3",))
    one_field = passport(65)
    two_fields = passport(66, spec=passport(66).spec | {"k": 4096})
    norm = passport(1, spec={"family": "rmsnorm", "hidden": 64, "dtype_a": "bf16"})
    index = in_memory(tmp_path, [norm, older_tools, two_fields, one_field])
    expected = [older_tools.key(), one_field.key(), two_fields.key(), norm.key()]
    for limit in range(1, 5):
        assert keys(index.nearest(wanted.spec, limit)) == expected[:limit]
    assert keys(index.nearest(wanted.spec, 50)) == expected
    assert in_memory(tmp_path / "empty", []).nearest(wanted.spec, 3) == []


def test_a_hit_costs_no_write_and_is_written_with_the_next_batch(store: Store) -> None:
    clock = Clock()
    index = built(store, clock)
    key = KERNELS[0].key()
    before = IndexShadow(store.layout).read()
    for _ in range(50):
        index.touch(key)
    assert IndexShadow(store.layout).read() == before
    clock.now += FLUSH_INTERVAL_S
    index.touch(key)
    after = IndexShadow(store.layout).read()
    assert {name for name in after if after[name] != before[name]} == {key}
    assert b'"hits":51' in after[key]


def test_a_repaired_kernel_keeps_its_hits(tmp_path: Path) -> None:
    index = in_memory(tmp_path, KERNELS)
    key = KERNELS[0].key()
    index.touch(key)
    index.record(row(KERNELS[0], created_unix=99.0))
    again = index.get(key)
    assert again is not None
    assert (again["hits"], again["created_unix"]) == (1, 99.0)
    assert everything(index)[0] == key
    assert len(everything(index)) == len(KERNELS)


def test_unknown_kernels_can_be_touched_and_forgotten(tmp_path: Path) -> None:
    index = in_memory(tmp_path, [])
    index.touch("f" * 64)
    index.forget("f" * 64)
    assert len(index) == 0


def database(store: Store) -> Path:
    return store.layout.index / "cache.db"


def overwrite(path: Path, position: int, length: int = 4096) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xa5" * length)


def harm(store: Store, how: str) -> None:
    path = database(store)
    size = path.stat().st_size
    if how == "middle":
        overwrite(path, size // 2 // 4096 * 4096)
    elif how == "last page":
        overwrite(path, size - 4096)
    elif how == "header":
        overwrite(path, 0, 100)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        os.truncate(path, size // 2)
    elif how == "text":
        path.write_text("this is no database")
    elif how == "missing":
        shutil.rmtree(store.layout.index)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "file":
        shutil.rmtree(store.layout.index)
        store.layout.index.write_text("x")
    elif how == "link":
        moved = store.root.parent / "moved"
        store.layout.index.rename(moved)
        store.layout.index.symlink_to(moved)
    elif how == "other schema":
        with diskcache.Cache(str(store.layout.index), disk=JsonOnlyDisk) as cache:
            cache.set("schema", SCHEMA + "0")
    elif how == "foreign":
        shutil.rmtree(store.layout.index)
        with diskcache.Cache(str(store.layout.index)) as cache:
            cache.set(KERNELS[0].key(), {"somebody": "else's"})
    elif how == "changed digit":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE Cache SET value = replace(value, 'twin', 'cann') WHERE rowid > 3")
        connection.close()
    elif how == "foreign key":
        with diskcache.Cache(str(store.layout.index), disk=JsonOnlyDisk) as cache:
            cache.set("not a key", "{}")
    else:
        raise AssertionError(how)


HARMS = [
    *("middle", "last page", "header", "empty", "truncated", "text", "missing", "folder", "file", "link"),
    *("other schema", "foreign", "changed digit", "foreign key"),
]


@pytest.mark.parametrize("how", HARMS)
def test_whatever_happened_to_the_shadow_it_comes_back_from_the_artifacts(store: Store, how: str) -> None:
    before = built(store)
    before.close()
    harm(store, how)
    index = built(store)
    assert everything(index) == everything(before)
    assert index.trouble is None
    index.close()
    assert store.layout.index.is_dir()
    assert not store.layout.index.is_symlink()
    again = KernelIndex(store.root, Clock())
    again.rebuild(store, from_artifacts_only(store))
    assert everything(again) == everything(before)
    assert list(store.layout.staging.iterdir()) == []


@pytest.mark.parametrize("how", ["middle", "header", "empty", "missing", "file", "link", "foreign"])
def test_harm_while_running_costs_no_row(store: Store, how: str) -> None:
    clock = Clock()
    index = built(store, clock)
    harm(store, how)
    clock.now += FLUSH_INTERVAL_S
    index.record(row(passport(500), created_unix=9999.0))
    index.close()
    assert len(index) == len(KERNELS) + 1
    assert index.trouble is None
    assert set(everything(built(store))) == set(store.keys())


def test_a_locked_shadow_is_replaced(store: Store) -> None:
    built(store).close()
    holder = sqlite3.connect(database(store), isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        index = built(store)
        assert len(index) == len(KERNELS)
        assert index.trouble is None
    finally:
        holder.close()


def test_a_shadow_that_cannot_be_written_does_not_stop_anything(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    index = built(store, clock)

    def full(*_: object, **__: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(diskcache.Cache, "set", full)
        for n in range(100, 110):
            clock.now += FLUSH_INTERVAL_S
            index.record(row(passport(n), created_unix=5e9 + n))
        assert index.trouble == "database or disk is full"
        assert everything(index)[:2] == [passport(109).key(), passport(108).key()]
    clock.now += FLUSH_INTERVAL_S
    index.touch(passport(100).key())
    assert index.trouble is None
    assert {passport(n).key() for n in range(100, 110)} <= set(IndexShadow(store.layout).read())


PAYLOAD_MODES = [
    pytest.param("UPDATE Cache SET mode = 4, value = :payload", id="value"),
    pytest.param("UPDATE Cache SET key = :payload, raw = 0", id="key"),
    pytest.param("UPDATE Cache SET mode = 4, value = NULL, filename = :file", id="pickle file"),
    pytest.param("UPDATE Cache SET mode = 2, value = NULL, filename = :file", id="file"),
    pytest.param("UPDATE Cache SET mode = 3, value = NULL, filename = :file", id="text file"),
    pytest.param("UPDATE Settings SET value = 5 WHERE key = 'disk_pickle_protocol'", id="protocol"),
    pytest.param("INSERT INTO Settings VALUES ('disk_surprise', 1)", id="setting"),
]


@pytest.mark.parametrize("statement", PAYLOAD_MODES)
def test_a_planted_pickle_never_runs(store: Store, tmp_path: Path, statement: str) -> None:
    before = built(store)
    before.close()
    witness = tmp_path / "it ran"
    # Opcodes by hand: builtins.open(witness, "w").
    payload = f"cbuiltins\nopen\n(V{witness}\nVw\ntR.".encode()
    (store.layout.index / "planted.val").write_bytes(payload)
    connection = sqlite3.connect(database(store))
    parameters = {"payload": payload, "file": "planted.val"}
    connection.execute(
        f"{statement} WHERE rowid = 5" if statement.startswith("UPDATE Cache") else statement, parameters
    )
    connection.commit()
    connection.close()
    index = built(store)
    assert everything(index) == everything(before)
    index.record(row(KERNELS[4], created_unix=9.0))
    index.close()
    assert not witness.exists()


def test_the_payload_of_that_test_would_run(store: Store, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    witness = tmp_path / "it ran"
    payload = f"cbuiltins\nopen\n(V{witness}\nVw\ntR.".encode()
    diskcache.Disk(str(tmp_path)).fetch(4, None, payload, False).close()
    assert witness.exists()


def test_a_row_cannot_name_a_file_to_be_deleted(store: Store, tmp_path: Path) -> None:
    built(store).close()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    connection = sqlite3.connect(database(store))
    connection.execute("UPDATE Cache SET filename = '../../victim'")
    connection.commit()
    connection.close()
    index = KernelIndex(store.root, Clock())
    index.record(row(KERNELS[0]))
    index.forget(KERNELS[0].key())
    index.close()
    built(store).close()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("value", [{"a": 1}, b"bytes", 5, None, object()])
def test_only_text_can_be_stored(tmp_path: Path, value: Any) -> None:
    disk = JsonOnlyDisk(str(tmp_path))
    with pytest.raises(ForeignRowError):
        disk.store(value, False)
    with pytest.raises(ForeignRowError):
        disk.put(value)
