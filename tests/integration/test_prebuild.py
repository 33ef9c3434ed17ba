"""`kaas forecast --prebuild`: after the change that was forecast, nothing is compiled any more."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess

from kaas.compiler.twin.install import ensure_twin_home

KERNELS = [{"family": "gemm", "n": 64 * n, "k": 64, "m": 64} for n in (1, 2)]
NORM = {"family": "rmsnorm", "hidden": 64, "tokens": 8}
OTHER = "Ascend950DT_9581"


def kaas(daemon: DaemonProcess, *words: str | Path) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", *map(str, words), "--json"],
        env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in (done.stdout or done.stderr).splitlines()]


def manifest_of(folder: Path, kernels: Sequence[dict[str, Any]], soc_name: str = "") -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps({"soc_name": soc_name, "kernels": list(kernels)}))
    return path


def test_another_parts_kernels_are_built_by_the_nodes_daemon(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, rest_address="off") as daemon:
        assert kaas(daemon, "prewarm", manifest_of(tmp_path, KERNELS))[0] == 0
        assert kaas(daemon, "prewarm", manifest_of(tmp_path, KERNELS[:1]))[0] == 0  # a hit
        status, lines = kaas(daemon, "forecast", "--sku", OTHER, "--prebuild")
        assert status == 0, lines
        forecast, last = lines[0], lines[-1]
        assert forecast["use_is_known"] is True
        assert forecast["totals"]["cold"] == 2
        assert [(one["spec"]["n"], one["hits"]) for one in forecast["kernels"]] == [(64, 1), (128, 0)]
        assert last["outcomes"] == {"compiled": 2}
        assert {line["key"] for line in lines[1:-1]} == {one["new_key"] for one in forecast["kernels"]}
        # Now both parts' kernels are live; each spec is there for either.
        status, lines = kaas(daemon, "forecast", "--sku", OTHER)
        assert (lines[0]["totals"]["cold"], lines[0]["totals"]["kernels"]) == (0, 2)
        _, lines = kaas(daemon, "prewarm", manifest_of(tmp_path, KERNELS, OTHER))
        assert lines[-1]["outcomes"] == {"hit": 2}


@pytest.mark.slow
def test_after_the_toolkit_is_upgraded_what_was_built_beforehand_is_there(tmp_path: Path) -> None:
    newer = ensure_twin_home(tmp_path / "newer", cann_version="9.3.0")
    kernels = [*KERNELS, NORM]
    with DaemonProcess(tmp_path, rest_address="off") as daemon:
        assert kaas(daemon, "prewarm", manifest_of(tmp_path, kernels))[0] == 0
        status, lines = kaas(daemon, "forecast", "--toolkit", newer, "--cann", "9.4.0")
        assert (status, lines[0]["details"]["legal"]) == (2, ["9.3.0"])

        status, lines = kaas(daemon, "forecast", "--toolkit", newer, "--cann", "9.3.0", "--prebuild")
        assert status == 0, lines
        assert lines[0]["certainty"] == "exact"
        assert lines[-2]["outcomes"] == {"compiled": 3}
        assert lines[-1] == {"prebuilt": 3, "added": 3}

        # What is in use stays in use.
        _, lines = kaas(daemon, "prewarm", manifest_of(tmp_path, kernels))
        assert lines[-1]["outcomes"] == {"hit": 3}
        status, lines = kaas(daemon, "forecast", "--toolkit", newer, "--prebuild")
        assert (status, lines[0]["totals"]["prebuilt"], lines[-1]["total"]) == (0, 3, 0)
    with DaemonProcess(tmp_path, rest_address="off", toolkit_home=str(newer)) as upgraded:
        _, lines = kaas(upgraded, "prewarm", manifest_of(tmp_path, kernels))
        assert lines[-1]["outcomes"] == {"hit": 3}


@pytest.mark.slow
def test_a_daemon_that_wants_signatures_gets_a_bundle_to_sign(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    newer = ensure_twin_home(tmp_path / "newer", cann_version="9.3.0")
    trust = tmp_path / "trust.toml"
    trust.write_text('[keys]\nrelease = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="\n')
    options = {"trust_list": str(trust), "require_signature": "true", "rest_address": "off"}
    with DaemonProcess(tmp_path, **options) as daemon:
        assert kaas(daemon, "prewarm", manifest_of(tmp_path, KERNELS[:1]))[0] == 0
        before = sorted(daemon.store.glob("artifacts/*/*.kernel"))
        status, lines = kaas(daemon, "forecast", "--toolkit", newer, "--prebuild")
        assert (status, lines[-1]["finished"]) == (1, True), lines
        assert sorted(daemon.store.glob("artifacts/*/*.kernel")) == before
        bundle = tmp_path / "prebuilt.tar"
        status, lines = kaas(daemon, "forecast", "--toolkit", newer, "--prebuild", "--bundle", bundle)
        assert status == 0, lines
        assert sorted(daemon.store.glob("artifacts/*/*.kernel")) == before
        status, contents = kaas(daemon, "bundle", "inspect", bundle)
        assert status == 0
        assert [one["key"] for one in contents[0]["kernels"]] == [lines[0]["kernels"][0]["new_key"]]
