"""Sparse attention from one spec: three kernels of a real daemon, against dense attention in float64."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.daemon import DaemonProcess
from support.indexer_inputs import drawn, drawn_scales, drawn_weights

from kaas import (
    GemmSpec,
    InvalidArgument,
    InvalidSpec,
    KernelChain,
    SparseAttentionSpec,
    StrictMiss,
    get_kernels,
)
from kaas.client import api
from kaas.kernel_library.references.indexer_rows import rows_of, scores

SPEC = SparseAttentionSpec(index_heads=8, index_head_dim=64)
WIDE = SparseAttentionSpec(index_heads=64, index_dtype="e2m1", heads=128, d_qk=576, topk=64, attn_sink=True)
MAX_LOGITS = (2.01 / 65536, 1e-6)
OUT = (3.01 / 128, 8e-4)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("sparse")) as process:
        process.wait_ready()
        yield process


@pytest.fixture(autouse=True)
def node(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KAAS_SOCKET", daemon.socket)
    monkeypatch.setenv("KAAS_STORE", str(daemon.store))
    api.forget()
    yield
    api.forget()


def arguments(spec: SparseAttentionSpec, first: list[int], end: list[int]) -> dict[str, Any]:
    """Inputs of random values and results of sevens, by the chain's names."""
    generator = torch.Generator().manual_seed(5)
    tokens, keys = len(first), max(end)
    low, dim, heads = spec.index_dtype, spec.index_head_dim, spec.index_heads
    given: dict[str, Any] = {
        "index_q": drawn((tokens, heads, dim), low, generator, integers=False),
        "index_q_scales": drawn_scales(tokens * heads, dim, generator, (124, 128)),
        "index_k": drawn((keys, dim), low, generator, integers=False),
        "index_k_scales": drawn_scales(keys, dim, generator, (124, 128)),
        "index_weights": drawn_weights(tokens, heads, generator, integers=False),
        "first_key": torch.tensor(first, dtype=torch.int32),
        "end_key": torch.tensor(end, dtype=torch.int32),
        "scores": torch.full((tokens, keys), 7.0, dtype=torch.bfloat16),
        "window": torch.tensor(end, dtype=torch.int32) - torch.tensor(first, dtype=torch.int32),
        "indices": torch.full((tokens, spec.topk), 7, dtype=torch.int32),
        "q": (torch.randn((tokens, spec.heads, spec.d_qk), generator=generator) * 4).bfloat16(),
        # The tolerance is absolute where values cancel, so they are of the size that caches have.
        "kv": (torch.randn((keys, 1, spec.d_qk), generator=generator) / 4).bfloat16(),
        "softmax_scale": spec.d_qk**-0.5,
        "out": torch.full((tokens, spec.heads, 512), 7.0, dtype=torch.bfloat16),
        "max_logits": torch.full((tokens, spec.heads), 7.0),
        "lse": torch.full((tokens, spec.heads), 7.0),
    }
    if spec.attn_sink:
        given["attn_sink"] = torch.randn(spec.heads, generator=generator)
    return given


def selected(spec: SparseAttentionSpec, given: dict[str, Any], token: int) -> torch.Tensor:
    """The keys that a token selected, after a check that they are a top-k of the scores it computed."""
    first, end = int(given["first_key"][token]), int(given["end_key"][token])
    wide = rows_of(given["index_q"], given["index_q_scales"], spec.index_dtype)
    keys = rows_of(given["index_k"], given["index_k_scales"], spec.index_dtype)[first:end]
    queries = wide.view(-1, spec.index_heads, spec.index_head_dim)[token]
    exact = scores(queries, keys, given["index_weights"][token])
    computed = given["scores"][token, : end - first].double()
    assert (computed - exact).abs().max() <= 2.0**-8 * exact.abs().max() + 1e-5 if end > first else True

    chosen = given["indices"][token]
    count = min(spec.topk, end - first)
    assert (chosen[count:] == -1).all()
    chosen = chosen[:count].long()
    assert (chosen.diff() > 0).all()
    assert ((chosen >= first) & (chosen < end)).all()
    left = torch.ones(end - first, dtype=torch.bool)
    left[chosen - first] = False
    if count and left.any():
        assert computed[chosen - first].min() >= computed[left].max()
    return chosen


