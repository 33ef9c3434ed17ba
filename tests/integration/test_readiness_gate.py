"""Readiness that waits for a manifest, the question for coverage, kaas wait: a real daemon and compiles."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.daemon import DaemonProcess, until

from kaas.client.daemon_link import READINESS, DaemonLink
from kaas.proto.errors import InvalidRequest

# One node's story, told in order.
pytestmark = pytest.mark.xdist_group("readiness gate")

HEAVY = {"family": "gemm", "n": 128, "k": 64}
LIGHT = {"family": "gemm", "n": 128, "k": 128}
MANIFEST = {"version": 2, "kernels": [{"spec": HEAVY, "weight": 3}, {"spec": LIGHT, "weight": 1}]}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "ready.json"
    path.write_text(json.dumps(MANIFEST))
    return path


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, manifest: Path) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("gated")
    with DaemonProcess(directory, ready_manifest=str(manifest), ready_coverage="0.6") as process:
        yield process


@pytest.fixture(scope="module")
def rest(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.rest_url, timeout=120) as client:
        yield client


def kaas(daemon: DaemonProcess, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**daemon.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)}
    command = [sys.executable, "-m", "kaas.client.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)


def ready_document(rest: httpx.Client) -> dict[str, Any]:
    return dict(rest.get("/readyz").json())


def test_readiness_rises_and_falls_with_the_manifests_coverage(
    daemon: DaemonProcess, rest: httpx.Client
) -> None:
    link = DaemonLink(Path(daemon.socket))
    until(lambda: ready_document(rest)["checks"]["workers_warm"], 120, "warm workers")
    reply = rest.get("/readyz")
    document = reply.json()
    assert reply.status_code == 503
    assert reply.headers["content-type"] == "application/problem+json"
    assert document["code"] == "not_ready"
    assert "2 of 2 kernels are missing" in document["detail"]
    assert document["coverage"]["coverage"] == 0
    assert [one["spec"]["k"] for one in document["coverage"]["missing"]] == [64, 128]
    assert not link.health(READINESS)

    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        request = health_pb2.HealthCheckRequest(service=READINESS)
        updates = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=120)
        assert next(updates).status == health_pb2.HealthCheckResponse.NOT_SERVING

        answers: list[Any] = []
        question = {"entries": [{"spec": HEAVY}], "coverage": 1, "wait_s": 60}
        waiting = threading.Thread(target=lambda: answers.append(rest.post("/v1/coverage", json=question)))
        waiting.start()
        key = link.get_kernel(json.dumps(HEAVY).encode(), timeout=120).key
        assert next(updates).status == health_pb2.HealthCheckResponse.SERVING
        waiting.join(60)
        assert answers[0].json()["coverage"] == 1
        reply = rest.get("/readyz")
        assert (reply.status_code, reply.json()["coverage"]["coverage"]) == (200, 0.75)
        assert [one["spec"]["k"] for one in reply.json()["coverage"]["missing"]] == [128]

        link.quarantine(key, "the test takes it away")
        assert next(updates).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert rest.get("/readyz").status_code == 503
        link.get_kernel(json.dumps(HEAVY).encode(), timeout=120)
        assert next(updates).status == health_pb2.HealthCheckResponse.SERVING
        updates.cancel()


def test_the_question_names_what_is_missing_and_what_is_for_others(
    daemon: DaemonProcess, rest: httpx.Client
) -> None:
    link = DaemonLink(Path(daemon.socket))
    entries: list[dict[str, Any]] = [
        {"spec_json": json.dumps(LIGHT | {"k": 192}).encode(), "weight": 2.0},
        {"spec_json": b'{"family": "gemm", "n": 0, "k": 64}', "weight": 1.0},
        {"spec_json": json.dumps(LIGHT).encode(), "soc_name": "Ascend950DT_9581"},
        {"spec_json": json.dumps(LIGHT).encode(), "cann": "1.2.3"},
    ]
    answer = link.coverage(entries)
    assert (answer.total, answer.held, answer.left_out, answer.weight) == (2, 0, 2, 3.0)
    assert [(one.index, one.state) for one in answer.missing] == [(0, "missing"), (1, "refused")]
    assert json.loads(answer.missing[1].error_json)["details"]["field"] == "n"
    assert link.coverage(entries, all_targets=True).total == 3
    with pytest.raises(InvalidRequest, match="is for this node"):
        link.coverage(entries[2:])
    refused = rest.post("/v1/coverage", json={"entries": [{"spec": LIGHT, "key": "0" * 64}]})
    assert refused.status_code == 400


def test_wait_tells_nodes_that_hold_it_from_those_that_are_down(
    daemon: DaemonProcess, manifest: Path
) -> None:
    DaemonLink(Path(daemon.socket)).get_kernel(json.dumps(HEAVY).encode(), timeout=120)
    nodes = f"{daemon.socket},{daemon.rest_url.removeprefix('http://')},/nowhere/kaas.sock"
    words = ["wait", "--manifest", str(manifest), "--coverage", "1", "--nodes", nodes, "--json"]
    result = kaas(daemon, *words, "--timeout", "0")
    outcome = json.loads(result.stdout)
    assert result.returncode == 5, result.stderr
    assert (outcome["complete"], outcome["skew_s"]) == (False, None)
    assert [node["state"] for node in outcome["nodes"]] == ["waiting", "waiting", "down"]
    assert outcome["nodes"][0]["missing"][0]["spec"]["k"] == 128

    DaemonLink(Path(daemon.socket)).get_kernel(json.dumps(LIGHT).encode(), timeout=120)
    nodes = ",".join(nodes.split(",")[:2])
    result = kaas(daemon, "wait", "--manifest", str(manifest), "--nodes", nodes, "--timeout", "60")
    assert result.returncode == 0, result.stderr
    assert "2 of 2 nodes hold it" in result.stdout
    assert "skew" in result.stdout


def test_a_manifest_that_is_not_for_this_node_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**MANIFEST, "targets": ["Ascend950DT_9581"]}))
    daemon = DaemonProcess(tmp_path, ready_manifest=str(path))
    try:
        result = subprocess.run(daemon.command(), capture_output=True, text=True, timeout=120)
    finally:
        daemon.discard()
    assert result.returncode == 2
    assert "ready_manifest: none of 2 entries is for this node" in result.stderr.splitlines()[-1]
