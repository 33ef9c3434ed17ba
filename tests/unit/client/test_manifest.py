"""Pre-warm manifests: what is accepted, and where a mistake is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.client.manifest import parse_manifest, read_manifest
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.proto.errors import InvalidManifest

GOOD = """\
soc_name: Ascend950PR_9579
kernels:
  - family: gemm          # a comment
    n: 4096
    k: 7168
  - {family: rmsnorm, hidden: 7168, eps: 1e-5, soc_name: Ascend950DT_9581}
  - spec: {family: gemm, n: 64, k: 64, layout: nn}
    soc_name: ascend950dt_9581
"""


def test_entries_take_the_manifests_part_or_their_own() -> None:
    entries = parse_manifest(GOOD)
    assert [entry.spec for entry in entries] == [
        GemmSpec(n=4096, k=7168),
        RmsNormSpec(hidden=7168, eps=1e-5),
        GemmSpec(n=64, k=64, layout="nn"),
    ]
    assert [entry.soc_name for entry in entries] == [
        "Ascend950PR_9579",
        "Ascend950DT_9581",
        "ascend950dt_9581",
    ]
    assert [entry.line for entry in entries] == [3, 6, 7]


def test_json_is_a_manifest_too() -> None:
    (entry,) = parse_manifest('[{"family": "gemm", "n": 64, "k": 64}]')
    assert entry.spec == GemmSpec(n=64, k=64)
    assert entry.soc_name == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one kernel"),
        ("[]", "at least one kernel"),
        ("kernels: 3", "at least one kernel"),
        ("hello", "at least one kernel"),
        ("kernels: [\n", "line 2"),
        ("- a: [1\n- b", "line 2"),
        ("kernel: []", "unknown field 'kernel'"),
        ("- {family: gemm, n: 64, k: 64}\n- {family: gemm, n: 64}\n", "entry 2 (line 2): k: is missing"),
        ("\n\n- {family: gemm, n: 64, k: -1}\n", "entry 1 (line 3): k is -1"),
        ("- {family: gemmm, n: 64, k: 1}\n", "entry 1 (line 1): no kernel family"),
        ("- {family: gemm, n: 64, k: 1, soc_name: Ascend910B1}\n", "entry 1 (line 1): Ascend910B1"),
        ("- {family: gemm, n: 64, k: 1, soc_name: 3}\n", "soc_name is 3"),
        ("- 3\n", "entry 1 (line 1): a spec is expected"),
        ("- &x {family: gemm, n: 64, k: 64}\n- *x\n", "aliases"),
        ("- !!python/object/apply:os.system [true]\n", "line 1"),
        ("- {family: gemm, n: 2024-01-01, k: 64}\n", "entry 1 (line 1)"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
    ],
)
def test_a_mistake_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(text)
    assert said in caught.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="No such file"):
        read_manifest(tmp_path / "none.yaml")
