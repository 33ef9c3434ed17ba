"""Manifests of version 2: what they say, where a mistake is, and what the manifest commands make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kaas.client import cli
from kaas.client.manifest import on_toolchain, parse_manifest
from kaas.client.manifest_document import ManifestTarget, Unserved, parse_document
from kaas.client.manifest_lint import lint
from kaas.client.manifest_sets import difference, merge
from kaas.client.manifest_statistics import statistics
from kaas.client.manifest_writing import json_text, yaml_text
from kaas.kernel_library.composites.sparse_attention import SparseAttentionSpec
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.proto.errors import InvalidManifest

EXAMPLES = Path(__file__).parents[3] / "examples"
WHOLE = """\
version: 2
comment: "step 1: prefill"
targets: [{soc_name: Ascend950DT_9581, cann: "9.2.0"}]
kernels:
  - {family: rmsnorm, hidden: 7168, weight: false, eps: 1e-5}     # weight is the kernel's here
  - spec: {family: gemm, n: 1536, k: 7168}
    weight: 61
    wanted_by: ["layers 0-60: attention.q_a_proj", "1e5"]
    comment: hot
  - spec:
      family: sparse_attention
    weight: 2.5
    wanted_by: one layer
    targets: [Ascend950PR_9579, {soc_name: ""}]
unserved:
  - {wanted_by: embedding, needs: a lookup, reason: no family has it}