def check(spec: SparseAttentionSpec, given: dict[str, Any]) -> None:
    """Every token's results against dense attention under a mask of what it selected."""
    for token in range(len(given["q"])):
        chosen = selected(spec, given, token)
        keys = given["kv"][:, 0].double()
        mask = torch.full((len(keys),), -torch.inf, dtype=torch.float64)
        mask[chosen] = 0.0
        logits = given["q"][token].double() @ keys.T * given["softmax_scale"] + mask
        lse = logits.logsumexp(dim=1)
        if not len(chosen):
            assert (given["out"][token] == 0).all()
            assert (given["lse"][token] == torch.inf).all()
            assert (given["max_logits"][token] == -torch.inf).all()
            continue
        total = torch.logaddexp(lse, given["attn_sink"].double()) if spec.attn_sink else lse
        out = (logits - total[:, None]).exp() @ keys[:, :512]
        torch.testing.assert_close(given["out"][token].double(), out, rtol=OUT[0], atol=OUT[1])
        torch.testing.assert_close(given["lse"][token].double(), lse, rtol=MAX_LOGITS[0], atol=MAX_LOGITS[1])
        torch.testing.assert_close(
            given["max_logits"][token].double(), logits.amax(1), rtol=MAX_LOGITS[0], atol=MAX_LOGITS[1]
        )


def test_queries_attend_to_the_2048_keys_that_the_indexer_scores_highest() -> None:
    chain = get_kernels(SPEC)
    assert list(chain.handles) == ["scores", "selection", "attention"]
    given = arguments(SPEC, first=[0, 0, 17, 100, 300, 5], end=[3300, 2049, 2065, 2100, 300, 6])
    written = chain(**given)
    assert set(written) == {"scores", "indices", "out", "max_logits", "lse"}
    assert written["out"] is given["out"]
    check(SPEC, given)


def test_fp4_scores_128_heads_and_a_sink() -> None:
    chain = get_kernels(WIDE)
    given = arguments(WIDE, first=[0, 0, 9, 40, 0], end=[333, 64, 74, 40, 1])
    given["attn_sink"][:4] = torch.tensor([-torch.inf, torch.inf, 0.0, 30.0])
    chain(**given)
    check(WIDE, given)


def test_a_score_that_is_no_number_selects_no_key() -> None:
    chain = get_kernels(WIDE)
    given = arguments(WIDE, first=[0, 0], end=[200, 200])
    given["index_weights"][1] = torch.nan
    chain(**given)
    assert (given["out"][1] == 0).all()
    assert (given["lse"][1] == torch.inf).all()
    assert not (given["out"][0] == 0).all()


def test_a_wrong_argument_is_named_with_its_stage() -> None:
    chain = get_kernels(WIDE)
    given = arguments(WIDE, first=[0], end=[100])
    with pytest.raises(InvalidArgument, match="'scores' is missing") as caught:
        chain(**{name: value for name, value in given.items() if name != "scores"})
    assert caught.value.details["argument"] == "scores"
    with pytest.raises(InvalidArgument, match="'weights' is unknown"):
        chain(**given, weights=given["index_weights"])
    with pytest.raises(InvalidArgument, match="attention: argument 'q'") as caught:
        chain(**{**given, "q": given["q"].float()})
    assert caught.value.details["stage"] == "attention"


def test_a_composite_is_refused_like_a_spec() -> None:
    with pytest.raises(InvalidSpec, match="a multiple of 64"):
        SparseAttentionSpec(topk=100)
    with pytest.raises(InvalidSpec, match="GemmSpec"):
        get_kernels(GemmSpec(n=64, k=64))  # type: ignore[arg-type]
    with pytest.raises(StrictMiss):
        get_kernels(SparseAttentionSpec(index_heads=12), strict=True)


def kaas(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kaas", *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_the_command_line_gets_prewarms_and_describes_its_kernels(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        "- {family: sparse_attention, index_heads: 8, index_head_dim: 64}\n- {family: rmsnorm, hidden: 64}\n"
    )
    warmed = kaas("prewarm", str(manifest))
    assert warmed.returncode == 0, warmed.stderr
    assert "4" in warmed.stdout + warmed.stderr
    got = kaas("get", "sparse_attention", "index_heads=8", "index_head_dim=64", "--strict", "--json")
    assert got.returncode == 0, got.stderr
    assert [facts["family"] for facts in json.loads(got.stdout)] == [
        "mqa_logits",
        "topk_select",
        "mla_sparse_prefill",
    ]
    assert isinstance(get_kernels(SPEC, strict=True), KernelChain)
    page = kaas("families", "sparse_attention")
    assert "mla_sparse_prefill" in page.stdout
    refused = kaas("explain", "sparse_attention")
    assert refused.returncode == 2
    assert "several kernels: mqa_logits, topk_select, mla_sparse_prefill" in refused.stderr


def test_a_job_over_rest_counts_each_kernel(daemon: DaemonProcess) -> None:
    import httpx

    entries = [
        {"spec": {"family": "sparse_attention", "index_heads": 8, "index_head_dim": 64}},
        {"spec": {"family": "sparse_attention", "topk": 100}},
    ]
    job = httpx.post(f"{daemon.rest_url}/v1/prewarm", json={"entries": entries}).raise_for_status().json()
    assert job["total"] == 4
