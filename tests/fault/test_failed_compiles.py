"""Bad specs and bad compilers on a real daemon: one compile, clear errors, over restarts, until cleared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.staged_node import ELEMENTS, StagedNode

from kaas.proto.errors import CompileFailed, CompileTimeout, WorkerCrashed

SPEC = ["staged", f"length={ELEMENTS}"]


def kaas(node: StagedNode, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kaas.client.cli", *words],
        env={
            **os.environ,
            **node.environ,
            "KAAS_SOCKET": node.daemon.socket,
            "KAAS_STORE": str(node.daemon.store),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def rest(node: StagedNode, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(node.daemon.rest_url + path, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def test_a_hundred_requests_for_a_bad_spec_are_one_compile_until_somebody_clears_it(tmp_path: Path) -> None:
    with StagedNode(tmp_path, "reject") as node:
        errors = [error for _ in range(10) for error in node.ask(*[1] * 10)]

        assert len(errors) == 100
        assert all(isinstance(error, CompileFailed) for error in errors)
        assert all("no such intrinsic" in error.message for error in errors)
        assert "1 error generated." in errors[-1].details["log_tail"]
        assert errors[-1].details["remembered"] == "deterministic"
        assert "kaas failures --clear" in (errors[-1].hint or "")
        assert len(node.toolkit.starts()) == 1

        (listed,) = json.loads(kaas(node, "failures", "--json").stdout)
        assert (listed["kind"], listed["family"], listed["attempts"]) == ("deterministic", "staged", 1)
        assert listed["answered"] >= 90
        assert "bisheng failed with status 1" in kaas(node, "failures").stdout
        (shown,) = json.loads(kaas(node, "ls", "--state", "failed", "--json").stdout)
        assert (shown["state"], shown["key"]) == ("failed", listed["key"])
        assert "no such intrinsic" in shown["error"]
        explained = json.loads(kaas(node, "explain", *SPEC, "--json").stdout)
        assert "its compile failed at" in explained["reason"]
        assert explained["failure"]["key"] == listed["key"]
        assert kaas(node, "get", *SPEC).returncode == 1
        page = rest(node, "/v1/failures")
        assert [failure["key"] for failure in page["failures"]] == [listed["key"]]
        assert rest(node, f"/v1/failures/{listed['key'][:12]}")["error"]["code"] == "compile_failed"
        assert rest(node, "/v1/kernels?state=failed")["total"] == 1
        assert len(node.toolkit.starts()) == 1

    # A restart forgets nothing; a cleared one is tried again, and what then succeeds is no failure any more.
    with StagedNode(tmp_path) as node:
        assert isinstance(node.ask(1)[0], CompileFailed)
        assert len(node.toolkit.starts()) == 1
        node.toolkit.behaviour = "compile"
        cleared = kaas(node, "failures", "--clear", listed["key"][:12], "--json")
        assert json.loads(cleared.stdout) == [listed["key"]]
        assert kaas(node, "failures", "--clear", listed["key"][:12]).returncode == 3
        assert kaas(node, "get", *SPEC).returncode == 0
        assert len(node.toolkit.starts()) == 2
        assert "no failed compile is remembered" in kaas(node, "failures").stdout


def test_another_compiler_asks_again(tmp_path: Path) -> None:
    with StagedNode(tmp_path, "reject") as node:
        assert isinstance(node.ask(1)[0], CompileFailed)
        (node.toolkit.home / "include" / "asc.h").write_text("// other intrinsics\n")
        node.toolkit.behaviour = "compile"
    with StagedNode(tmp_path) as node:
        assert node.ask(1)[0].key
        assert len(node.toolkit.starts()) == 2
        assert [failure["kind"] for failure in rest(node, "/v1/failures")["failures"]] == ["deterministic"]
        assert rest(node, "/v1/failures", "DELETE")["keys"]
        assert rest(node, "/v1/failures")["total"] == 0


@pytest.mark.parametrize(
    ("behaviour", "error", "kind", "starts"),
    [
        ("nothing", CompileFailed, "deterministic", 3),
        ("crash", CompileFailed, "transient", 3),
        ("hang", CompileTimeout, "transient", 3),
    ],
)
def test_what_may_pass_is_tried_again_with_bounds_and_then_answered_at_once(
    tmp_path: Path, behaviour: str, error: type[Exception], kind: str, starts: int
) -> None:
    with StagedNode(
        tmp_path,
        behaviour,
        compile_attempts=str(starts),
        compile_retry_delay_s="0.05",
        compile_wall_limit_s="5",
        transient_failure_lifetime_s="3600",
    ) as node:
        failures = node.ask(*[1] * 10)
        failures += node.ask(*[1] * 10)
        assert all(isinstance(failure, error) for failure in failures)
        assert len(node.toolkit.starts()) == starts
        (listed,) = rest(node, "/v1/failures")["failures"]
        assert (listed["kind"], listed["attempts"]) == (kind, starts)
        assert node.ask(2, 2)[0] is not None  # other kernels are asked for on their own account
        assert len(node.toolkit.starts()) == 2 * starts


def test_a_transient_failure_is_not_remembered_without_a_lifetime(tmp_path: Path) -> None:
    with StagedNode(
        tmp_path,
        "crash",
        compile_attempts="1",
        transient_failure_lifetime_s="0",
    ) as node:
        assert isinstance(node.ask(1)[0], (CompileFailed, WorkerCrashed))
        node.toolkit.behaviour = "compile"
        assert node.ask(1)[0].key
        assert rest(node, "/v1/failures")["total"] == 0
