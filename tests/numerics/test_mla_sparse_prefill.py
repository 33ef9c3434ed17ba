"""mla_sparse_prefill on the CPU twin: against float64 attention over the listed keys, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import CalcDiff, Close, check_kernel, compare_output, reference_of
from support.sparse_inputs import prefill_inputs

from kaas.kernel_library.attention.sparse_tiles import SparseTile
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec

SUMS = Close(relative=2.01 / 65536, absolute=1e-6)
COMPARE = {"out": Close(relative=3.01 / 128, absolute=8e-4), "max_logits": SUMS, "lse": SUMS}
CORES = 8
NARROW = SparseTile(keys=64)

PLAIN = MlaSparsePrefillSpec(topk=128)
LONG = MlaSparsePrefillSpec(topk=448, attn_sink=True, topk_length=True)
SHAPES = [
    LONG,
    PLAIN,
    MlaSparsePrefillSpec(topk=640, tile=NARROW, topk_length=True),
    MlaSparsePrefillSpec(topk=320, heads=128, attn_sink=True),
    MlaSparsePrefillSpec(topk=384, d_qk=576, topk_length=True),
    MlaSparsePrefillSpec(topk=192, heads=128, d_qk=576, attn_sink=True, tile=NARROW),
    MlaSparsePrefillSpec(topk=64, tokens=5),
]


def name(spec: MlaSparsePrefillSpec) -> str:
    words = [f"{spec.heads}heads", str(spec.d_qk), f"top{spec.topk}"]
    flags = [word for word in ("attn_sink", "topk_length") if getattr(spec, word)]
    return "-".join([*words, *flags, *(["narrow"] if spec.tile else [])])


def check(
    spec: MlaSparsePrefillSpec, inputs: dict[str, object], cores: int = CORES
) -> dict[str, torch.Tensor]:
    outputs = check_kernel(spec, cores, inputs, COMPARE)
    compare_output("out", outputs["out"], reference_of(spec, inputs)["out"], CalcDiff(1e-5))
    return outputs


@pytest.mark.parametrize(
    "spec", [SHAPES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SHAPES[1:])], ids=name
)
def test_outputs_are_those_of_attention_over_the_listed_keys(spec: MlaSparsePrefillSpec) -> None:
    tokens = 5 if spec.tokens == "dynamic" else int(spec.tokens)
    check(spec, prefill_inputs(spec, tokens, 400, seed=spec.topk))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 8, 9, 27])
def test_any_number_of_tokens(tokens: int) -> None:
    check(PLAIN, prefill_inputs(PLAIN, tokens, 150, seed=tokens))


@pytest.mark.parametrize(
    "lengths",
    [
        [448, 0, 1, 63, 64, 65, 127, 128, 129],
        pytest.param([0, 0, 0, 0], marks=pytest.mark.slow),
        pytest.param([1, 1, 1], marks=pytest.mark.slow),
        pytest.param([447, 448, 449, 2**31 - 1, -1, -(2**31)], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_lengths_cut_lists_off(lengths: list[int]) -> None:
    check(LONG, prefill_inputs(LONG, len(lengths), 300, lengths=lengths, seed=len(lengths)))


def test_tokens_without_keys_have_no_output() -> None:
    inputs = prefill_inputs(PLAIN, 3, 90)
    inputs["indices"][1] = -1
    inputs["kv"][7] = torch.nan
    inputs["indices"][inputs["indices"] == 7] = 8
    outputs = check(PLAIN, inputs)
    assert (outputs["out"][1] == 0).all()
    assert (outputs["lse"][1] == torch.inf).all()
    assert (outputs["max_logits"][1] == -torch.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 63, 64, 127, 128, 447])
def test_one_key_is_the_output(at: int) -> None:
    inputs = prefill_inputs(LONG, 2, 40, lengths=[448, 448])
    inputs["indices"][:] = -1
    inputs["indices"][:, 0, at] = torch.tensor([3, 39], dtype=torch.int32)
    inputs["attn_sink"][:] = -torch.inf
    outputs = check(LONG, inputs)
    assert outputs["out"][1].equal(inputs["kv"][39].expand(64, 512))


def test_sinks_of_infinity() -> None:
    inputs = prefill_inputs(LONG, 3, 200, lengths=[448, 70, 0])
    inputs["attn_sink"][:20] = torch.inf
    inputs["attn_sink"][20:40] = -torch.inf
    inputs["attn_sink"][40:44] = torch.tensor([1e38, -1e38, 200.0, -200.0])
    outputs = check(LONG, inputs)
    assert (outputs["out"][:, :20] == 0).all()
    assert outputs["lse"][:2].isfinite().all()


@pytest.mark.slow
def test_a_sink_of_minus_infinity_changes_nothing() -> None:
    inputs = prefill_inputs(LONG, 3, 200, lengths=[448, 70, 0])
    inputs["attn_sink"][:] = -torch.inf
    with_sink = check(LONG, inputs)
    without = MlaSparsePrefillSpec(topk=448, topk_length=True)
    del inputs["attn_sink"]
    plain = check(without, inputs)
    assert all(with_sink[name].equal(plain[name]) for name in plain)


@pytest.mark.slow
def test_duplicate_indices_count_twice() -> None:
    check(PLAIN, prefill_inputs(PLAIN, 2, 12, holes=0.0, amplitude=0.2))


@pytest.mark.slow
def test_integers_that_meet_equal_weights_are_exact() -> None:
    """All scores are 0: the output is the mean of a power of two of integers."""
    inputs = prefill_inputs(PLAIN, 3, 60, integers=True, holes=0.0)
    inputs["q"][:] = 0
    outputs = check(PLAIN, inputs)
    means = inputs["kv"][inputs["indices"][:, 0].long(), 0].double().mean(1)
    assert outputs["out"].equal(means[:, None].expand(3, 64, 512).bfloat16())
    assert (outputs["max_logits"] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, -0.3, 0.0])
def test_large_negative_and_zero_scales(scale: float) -> None:
    """Scores far apart, and growing from block to block, so that outputs are rescaled."""
    inputs = prefill_inputs(LONG, 3, 500, lengths=[448, 300, 200], amplitude=0.3, seed=4)
    inputs["kv"] = (inputs["kv"].float() * torch.linspace(0.1, 2, 500)[:, None, None]).bfloat16()
    inputs["indices"] = torch.arange(448).int().expand(3, 1, 448).contiguous()
    inputs["softmax_scale"] = scale
    outputs = check_kernel(
        LONG,
        CORES,
        inputs,
        {"out": CalcDiff(1e-5), "max_logits": Close(1e-4, 1e-4), "lse": Close(1e-4, 1e-4)},
    )
    assert outputs["out"].isfinite().all()


@pytest.mark.slow
def test_unlisted_nan_keys_and_no_keys_at_all() -> None:
    inputs = prefill_inputs(PLAIN, 3, 64)
    inputs["indices"] = inputs["indices"].clamp(max=31)
    inputs["kv"][32:] = torch.nan
    check(PLAIN, inputs)
    empty = prefill_inputs(PLAIN, 2, 0)
    outputs = check(PLAIN, empty)
    assert (outputs["out"] == 0).all()


@pytest.mark.slow
def test_a_nan_key_reaches_only_tokens_that_list_it() -> None:
    inputs = prefill_inputs(PLAIN, 2, 64, holes=0.0)
    inputs["kv"][5, 0, 9] = torch.nan
    inputs["indices"][0][inputs["indices"][0] == 5] = 6
    inputs["indices"][1, 0, 77] = 5
    expected = reference_of(PLAIN, inputs)
    outputs = check_kernel(
        PLAIN,
        CORES,
        inputs,
        {"out": Close(0.05, 1e-2), "max_logits": Close(0.05, 1e-2), "lse": Close(0.05, 1e-2)},
        expected=expected,
    )
    assert outputs["out"][0].isfinite().all()


@pytest.mark.slow
def test_the_same_on_every_part() -> None:
    spec = MlaSparsePrefillSpec(topk=192, heads=128, attn_sink=True, topk_length=True)
    inputs = prefill_inputs(spec, 23, 100, seed=2)
    check_on_every_part(spec, inputs, COMPARE)
    check(spec, inputs, 8)
    check(spec, inputs, 32)
