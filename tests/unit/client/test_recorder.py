"""What a process records of its get_kernel stream, and what becomes of many records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support import service_node
from support.client_store import PublishedStore

from kaas import (
    GemmSpec,
    InvalidConfig,
    InvalidRequest,
    SparseAttentionSpec,
    StrictMiss,
    get_kernel,
    get_kernels,
    missing_kernels,
)
from kaas.cache.environment_file import publish_environment
from kaas.client import api, recorder
from kaas.client.manifest import parse_manifest
from kaas.client.manifest_document import ManifestTarget, parse_document
from kaas.client.manifest_writing import yaml_text
from kaas.client.process_record import SUFFIX, ProcessRecord, RecordedKernel
from kaas.client.record_merging import manifest_of, merged, read_records
from kaas.client.replay_command import for_parts, plan_of
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.canonical import canonical_json

HELD = GemmSpec(n=64, k=64)
MISSING = GemmSpec(n=64, k=128)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("RANK", "SLURM_PROCID", "SLURM_JOB_ID", "KAAS_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KAAS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KAAS_SOCKET", str(tmp_path / "kaas.sock"))
    monkeypatch.setenv("KAAS_RECORD", str(tmp_path / "records"))
    monkeypatch.setattr(recorder, "FIRST_PAUSE_S", 3600.0)
    api.forget()
    PublishedStore(tmp_path / "store").add(HELD)
    yield tmp_path / "records"
    api.forget()


def only_record(directory: Path) -> ProcessRecord:
    (path,) = directory.iterdir()
    assert path.name.endswith(SUFFIX)
    return msgspec.json.decode(path.read_bytes(), type=ProcessRecord)


def by_k(record: ProcessRecord) -> dict[int, RecordedKernel]:
    return {msgspec.json.decode(kernel.spec)["k"]: kernel for kernel in record.kernels}


def test_memo_hits_store_hits_and_misses_are_told_apart(records: Path) -> None:
    for _ in range(4):
        get_kernel(HELD)
    for _ in range(2):
        with pytest.raises(StrictMiss):
            get_kernel(MISSING, strict=True)
    api.forget()  # as the end of the process
    record = only_record(records)
    assert (record.soc_name, record.cann_version, record.pid) == ("Ascend950PR_9579", "9.2.0", os.getpid())
    kernels = by_k(record)
    assert kernels[64].outcomes == {"memo": 3, "store": 1}
    assert kernels[64].count == 4
    assert kernels[128].outcomes == {"strict_miss": 2}


def test_a_forked_child_records_only_what_it_asked_itself(records: Path) -> None:
    for _ in range(4):
        get_kernel(HELD)
    child = os.fork()
    if not child:
        try:
            get_kernel(HELD)
            api.forget()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [by_k(only_record(records))[64].outcomes] == [{"memo": 1}]
    api.forget()
    found, _ = read_records([records])
    assert sorted(by_k(record)[64].count for record in found) == [1, 4]


def test_a_record_that_cannot_be_written_is_a_warning_once(
    records: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records.write_text("in the way")
    get_kernel(HELD)
    assert api._recorder is not None
    for _ in range(3):
        api._recorder.write()
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert str(records) in caplog.text


def test_nothing_is_written_anew_without_news(records: Path) -> None:
    get_kernel(HELD)
    assert api._recorder is not None
    api._recorder.write()
    (path,) = records.iterdir()
    before = path.stat().st_ino
    api._recorder.write()
    assert path.stat().st_ino == before
    get_kernel(HELD)
    api._recorder.write()
    assert path.stat().st_ino != before


def test_more_kernels_than_a_record_holds_are_counted(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_KERNELS", 1)
    get_kernel(HELD)
    with pytest.raises(StrictMiss):
        get_kernel(MISSING, strict=True)
    api.forget()
    record = only_record(records)
    assert (len(record.kernels), record.left_out) == (1, 1)


def test_strict_misses_name_everything_that_was_missing(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAAS_STRICT", "1")
    with pytest.raises(StrictMiss):
        get_kernel(MISSING)
    other = GemmSpec(n=64, k=192)
    with pytest.raises(StrictMiss, match="2 kernels were missing so far") as caught:
        get_kernel(other)
    assert [one["spec"]["k"] for one in caught.value.details["missing"]] == [128, 192]
    assert caught.value.details["spec"]["k"] == 192
    assert [(one.spec, one.outcome, one.asked) for one in missing_kernels()] == [
        (MISSING, "strict_miss", 1),
        (other, "strict_miss", 1),
    ]
    assert missing_kernels()[1].key == caught.value.details["key"]


def test_a_strict_composite_names_all_of_its_missing_kernels(records: Path, tmp_path: Path) -> None:
    publish_environment(tmp_path / "store", service_node.environment())
    composite = SparseAttentionSpec(topk=2048)
    with pytest.raises(StrictMiss) as caught:
        get_kernels(composite, strict=True)
    wanted = {stage.spec.canonical() for stage in composite.stages()}
    assert {canonical_json(one["spec"]) for one in caught.value.details["missing"]} == wanted


def test_an_illegal_strictness_names_the_legal_ones(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAAS_STRICT", "maybe")
    with pytest.raises(InvalidConfig, match="KAAS_STRICT"):
        get_kernel(HELD)


def record_of(
    rank: str, *kernels: tuple[KernelSpec, int, float], job: str = "7", soc_name: str = "Ascend950PR_9579"
) -> ProcessRecord:
    return ProcessRecord(
        version=1,
        host="node",
        pid=1,
        job=job,
        rank=rank,
        started_unix=1.0,
        written_unix=2.0,
        soc_name=soc_name,
        cann_version="9.2.0",
        left_out=0,
        kernels=[
            RecordedKernel(
                spec=msgspec.Raw(spec.canonical()),
                soc_name="",
                count=count,
                waited_s=waited_s,
                outcomes={"store": count},
            )
            for spec, count, waited_s in kernels
        ],
    )


def test_ranks_and_jobs_are_merged_into_one_manifest() -> None:
    records = [record_of(str(rank), (HELD, 2, 0.5)) for rank in (0, 1, 2, 5, 11)]
    records += [record_of("", (HELD, 1, 0.0), (MISSING, 100, 0.0), job="")]
    document = manifest_of(merged(records), comment="text")
    assert [(entry.spec, entry.weight) for entry in document.entries] == [(MISSING, 100), (HELD, 11)]
    assert document.entries[1].wanted_by == ("1 process", "job 7: ranks 0-2,5,11")
    assert document.targets == (ManifestTarget("Ascend950PR_9579", "9.2.0"),)
    waits = manifest_of(merged(records), weights="wait", targets=False)
    assert [(entry.spec, entry.weight) for entry in waits.entries] == [(HELD, 2.5), (MISSING, 0.001)]
    assert waits.targets == ()
    assert parse_document(yaml_text(document)).entries[0].spec == MISSING


def test_parts_of_a_mixed_cluster_stay_apart() -> None:
    both = [record_of("0", (HELD, 2, 0)), record_of("1", (HELD, 3, 0), soc_name="Ascend950DT_9581")]
    document = manifest_of(merged(both))
    assert {(entry.targets[0].soc_name, entry.weight) for entry in document.entries} == {
        ("Ascend950PR_9579", 2),
        ("Ascend950DT_9581", 3),
    }


def test_a_family_that_is_gone_is_unserved() -> None:
    record = record_of("0", (HELD, 1, 0))
    gone = msgspec.structs.replace(record.kernels[0], spec=msgspec.Raw(b'{"family":"no_such"}'))
    document = manifest_of(merged([msgspec.structs.replace(record, kernels=[*record.kernels, gone])]))
    assert [entry.spec for entry in document.entries] == [HELD]
    assert [(one.wanted_by, one.needs) for one in document.unserved] == [
        ("job 7: rank 0", '{"family":"no_such"}')
    ]


def test_what_is_no_record_is_left_out_and_told(tmp_path: Path) -> None:
    good = msgspec.json.encode(record_of("0", (HELD, 1, 0)))
    (tmp_path / f"a{SUFFIX}").write_bytes(good)
    (tmp_path / f"b{SUFFIX}").write_bytes(good[:-9])
    (tmp_path / f"c{SUFFIX}").write_bytes(good.replace(b'"version":1', b'"version":2'))
    (tmp_path / f".d{SUFFIX}.new").write_bytes(b"half")
    (tmp_path / "other").write_bytes(b"text")
    records, skipped = read_records([tmp_path])
    assert len(records) == 1
    assert [one.path.name[0] for one in skipped] == ["b", "c"]
    assert "version 2" in skipped[1].reason
    with pytest.raises(InvalidRequest, match="no record"):
        read_records([tmp_path / "other"])


def test_a_replay_for_another_part_adds_the_weights_of_all_targets(records: Path) -> None:
    entries = parse_manifest(
        'version: 2\ntargets: [{soc_name: Ascend950PR_9579, cann: "9.1.0"}, Ascend950DT_9581]\n'
        "kernels: [{spec: {family: gemm, n: 64, k: 64}, weight: 2}]"
    )
    (only,) = for_parts(entries, ["ascend950dt_9581", "Ascend950DT_9581"])
    assert (only.soc_name, only.cann, only.weight) == ("Ascend950DT_9581", "", 4)


def test_a_plan_says_what_is_there_without_a_daemon(records: Path) -> None:
    get_kernel(HELD)
    assert api._client is not None
    entries = parse_manifest("[{family: gemm, n: 64, k: 64}, {family: gemm, n: 64, k: 128}]")
    planned = list(plan_of(api._client, entries))
    assert [one.state for one in planned] == ["there", "compile"]
    assert planned[0].key == get_kernel(HELD).key
