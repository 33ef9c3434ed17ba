"""A Ray cluster of two nodes as builders: each kernel once, again nothing, and a node that goes away."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    # Ray's own code leaves sockets and files to the collector.
    pytest.mark.filterwarnings("default"),
]

KERNELS = [{"family": "gemm", "n": 64 * n, "k": 64, "m": 64} for n in range(1, 9)]
TOO_LARGE = {"family": "rmsnorm", "hidden": 32768, "dtype": "fp32", "residual": True}
SOC = "Ascend950PR_9579"
STRICT_RANK = """
import sys
from pathlib import Path
from kaas import get_kernel
from kaas.client.manifest import read_manifest
for entry in read_manifest(Path(sys.argv[1])):
    assert get_kernel(entry.spec, strict=True).origin == "store"
"""
OBJECT_STORE_BYTES = 80 << 20


class RayCluster:
    """Two nodes with one CPU each behind a head with none, on loopback; each with a builder home."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        self.root = root
        node = {"node_ip_address": "127.0.0.1", "object_store_memory": OBJECT_STORE_BYTES}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **node}
        )
        try:
            self.nodes = [
                self._cluster.add_node(
                    num_cpus=1,
                    env_vars={
                        "KAAS_BUILDER_HOME": str(root / name),
                        "KAAS_SOCKET": str(root / "nobody.sock"),
                    },
                    **node,
                )
                for name in ("a", "b")
            ]
        except BaseException:
            self.shutdown()
            raise

    def prewarm(self, kernels: list[dict[str, Any]], *options: str) -> subprocess.Popen[str]:
        manifest = self.root / "manifest.json"
        manifest.write_text(json.dumps({"kernels": kernels}))
        command = [sys.executable, "-m", "kaas.client.cli", "prewarm", str(manifest), "--json", *options]
        return subprocess.Popen(
            [*command, "--ray", self._cluster.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def remove(self, number: int) -> None:
        self._cluster.remove_node(self.nodes[number], allow_graceful=False)

    def artifacts(self) -> Counter[str]:
        """How many of the two stores hold each key."""
        return Counter(path.stem for path in self.root.glob("[ab]/store/artifacts/*/*.kernel"))

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Lets Ray use the loopback address for its own node, instead of one that others could reach.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    with tempfile.TemporaryDirectory(prefix="kaas-ray-", dir="/tmp") as root:
        made = RayCluster(Path(root))
        try:
            yield made
        finally:
            made.shutdown()


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_each_kernel_is_compiled_once_in_the_cluster_and_never_again(cluster: RayCluster) -> None:
    failures = cluster.root / "failures.json"
    first = cluster.prewarm([*KERNELS, TOO_LARGE], "--failures", str(failures))
    output, errors = first.communicate(timeout=300)
    assert first.returncode == 1, errors
    lines = lines_of(output)
    assert lines[-1]["outcomes"] == {"compiled": len(KERNELS)}
    assert len({line["where"] for line in lines[:-1]}) == 2
    assert cluster.artifacts() == Counter({line["key"]: 1 for line in lines if line.get("key")})
    (failure,) = json.loads(failures.read_text())["failures"]
    assert (failure["spec"]["family"], failure["error"]["code"]) == ("rmsnorm", "does_not_fit")

    again = cluster.prewarm(KERNELS)
    output, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert lines_of(output)[-1]["outcomes"] == {"hit": len(KERNELS)}
    assert len(cluster.artifacts()) == len(KERNELS)


def test_what_a_lost_node_leaves_is_built_by_the_others(cluster: RayCluster) -> None:
    process = cluster.prewarm(KERNELS)
    assert process.stdout is not None
    first = process.stdout.readline()
    cluster.remove(1)
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    last = lines_of(first + rest)[-1]
    assert (last["ready"], last["failed"]) == (len(KERNELS), 0)
    assert os.listdir(cluster.root / "a" / "store" / "artifacts")  # noqa: PTH208


def test_nodes_start_warm_from_what_the_cluster_wrote_to_a_remote_tier(
    cluster: RayCluster, tmp_path: Path
) -> None:
    pytest.importorskip("opendal")
    shared = tmp_path / "shared"
    shared.mkdir()
    config = tmp_path / "builder.toml"
    config.write_text(
        f'soc_name = "{SOC}"\n[[remote_tiers]]\nname = "shared"\nuri = "fs://{shared}"\n', encoding="utf-8"
    )
    building = cluster.prewarm(KERNELS, "--builder-config", str(config))
    output, errors = building.communicate(timeout=300)
    assert building.returncode == 0, errors
    lines = lines_of(output)
    assert lines[-1]["outcomes"] == {"compiled": len(KERNELS)}
    keys = {line["key"] for line in lines[:-1]}
    assert {path.stem for path in shared.rglob("*.kernel")} == keys

    manifest = cluster.root / "manifest.json"
    tiers = {"KAAS_REMOTE_TIERS": f"fs://{shared}"}
    for name in ("one", "two"):
        with DaemonProcess(tmp_path / name, environ=tiers, soc_name=SOC, rest_address="off") as node:
            environ = {**os.environ, "KAAS_SOCKET": node.socket, "KAAS_STORE": str(node.store)}
            kaas = [sys.executable, "-m", "kaas.client.cli"]
            for command in (
                [*kaas, "prewarm", str(manifest)],
                [*kaas, "wait", "--manifest", str(manifest), "--timeout", "0"],
                [sys.executable, "-c", STRICT_RANK, str(manifest)],
            ):
                done = subprocess.run(
                    command, env=environ, capture_output=True, text=True, timeout=120, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
            assert "compiler start" not in node.log_text()


def test_a_cluster_that_is_not_there_is_an_error_with_its_address(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"kernels": KERNELS}))
    done = subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", "prewarm", str(manifest), "--ray", "no address"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 4
    assert "no address" in done.stderr
    assert "Traceback" not in done.stderr
