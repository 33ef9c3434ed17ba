"""mla_sparse_decode on the CPU twin: float64 attention over dequantised records, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import CalcDiff, Close, check_kernel, compare_output, reference_of
from support.sparse_inputs import decode_inputs

from kaas.kernel_library.attention.sparse_tiles import SparseTile
from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec

COMPARE = {
    "out": Close(relative=2.01 / 128, absolute=1e-3),
    "lse": Close(relative=8.01 / 65536, absolute=1e-6),
}
CORES = 8
NARROW = SparseTile(keys=64)
LENGTHS = {"attn_sink": True, "topk_length": True, "extra_topk_length": True}

PLAIN = MlaSparseDecodeSpec(topk=128, tile=NARROW)
FP4 = MlaSparseDecodeSpec(topk=192, extra="fp4", extra_topk=320, **LENGTHS)
FP8 = MlaSparseDecodeSpec(topk=320, extra="fp8", extra_topk=128, s_q=2, **LENGTHS)
SHAPES = [
    FP4,
    FP8,
    PLAIN,
    MlaSparseDecodeSpec(topk=512, heads=128, attn_sink=True),
    MlaSparseDecodeSpec(topk=448, tile=NARROW, s_q=3, topk_length=True),
    MlaSparseDecodeSpec(topk=64, extra="fp4", extra_topk=512, heads=128, s_q=2),
    MlaSparseDecodeSpec(topk=192, extra="fp4", extra_topk=192, tile=NARROW, extra_topk_length=True),
    MlaSparseDecodeSpec(topk=192, extra="fp8", extra_topk=64, requests=4),
]


def name(spec: MlaSparseDecodeSpec) -> str:
    words = [f"{spec.heads}heads", f"top{spec.topk}", spec.extra, str(spec.extra_topk), f"s_q{spec.s_q}"]
    return "-".join([*words, *(["narrow"] if spec.tile else [])])


def check(spec: MlaSparseDecodeSpec, inputs: dict[str, Any], cores: int = CORES) -> dict[str, torch.Tensor]:
    outputs = check_kernel(spec, cores, inputs, COMPARE)
    compare_output("out", outputs["out"], reference_of(spec, inputs)["out"], CalcDiff(5e-6))
    return outputs


@pytest.mark.parametrize(
    "spec", [SHAPES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SHAPES[1:])], ids=name
)
def test_outputs_are_those_of_attention_over_the_listed_records(spec: MlaSparseDecodeSpec) -> None:
    check(spec, decode_inputs(spec, 4, seed=spec.topk))


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 2, 3, 37, 64, 128, 1000])
def test_pages_of_any_size(page: int) -> None:
    """The same compiled kernel serves all of them."""
    inputs = decode_inputs(
        FP4, 2, blocks=-(-300 // page), page=page, extra_blocks=3, extra_page=page, seed=page
    )
    check(FP4, inputs)


@pytest.mark.parametrize(
    ("lengths", "extra_lengths"),
    [
        ([192, 0, 1, 65, 0, 128, 64, 127, 130], [320, 0, 0, 1, 64, 129, 320, 128, 63]),
        pytest.param([0, 0], [0, 0], marks=pytest.mark.slow),
        pytest.param([1, 0], [0, 1], marks=pytest.mark.slow),
        pytest.param([191, 193, 2**31 - 1, -5], [-1, 321, 319, 2**31 - 1], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_lengths_cut_both_lists_off(lengths: list[int], extra_lengths: list[int]) -> None:
    inputs = decode_inputs(FP4, len(lengths), lengths=lengths, extra_lengths=extra_lengths, seed=len(lengths))
    check(FP4, inputs)


def test_tokens_without_records_have_no_output() -> None:
    inputs = decode_inputs(PLAIN, 3, blocks=3, page=2)
    inputs["indices"][1] = -1
    outputs = check(PLAIN, inputs)
    assert (outputs["out"][1] == 0).all()
    assert (outputs["lse"][1] == torch.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize(("where", "at"), [("indices", 0), ("indices", 191), ("extra_indices", 319)])
def test_one_record_is_the_output(where: str, at: int) -> None:
    inputs = decode_inputs(FP4, 2, lengths=[192, 192], extra_lengths=[320, 320])
    inputs["indices"][:] = -1
    inputs["extra_indices"][:] = -1
    inputs[where][:, 0, at] = torch.tensor([3, 39], dtype=torch.int32)
    inputs["attn_sink"][:] = -torch.inf
    outputs = check(FP4, inputs)
    assert outputs["out"].equal(reference_of(FP4, inputs)["out"].bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("spec", [FP4, FP8], ids=name)
def test_sinks_of_infinity(spec: MlaSparseDecodeSpec) -> None:
    inputs = decode_inputs(spec, 2, lengths=[192, 0], extra_lengths=[0, 1])
    inputs["attn_sink"][:20] = torch.inf
    inputs["attn_sink"][20:40] = -torch.inf
    outputs = check(spec, inputs)
    assert (outputs["out"][:, :, :20] == 0).all()
    assert outputs["lse"].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PLAIN, FP4, FP8], ids=name)
def test_duplicate_indices_count_twice(spec: MlaSparseDecodeSpec) -> None:
    inputs = decode_inputs(spec, 2, blocks=4, page=3, extra_blocks=1, extra_page=11, holes=0.0, amplitude=0.1)
    check(spec, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("code", [1, 0x7E, 0x81, 0xFE], ids=["least", "largest", "least-", "largest-"])
def test_fp4_records_with_extreme_scales(code: int) -> None:
    """Scales of 2^-9 and 448, of either sign: a value is the scale times up to 6."""
    inputs = decode_inputs(FP4, 2, lengths=[0, 1], extra_lengths=[300, 320], seed=code)
    inputs["extra_k_cache"][..., 256:] = code
    inputs["q"] = (inputs["q"].float() / 1024).bfloat16()
    # What is large is only as exact as its rounded weights.
    large = {"out": CalcDiff(5e-6), "lse": COMPARE["lse"]}
    check_kernel(FP4, CORES, inputs, COMPARE if code & 0x7F == 1 else large)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 140])
def test_fp8_records_with_extreme_scales(code: int) -> None:
    inputs = decode_inputs(PLAIN, 2, seed=code)
    inputs["k_cache"][..., 512:] = code
    inputs["q"] = (inputs["q"].float() / 1024).bfloat16()
    check_kernel(
        PLAIN, CORES, inputs, {"out": CalcDiff(5e-6) if code > 1 else COMPARE["out"], "lse": COMPARE["lse"]}
    )


@pytest.mark.slow
def test_unlisted_records_may_hold_anything() -> None:
    inputs = decode_inputs(FP4, 3, blocks=8, page=16, extra_blocks=4, extra_page=16)
    for which, records, width in (("k_cache", 64, 528), ("extra_k_cache", 32, 288)):
        inputs[which].view(-1, width)[records:] = 0xFF
    inputs["indices"] = inputs["indices"].clamp(max=63)
    inputs["extra_indices"] = inputs["extra_indices"].clamp(max=31)
    outputs = check(FP4, inputs)
    assert outputs["out"].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 8, 25])
def test_any_number_of_requests(requests: int) -> None:
    check(FP8, decode_inputs(FP8, requests, seed=requests))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [FP4, SHAPES[5]], ids=name)
def test_the_same_on_every_part(spec: MlaSparseDecodeSpec) -> None:
    inputs = decode_inputs(spec, 19, seed=2)
    check_on_every_part(spec, inputs, COMPARE)
    check(spec, inputs, 8)
    check(spec, inputs, 32)
