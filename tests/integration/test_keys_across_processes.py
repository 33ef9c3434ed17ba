"""The same key in every process: other hash seeds, directories, field orders and install prefixes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.client_store import environment

import kaas
from kaas import GemmSpec, RmsNormSpec
from kaas.kernel_library.registry import families, family_digest
from kaas.proto.canonical import canonical_json

SPECS = [GemmSpec(m="dynamic", n=4096, k=7168, alpha=True), RmsNormSpec(hidden=7168, eps=1e-5)]
SCRIPT = """
import json, sys
import msgspec
from kaas.kernel_library.registry import families, family_digest, parse_spec
from kaas.proto.environment import Environment
import kaas
environment = msgspec.json.decode(sys.argv[1], type=Environment)
keys = [environment.passport(parse_spec(spec).to_record()).key() for spec in json.loads(sys.argv[2])]
digests = {name: family_digest(family) for name, family in families().items()}
print(json.dumps([keys, digests, kaas.__file__]))
"""


def backwards(record: dict[str, object]) -> dict[str, object]:
    return dict(reversed(record.items()))


@pytest.fixture(scope="module")
def copied_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("other prefix") / "lib"
    packages = Path(kaas.__file__).parent
    shutil.copytree(packages, prefix / "kaas", ignore=shutil.ignore_patterns("__pycache__", "twin"))
    return prefix


@pytest.mark.parametrize("seed", ["0", "1", "31337"])
@pytest.mark.parametrize("where", ["installed", "copied"])
def test_another_process_computes_the_same_keys(
    seed: str, where: str, copied_prefix: Path, tmp_path: Path
) -> None:
    surroundings = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed, "HOME": str(tmp_path), "LC_ALL": "C"}
    if where == "copied":
        surroundings["PYTHONPATH"] = str(copied_prefix)
    node = environment()
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        canonical_json(node).decode(),
        json.dumps([backwards(spec.to_record()) for spec in SPECS]),
    ]
    output = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True
    ).stdout
    keys, digests, location = json.loads(output)
    assert keys == [node.passport(spec.to_record()).key() for spec in SPECS]
    assert digests == {name: family_digest(family) for name, family in families().items()}
    assert Path(location).is_relative_to(copied_prefix) is (where == "copied")
