"""From life: two ranks record what they ask for; a builder replays it; the same ranks compile nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess

from kaas.client.manifest_document import read_document

ASK = Path(__file__).parents[1] / "support" / "ask_kernels.py"
RANKS = {"0": ("64", "128"), "1": ("64", "192")}


def run(daemon: DaemonProcess, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**daemon.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store), **environ},
    )


def kaas(daemon: DaemonProcess, *words: str) -> str:
    result = run(daemon, "-m", "kaas.client.cli", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rank(daemon: DaemonProcess, number: str, **environ: str) -> Mapping[str, Any]:
    result = run(daemon, str(ASK), *RANKS[number], RANK=number, SLURM_JOB_ID="4711", **environ)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def compiler_starts(daemon: DaemonProcess) -> int:
    return daemon.log_text().count("compiler start")


def test_a_job_that_was_recorded_and_replayed_compiles_nothing(tmp_path: Path) -> None:
    records = tmp_path / "records"
    manifest = tmp_path / "job.yaml"
    with DaemonProcess(tmp_path / "first") as daemon:
        daemon.wait_ready()
        for number in RANKS:
            origins = rank(daemon, number, KAAS_RECORD=str(records))["origins"]
            assert set(origins.values()) <= {"compiled", "store"}
        kaas(daemon, "record", "export", str(records), "-o", str(manifest))
        told = json.loads(kaas(daemon, "record", "export", "--from-audit", "--json"))
        assert len(told["kernels"]) == 3
    document = read_document(manifest)
    weights = {entry.spec.to_record()["k"]: entry.weight for entry in document.entries}
    assert weights == {64: 10, 128: 1, 192: 1}
    assert document.entries[0].wanted_by == ("job 4711: ranks 0-1",)
    assert [target.soc_name for target in document.targets] == ["Ascend950PR_9579"]

    with DaemonProcess(tmp_path / "builder") as builder:
        builder.wait_ready()
        plan = json.loads(kaas(builder, "replay", str(manifest), "--plan", "--json"))
        assert [one["state"] for one in plan] == ["compile"] * 3
        other = json.loads(
            kaas(builder, "replay", str(manifest), "--sku", "Ascend950DT_9581", "--plan", "--json")
        )
        assert {one["soc_name"] for one in other} == {"Ascend950DT_9581"}
        assert not {one["key"] for one in other} & {one["key"] for one in plan}

        refused = rank(builder, "0", KAAS_STRICT="1")
        assert refused["origins"] == {"64": "strict_miss", "128": "strict_miss"}
        assert refused["missing"] == [[64, "strict_miss"], [128, "strict_miss"]]
        assert compiler_starts(builder) == 0

        kaas(builder, "replay", str(manifest))
        assert compiler_starts(builder) == 3
        plan = json.loads(kaas(builder, "replay", str(manifest), "--plan", "--json"))
        assert [one["state"] for one in plan] == ["there"] * 3
        for number, asked in RANKS.items():
            answer = rank(builder, number, KAAS_STRICT="1", KAAS_RECORD=str(tmp_path / "again"))
            assert answer == {"origins": dict.fromkeys(asked, "store"), "missing": []}
        assert compiler_starts(builder) == 3
        shown = json.loads(kaas(builder, "record", "show", str(tmp_path / "again"), "--json"))
        assert {name for one in shown["kernels"] for name in one["outcomes"]} == {"store", "memo"}

        kaas(builder, "replay", str(manifest), "--sku", "Ascend950DT_9581")
        assert compiler_starts(builder) == 6


@pytest.mark.parametrize("words", [("show",), ("show", "/nowhere"), ("export", "--weights", "size", ".")])
def test_a_record_that_is_not_there_is_wrong_usage(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "kaas.client.cli", "record", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
