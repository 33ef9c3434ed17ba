"""`kaas prewarm --shard`: shards together warm a manifest, once; failures are kept."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess

KERNELS = [{"family": "gemm", "n": 64 * n, "k": 64, "m": 64} for n in range(1, 6)]
TOO_LARGE = {"family": "rmsnorm", "hidden": 32768, "dtype": "fp32", "residual": True}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), rest_address="off") as running:
        yield running


def kaas(daemon: DaemonProcess, *arguments: str, **environ: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", *arguments],
        env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store), **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()] if "--json" in arguments else []
    return done.returncode, lines, done.stdout + done.stderr


def test_shards_of_an_indexed_job_compile_each_kernel_once(daemon: DaemonProcess, tmp_path: Path) -> None:
    manifest = tmp_path / "kernels.json"
    manifest.write_text(json.dumps({"kernels": [*KERNELS, TOO_LARGE]}))
    outcomes: dict[str, int] = {}
    failures = []
    for index in range(3):
        file = tmp_path / f"failures-{index}.json"
        status, lines, text = kaas(
            daemon,
            "prewarm",
            str(manifest),
            "--json",
            "--shard=auto",
            f"--failures={file}",
            JOB_COMPLETION_INDEX=str(index),
            KAAS_SHARD_COUNT="3",
        )
        record = json.loads(file.read_text())
        assert record["shard"] == f"{index}/3"
        assert status == (1 if record["failures"] else 0), text
        failures += record["failures"]
        assert lines[-1]["finished"] is True
        for outcome, count in lines[-1]["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    assert outcomes == {"compiled": len(KERNELS)}
    assert [failure["error"]["code"] for failure in failures] == ["does_not_fit"]
    assert [failure["position"] for failure in failures] == [len(KERNELS)]

    manifest.write_text(json.dumps({"kernels": KERNELS}))
    status, lines, text = kaas(daemon, "prewarm", str(manifest), "--json")
    assert status == 0, text
    assert lines[-1]["outcomes"] == {"hit": len(KERNELS)}


def test_learned_costs_are_exported_and_taken_back(daemon: DaemonProcess, tmp_path: Path) -> None:
    manifest, costs = tmp_path / "kernels.json", tmp_path / "costs.json"
    manifest.write_text(json.dumps({"kernels": KERNELS[:1]}))
    assert kaas(daemon, "prewarm", str(manifest))[0] == 0
    status, _, text = kaas(daemon, "manifest", "costs", "-o", str(costs))
    assert status == 0, text
    learned = json.loads(costs.read_text())["families"]["gemm"]
    assert learned["compiles"] >= 1
    assert learned["cpu_seconds"] > 0
    status, _, text = kaas(daemon, "prewarm", str(manifest), "--shard=0/1", f"--costs={costs}")
    assert status == 0, text
    assert "1 of 1 kernels are warm (1 hit), 0 failed" in text


def test_a_shard_without_kernels_is_done_at_once(daemon: DaemonProcess, tmp_path: Path) -> None:
    manifest = tmp_path / "kernels.json"
    manifest.write_text(json.dumps({"kernels": KERNELS[:1]}))
    texts = [kaas(daemon, "prewarm", str(manifest), f"--shard={index}/2") for index in (0, 1)]
    assert [status for status, _, _ in texts] == [0, 0]
    assert sorted("0 of 0" in text for _, _, text in texts) == [False, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shard=2/2"], "0 to 1"),
        (["--shard=auto"], "JOB_COMPLETION_INDEX"),
        (["--shard=0/2", "--ray=auto"], "--shard or --ray"),
        (["--builder-config=x.toml"], "only with --ray"),
        (["--costs=/nowhere/costs.json"], "kaas manifest costs"),
    ],
)
def test_wrong_options_are_usage_errors(
    daemon: DaemonProcess, tmp_path: Path, options: list[str], said: str
) -> None:
    manifest = tmp_path / "kernels.json"
    manifest.write_text(json.dumps({"kernels": KERNELS[:1]}))
    status, _, text = kaas(daemon, "prewarm", str(manifest), *options)
    assert status == 2, text
    assert said in text
    assert "Traceback" not in text