"""
GEMM = "{family: gemm, n: 64, k: 64}"


def kaas(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin)


def test_version_2_says_weights_targets_and_who_wants_a_kernel() -> None:
    document = parse_document(WHOLE)
    norm, gemm, sparse = document.entries
    assert norm.spec == RmsNormSpec(hidden=7168, weight=False, eps=1e-5)
    assert (norm.weight, norm.line) == (1.0, 5)
    assert gemm.spec == GemmSpec(n=1536, k=7168)
    assert gemm.weight == 61
    assert gemm.wanted_by == ("layers 0-60: attention.q_a_proj", "1e5")
    assert gemm.comment == "hot"
    assert document.targets_of(gemm) == (ManifestTarget("Ascend950DT_9581", "9.2.0"),)
    assert sparse.spec == SparseAttentionSpec()
    assert document.targets_of(sparse) == (ManifestTarget("Ascend950PR_9579"), ManifestTarget())
    assert document.unserved == (Unserved("embedding", "a lookup", "no family has it"),)
    assert document.comment == "step 1: prefill"


def test_a_kernel_is_wanted_once_for_each_target_and_stage() -> None:
    entries = parse_manifest(WHOLE)
    stages = [stage.spec for stage in SparseAttentionSpec().stages()]
    assert [entry.spec for entry in entries[2:]] == [*stages, *stages]
    assert [entry.soc_name for entry in entries] == ["Ascend950DT_9581"] * 2 + ["Ascend950PR_9579"] * 3 + [
        ""
    ] * 3
    assert [entry.weight for entry in entries] == [1.0, 61.0] + [2.5] * 6
    assert [entry.spec for entry in on_toolchain(entries, "9.3.0")] == [*stages, *stages]
    assert on_toolchain(entries, "9.2.0") == entries
    with pytest.raises(InvalidManifest, match=r"for CANN 9\.2\.0; this node has 9\.3\.0"):
        on_toolchain(entries[:2], "9.3.0")


@pytest.mark.parametrize("write", [yaml_text, json_text])
def test_what_is_written_reads_back_as_the_same(write: object) -> None:
    for text in (WHOLE, *(path.read_text() for path in sorted(EXAMPLES.glob("*.yaml")))):
        document = parse_document(text)
        read = parse_document(write(document))  # type: ignore[operator]
        assert read._replace(entries=(), version=0) == document._replace(entries=(), version=0)
        assert [entry._replace(line=0) for entry in read.entries] == [
            entry._replace(line=0) for entry in document.entries
        ]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"version: 3\nkernels: [{GEMM}]", 1, "this kaas reads 1 and 2"),
        (f"kernels: [{GEMM}]\nversion: true", 2, "this kaas reads 1 and 2"),
        (f"version: 2\nkernels: [{GEMM}]\nweights: 3", 3, "unknown field 'weights'"),
        (f"kernels: [{GEMM}]\ntargets: []", 2, "unknown field 'targets'"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    weight: 0", 4, "weight is 0"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    weight: true", 4, "weight is True"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    weight: .inf", 4, "weight is inf"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    wanted_by: [3]", 4, "wanted_by is [3]"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    comment: 3", 4, "comment is 3"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    for: me", 4, "unknown field 'for' beside spec"),
        (f"- spec: {GEMM}\n  weight: 3", 2, "unknown field 'weight' beside spec"),
        ("version: 2\nkernels:\n  - spec:\n      family: gemm\n      n: 64\n      k: -1", 6, "k is -1"),
        ("- family: gemm\n  n: 64\n\n  kk: 1\n", 4, "no field 'kk'"),
        ("- family: gemm\n  n: 64\n  k: 64\n  n: 65\n", 4, "'n' is there twice"),
        (f"kernels: [{GEMM}]\nkernels: [{GEMM}]", 2, "'kernels' is there twice"),
        (f"version: 2\ntargets: Ascend950DT_9581\nkernels: [{GEMM}]", 2, "targets is no list"),
        (f"version: 2\ntargets: [{{cann: 9.2}}]\nkernels: [{GEMM}]", 2, "cann is '9.2'"),
        (f"version: 2\ntargets: [{{}}]\nkernels: [{GEMM}]", 2, "a target is {}"),
        (f"version: 2\ntargets: [Ascend910B1]\nkernels: [{GEMM}]", 2, "Ascend910B1"),
        (f"version: 2\nkernels:\n  - spec: {GEMM}\n    targets: [Ascend950DT_0000]", 4, "Ascend950DT_0000"),
        (f"version: 2\nkernels: [{GEMM}]\nunserved: [{{needs: x}}]", 3, "unserved is no such list"),
    ],
)
def test_a_fault_is_said_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse_document(text)
    assert said in caught.value.message
    assert f"line {line}" in caught.value.message
    assert caught.value.details["line"] == line


def test_merging_joins_weights_and_who_wants_a_kernel() -> None:
    one = parse_document(f"version: 2\nkernels: [{{spec: {GEMM}, weight: 3, wanted_by: a}}]")
    two = parse_document(f"version: 2\nkernels: [{{spec: {GEMM}, weight: 5, wanted_by: [b, a]}}, {GEMM}]")
    (joined,) = merge([one, two]).entries
    assert (joined.weight, joined.wanted_by) == (9.0, ("a", "b"))
    assert merge([one, two], "max").entries[0].weight == 5.0
    assert merge([merge([one, two])]) == merge([one, two])


def test_merging_keeps_kernels_of_other_targets_apart() -> None:
    one = parse_document(f"soc_name: Ascend950DT_9581\nkernels: [{GEMM}]")
    two = parse_document(f"soc_name: Ascend950PR_9579\nkernels: [{GEMM}]")
    merged = merge([one, two])
    assert merged.targets == (ManifestTarget("Ascend950DT_9581"), ManifestTarget("Ascend950PR_9579"))
    assert len(merged.entries) == 1
    mixed = merge([one, parse_document(f"[{GEMM}]")])
    assert parse_document(yaml_text(mixed)).entries[0].targets == ()
    assert set(mixed.targets) == {ManifestTarget("Ascend950DT_9581"), ManifestTarget()}


def test_the_difference_names_what_came_went_and_weighs_otherwise() -> None:
    old = parse_document("- {family: gemm, n: 64, k: 64}\n- {family: gemm, n: 64, k: 128}")
    new = parse_document(
        f"version: 2\nkernels: [{{spec: {GEMM}, weight: 2}}, {{family: gemm, n: 64, k: 256}}]"
    )
    found = difference(old, new)
    assert [spec for spec, _ in found.added] == [GemmSpec(n=64, k=256)]
    assert [spec for spec, _ in found.removed] == [GemmSpec(n=64, k=128)]
    assert [(before, after) for *_, before, after in found.reweighted] == [(1.0, 2.0)]
    assert difference(new, new).is_empty


def test_statistics_count_kernels_once_and_composites_by_stage() -> None:
    facts = statistics(parse_document(WHOLE))
    assert (facts["entries"], facts["composites"], facts["kernels"]) == (3, 1, 8)
    assert facts["families"]["mqa_logits"] == {"kernels": 2, "weight": 5.0}
    assert facts["targets"] == {"Ascend950DT_9581 CANN 9.2.0": 2, "Ascend950PR_9579": 3, "this node": 3}
    assert facts["weight"] == 1 + 61 + 2 * 3 * 2.5


def test_lint_finds_every_faulty_entry_and_what_is_there_twice() -> None:
    text = (
        "version: 2\nkernels:\n"
        f"  - {GEMM}\n"
        "  - {family: gemm, n: 64}\n"
        "  - {family: sparse_attention}\n"
        f"  - {GEMM}\n"
        "  - {family: topk_select, topk: 2048, sorted_index: true, end: true, output_idx_offset: true,\n"
        "     return_value: false}\n"
        "  - {family: gemm, n: 64, k: 0}\n"
    )
    found = [(finding.line, finding.severity, finding.message.split(" (")[0]) for finding in lint(text, "m")]
    assert found == [
        (4, "error", "m: entry 2"),
        (6, "warning", "gemm is there twice: first in line 3"),
        (7, "warning", "topk_select is there twice: first in line 5 as a stage of sparse_attention"),
        (9, "error", "m: entry 6"),
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_have_no_errors(path: Path) -> None:
    assert not [finding for finding in lint(path.read_text(), path.name) if finding.severity == "error"]


def test_the_commands_and_how_they_end(tmp_path: Path) -> None:
    old, new, bad = tmp_path / "old.yaml", tmp_path / "new.json", tmp_path / "bad.yaml"
    old.write_text(f"- {GEMM}\n")
    bad.write_text(f"- {GEMM}\n- {GEMM}\n- {{family: gemm}}\n")
    whole = tmp_path / "whole.yaml"
    whole.write_text(WHOLE)
    merged = kaas("manifest", "merge", str(old), str(whole), "-o", str(new))
    assert (merged.exit_code, merged.stdout) == (0, "")
    assert json.loads(new.read_text())["version"] == 2
    assert kaas("manifest", "diff", str(old), str(old)).exit_code == 0
    differing = kaas("manifest", "diff", str(old), str(whole))
    assert differing.exit_code == 1
    assert "- gemm n=64 k=64 [this node]" in differing.stdout.splitlines()
    assert "+ gemm n=1536 k=7168 [Ascend950DT_9581 CANN 9.2.0]" in differing.stdout.splitlines()
    facts = json.loads(kaas("manifest", "diff", str(old), str(whole), "--json").stdout)
    assert facts["removed"] == [{"spec": {"family": "gemm", "n": 64, "k": 64}, "soc_name": "", "cann": ""}]
    assert "kernels" in kaas("manifest", "stats", str(new)).stdout
    assert json.loads(kaas("manifest", "stats", str(old), "--json").stdout)["kernels"] == 1
    linted = kaas("manifest", "lint", str(bad))
    assert linted.exit_code == 1
    assert [line.split(": ")[:2] for line in linted.stdout.splitlines()] == [
        [f"{bad}:2", "warning"],
        [f"{bad}:3", "error"],
    ]
    assert kaas("manifest", "lint", str(old)).exit_code == 0
    refused = kaas("manifest", "merge", str(bad))
    assert refused.exit_code == 2
    assert "line 3" in refused.stderr
    assert kaas("manifest", "merge", str(old), "--weights", "mean").exit_code == 2
    assert kaas("manifest", "stats", str(tmp_path / "none")).exit_code == 2
