"""Pins, audit and usage as operators see them: command line and HTTP against one daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import DaemonProcess, until
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import gemm_passport, store_gemm

from kaas.client.daemon_link import DaemonLink
from kaas.proto.errors import KernelNotFound


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("pins")
    toolkit = FakeToolkit(directory / "toolkit")
    daemon = DaemonProcess(directory, toolkit_home=str(toolkit.home), store_soft_files="2")
    try:
        daemon.start()
        daemon.kill()
        # Four kernels of yesterday, of which one is pinned before the limit of two is applied.
        a_day_ago = time.time() - 86_400
        for n in (16, 32, 48, 64):
            store_gemm(daemon.store, n, created_unix=a_day_ago + n)
        pin = {"key": key_of(daemon, 16), "reason": "kept", "since_unix": 1.0, "expires_unix": 0.0}
        (daemon.store / "pins.json").write_text(json.dumps({"version": 1, "pins": [pin]}))
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        daemon.discard()


def key_of(daemon: DaemonProcess, n: int) -> str:
    return gemm_passport(daemon.store, n).key()


def kaas(daemon: DaemonProcess, *words: str, status: int = 0, stdin: str = "") -> str:
    command = [sys.executable, "-m", "kaas.client.cli", *words, "--socket", daemon.socket]
    run = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    assert run.returncode == status, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout if status == 0 else run.stderr


def test_a_pinned_kernel_outlives_the_limit_and_eviction_is_on_record(daemon: DaemonProcess) -> None:
    link = DaemonLink(Path(daemon.socket))
    until(lambda: link.usage()["evicted"] == 2, what="two evictions")
    left = {path.stem for path in daemon.store.glob("artifacts/*/*.kernel")}
    assert left == {key_of(daemon, 16), key_of(daemon, 64)}
    gone = {record["key"] for record in link.audit("", "evicted", 10)}
    assert gone == {key_of(daemon, 32), key_of(daemon, 48)}
    assert [kernel.pinned for kernel in link.list_kernels().kernels] == [False, True]
    reason = link.explain(b'{"family":"gemm","n":32,"k":64}').reason
    assert reason.startswith("Not cached: it was evicted at")
    assert link.usage()["used"]["files"] == 2
    link.close()


def test_pins_by_manifest_need_no_kernel_and_end(daemon: DaemonProcess) -> None:
    manifest = "- {family: gemm, n: 80, k: 64}\n- {family: gemm, n: 64, k: 64}\n"
    said = kaas(daemon, "pin", "--manifest", "-", "--reason", "release 7", "--expires", "2h", stdin=manifest)
    assert said == "2 pinned, 1 of them not compiled yet\n"
    listed = {pin["key"]: pin for pin in json.loads(kaas(daemon, "pins", "--json"))}
    pin = listed[key_of(daemon, 80)]
    assert (pin["reason"], pin["stored"]) == ("release 7", False)
    assert 7100 < pin["expires_unix"] - pin["since_unix"] <= 7200
    assert kaas(daemon, "unpin", key_of(daemon, 80)[:10]) == "1 unpinned\n"
    assert kaas(daemon, "unpin", "--manifest", "-", stdin=manifest) == "1 unpinned\n"
    assert "pinned" in kaas(daemon, "ls")
    assert "release 7" not in kaas(daemon, "pins")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["pin", "0" * 64], 2, "reason"),
        (["pin", "--reason", "r"], 2, "--manifest"),
        (["pin", "0" * 64, "--reason", "r", "--expires", "soon"], 2, "30d"),
        (["pin", "xyz", "--reason", "r"], 2, "key"),
        (["pin", "abcdef0123", "--reason", "r"], 3, "abcdef0123"),
        (["who", "abcdef0123"], 3, "abcdef0123"),
        (["quarantine", "f" * 64, "--reason", "r"], 3, "f" * 64),
        (["quarantine", "f" * 64], 2, "--reason"),
        (["audit", "--event", "nothing"], 2, "evicted"),
        (["ls", "--family", "gem"], 2, "did you mean gemm"),
        (["failures", "--family", "gem"], 2, "did you mean gemm"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    daemon: DaemonProcess, words: list[str], status: int, text: str
) -> None:
    assert text in kaas(daemon, *words, status=status)


@pytest.mark.parametrize("path", ["/v1/kernels", "/v1/failures"])
def test_an_unknown_family_is_a_problem_over_http(daemon: DaemonProcess, path: str) -> None:
    with httpx.Client(base_url=daemon.rest_url) as http:
        answer = http.get(path, params={"family": "gem"})
        assert answer.status_code == 400
        problem = answer.json()
        assert problem["type"] == "urn:kaas:error:invalid_request"
        assert problem["details"]["field"] == "family"
        assert "gemm" in problem["details"]["legal"]
        assert http.get(path, params={"family": "rmsnorm"}).status_code == 200


def test_the_same_over_http(daemon: DaemonProcess) -> None:
    key = key_of(daemon, 64)
    with httpx.Client(base_url=daemon.rest_url) as http:
        body: dict[str, Any] = {
            "entries": [{"spec": {"family": "gemm", "n": 64, "k": 64}}],
            "reason": "over http",
            "expires_s": 60,
        }
        made = http.post("/v1/pins", json=body).json()["pins"]
        assert [(pin["key"], pin["stored"]) for pin in made] == [(key, True)]
        assert key in {pin["key"] for pin in http.get("/v1/pins").json()["pins"]}
        assert http.get(f"/v1/kernels/{key}").json()["summary"]["pinned"] is True
        assert http.delete(f"/v1/pins/{key[:8]}").json() == {"keys": [key]}
        assert http.delete(f"/v1/pins/{key}").json() == {"keys": []}
        assert http.get("/v1/leases").json()["leases"] == []
        assert http.get(f"/v1/kernels/{key}/users").json() == {"key": key, "users": []}
        events = [record["event"] for record in http.get("/v1/audit", params={"key": key}).json()["records"]]
        assert events[:2] == ["unpinned", "pinned"]
        assert http.get("/v1/usage").json()["pins"] == 1
        refusal = http.post("/v1/pins", json={**body, "entries": []})
        assert refusal.status_code == 400
        assert refusal.json()["details"]["field"] == "keys"

        done = http.post(f"/v1/kernels/{key}/quarantine", json={"reason": "a test"})
        assert done.json()["key"] == key
        assert http.get(f"/v1/kernels/{key}").status_code == 404
        assert http.post(f"/v1/kernels/{key}/quarantine", json={"reason": "again"}).status_code == 404
    link = DaemonLink(Path(daemon.socket))
    with pytest.raises(KernelNotFound):
        link.describe(key)
    link.close()
