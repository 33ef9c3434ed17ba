"""The REST API against its own OpenAPI document: generated requests, right ones and wrong ones."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import DaemonProcess

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
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("contract")) as process:
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
    # families' fields have tables of their own: two families stand for all.
    document = httpx.get(f"{daemon.rest_url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    stand_ins = [{"$ref": f"#/components/schemas/{name}"} for name in ("GemmSpec", "RmsNormSpec")]
    for body in ("CompileBody", "ExplainBody", "PrewarmEntryBody"):
        assert all(stand_in in schemas[body]["properties"]["spec"]["oneOf"] for stand_in in stand_ins)
        schemas[body]["properties"]["spec"]["oneOf"] = stand_ins
    trimmed = tmp_path / "openapi.json"
    trimmed.write_text(json.dumps(document))
    assert run_schemathesis(daemon, tmp_path, str(trimmed), "coverage") > 200


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
