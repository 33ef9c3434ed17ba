"""The REST API against its own OpenAPI document: generated requests, right ones and wrong ones."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from support.daemon import DaemonProcess
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import store_gemm

METHODS = {"get", "post", "put", "delete", "patch", "head", "options"}
SEED = 20260101
EXAMPLES = 12

# A spec's rules go beyond what JSON Schema can say, so a request that fits the schema may rightly be refused;
# and a pre-warm job takes bad entries on purpose: each fails alone.
SCHEMATHESIS_CONFIG = """
[checks]
positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /v1/prewarm"
checks.negative_data_rejection.enabled = false
"""


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> FakeToolkit:
    return FakeToolkit(tmp_path_factory.mktemp("toolkit") / "cann")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, toolkit: FakeToolkit) -> Iterator[DaemonProcess]:
    # What is compiled does not matter here; how long a compiler takes does.
    directory = tmp_path_factory.mktemp("contract")
    with DaemonProcess(directory, toolkit_home=str(toolkit.home)) as process:
        process.wait_ready()
        yield process


def run_schemathesis(daemon: DaemonProcess, directory: Path, document: str, *phases: str) -> int:
    """Run it over a document, given as an address or a file; the number of requests that all passed."""
    (directory / "schemathesis.toml").write_text(SCHEMATHESIS_CONFIG)
    run = subprocess.run(
        [
            str(Path(sysconfig.get_path("scripts")) / "schemathesis"),
            *("run", document, f"--url={daemon.rest_url}", "--no-color", "--generation-database=none"),
            *(f"--seed={SEED}", f"--max-examples={EXAMPLES}", "--request-timeout=120"),
            f"--phases={','.join(phases)}",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    generated = re.search(r"(\d+) generated, (\d+) passed", run.stdout)
    assert generated, run.stdout[-2000:]
    assert "incident" not in daemon.log_text()
    return int(generated.group(1))


def test_no_generated_request_breaks_the_contract(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert run_schemathesis(daemon, tmp_path, f"{daemon.rest_url}/openapi.json", "examples", "fuzzing") > 150


def test_no_boundary_value_breaks_the_contract(daemon: DaemonProcess, tmp_path: Path) -> None:
    # Every boundary of every field of every family at three operations would be hours of requests, and the
    # families' fields have tables of their own: one family at each operation stands for all.
    document = httpx.get(f"{daemon.rest_url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    stand_ins = {
        "CompileBody": ("RmsNormSpec",),
        "ExplainBody": ("GemmSpec",),
        "PrewarmEntryBody": ("RmsNormSpec",),
    }
    for body, names in stand_ins.items():
        one_of = [{"$ref": f"#/components/schemas/{name}"} for name in names]
        assert all(one in schemas[body]["properties"]["spec"]["oneOf"] for one in one_of)
        schemas[body]["properties"]["spec"]["oneOf"] = one_of
    trimmed = tmp_path / "openapi.json"
    trimmed.write_text(json.dumps(document))
    assert run_schemathesis(daemon, tmp_path, str(trimmed), "coverage") > 150


def test_every_operation_is_documented_with_an_example_and_its_problems(daemon: DaemonProcess) -> None:
    document = httpx.get(f"{daemon.rest_url}/openapi.json").json()
    components = document["components"]["schemas"]

    def has_example(content: dict[str, Any]) -> bool:
        schema = content.get("schema", {})
        named = components.get(schema.get("$ref", "").rpartition("/")[2], {})
        return "example" in content or "examples" in content or "examples" in named

    operations = [
        (f"{method.upper()} {path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]
    assert len(operations) >= 13
    for name, operation in operations:
        success = next(reply for status, reply in operation["responses"].items() if status.startswith("2"))
        assert all(has_example(content) for content in success["content"].values()), name
        if "requestBody" in operation:
            assert all(has_example(content) for content in operation["requestBody"]["content"].values()), name
        assert "application/problem+json" in operation["responses"]["4XX"]["content"], name
        assert operation["description"], name


def test_the_document_shows_each_familys_spec(daemon: DaemonProcess) -> None:
    components = httpx.get(f"{daemon.rest_url}/openapi.json").json()["components"]["schemas"]
    assert {"GemmSpec", "RmsNormSpec"} <= components.keys()
    assert components["CompileBody"]["properties"]["spec"]["oneOf"]


class RealValues:
    """Makes what an operation needs to succeed: its path parameters, each of something that is there."""

    def __init__(self, daemon: DaemonProcess, toolkit: FakeToolkit) -> None:
        self._daemon = daemon
        self._toolkit = toolkit
        self._sizes = itertools.count(16, 16)

    def of(self, path: str) -> dict[str, str]:
        """For one call of the operation, which may use up what is made for it."""
        values = {}
        for name in re.findall(r"{(\w+)}", path):
            if name == "key":
                values[name] = self._failed() if path.startswith("/v1/failures/") else self._stored()
            elif name == "id" or name == "job_id":
                values[name] = self._job()
            elif name == "name":
                values[name] = "gemm"
            else:
                pytest.fail(f"{path}: say here what a real {name} is")
        return values

    def _stored(self) -> str:
        n = next(self._sizes)
        key = store_gemm(self._daemon.store, n)
        body = {"spec": {"family": "gemm", "n": n, "k": 64}}
        reply = httpx.post(f"{self._daemon.rest_url}/v1/kernels", json=body, timeout=120)
        assert reply.json()["outcome"] == "hit", reply.text
        return key

    def _failed(self) -> str:
        body = {"spec": {"family": "gemm", "n": next(self._sizes), "k": 64}}
        self._toolkit.behaviour = "reject"
        try:
            reply = httpx.post(f"{self._daemon.rest_url}/v1/kernels", json=body, timeout=120)
        finally:
            self._toolkit.behaviour = "compile"
        assert reply.status_code == 422, reply.text
        explained = httpx.post(f"{self._daemon.rest_url}/v1/explain", json=body, timeout=60).json()
        return str(explained["failure"]["key"])

    def _job(self) -> str:
        body = {"entries": [{"spec": {"family": "gemm", "n": next(self._sizes), "k": 64}}]}
        reply = httpx.post(f"{self._daemon.rest_url}/v1/prewarm", json=body, timeout=60)
        return str(reply.json()["id"])


def test_every_operation_succeeds_on_what_is_there_and_answers_as_documented(
    daemon: DaemonProcess, toolkit: FakeToolkit
) -> None:
    document = httpx.get(f"{daemon.rest_url}/openapi.json").json()
    components = document["components"]
    values = RealValues(daemon, toolkit)
    done = 0
    for path, item in document["paths"].items():
        for method in sorted(item.keys() & METHODS):
            operation = item[method]
            url = daemon.rest_url + path.format(**values.of(path))
            body = None
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                body = components["schemas"][schema["$ref"].rpartition("/")[2]]["examples"][0]
            reply = httpx.request(method, url, json=body, timeout=120)
            assert reply.is_success, (method, path, reply.text)
            documented = operation["responses"][str(reply.status_code)]["content"]
            kind = reply.headers["content-type"].partition(";")[0]
            assert kind in documented, (method, path, kind)
            if kind == "application/json":
                checked = {**documented[kind]["schema"], "components": components}
                jsonschema_rs.validator_for(checked).validate(reply.json())
            done += 1
    assert done >= 20
    assert "incident" not in daemon.log_text()


def test_a_wrong_method_is_told_every_right_one(daemon: DaemonProcess) -> None:
    reply = httpx.patch(f"{daemon.rest_url}/v1/kernels")
    assert reply.status_code == 405
    assert {"GET", "POST"} <= set(reply.headers["allow"].split(", "))
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body",
    [
        b'{"spec":{"family":"gemm","n":"\\ud800","k":3}}',
        b'{"spec":{"family":"gemm","\\ud800":3,"n":1,"k":3}}',
        b'{"spec":{"family":"gemm","n":' + b"9" * 5000 + b',"k":3}}',
        b'{"spec":' * 5000,
        b"\xff\xfe",
    ],
    ids=["half a character", "half a name", "thousands of digits", "deep", "no text"],
)
def test_a_body_that_lies_is_a_problem_with_a_field(daemon: DaemonProcess, body: bytes) -> None:
    for path in ("explain", "kernels"):
        reply = httpx.post(
            f"{daemon.rest_url}/v1/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert 400 <= reply.status_code < 500, reply.text
        assert reply.headers["content-type"] == "application/problem+json"
        problem = reply.json()
        assert problem["type"].startswith("urn:kaas:error:invalid_")
        assert problem["details"]["field"]
    assert "incident" not in daemon.log_text()
