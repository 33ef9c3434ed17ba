"""mla_prefill on the CPU twin against softmax attention in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.core_counts import check_on_every_part
from support.kernel_checks import (
    EXACT,
    CalcDiff,
    Close,
    Comparison,
    check_kernel,
    compare_output,
    reference_of,
)
from support.mla_inputs import prefill_inputs

from kaas.kernel_library.attention.attention_tiles import AttentionTile
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec

OUT, LSE = Close(2.01 / 128, 1e-3), Close(8.01 / 65536, 1e-6)
DIRECTION = CalcDiff(5e-6)
EXACT_SUMS = Close(absolute=1e-12)
"""The reference divides by a power of two in several steps."""

# Tiles of 16 queries and blocks of 16 keys: the longer sequences go round every ring.
SMALL = AttentionTile(rows=16, keys=16)
CAUSAL = MlaPrefillSpec(heads=2, causal=True, tile=SMALL)
FULL = MlaPrefillSpec(heads=4, group=2, tile=AttentionTile(rows=32, keys=16))
# (queries, keys): equal, more keys, no queries, no keys, one of each, fewer keys, and long ones.
LENGTHS = ((20, 20), (1, 100), (0, 5), (7, 0), (1, 1), (33, 17), (40, 150))


def agrees(
    spec: MlaPrefillSpec, given: dict[str, Any], cores: int = 4, out: Comparison = OUT, lse: Comparison = LSE
) -> dict[str, torch.Tensor]:
    """Check outputs within tolerance and, for all together, in direction; returns them."""
    outputs = check_kernel(spec, cores, given, {"out": out, "lse": lse})
    if isinstance(out, Close) and outputs["out"].isfinite().all():
        written = given["cu_seqlens_q"][-1]
        expected = reference_of(spec, given)["out"][:written]
        compare_output("out", outputs["out"][:written], expected, DIRECTION)
    return outputs


@pytest.mark.parametrize("spec", [CAUSAL, FULL], ids=["causal", "full"])
def test_sequences_of_every_length_agree(spec: MlaPrefillSpec) -> None:
    agrees(spec, prefill_inputs(spec, LENGTHS))


def test_the_typical_kernel_agrees() -> None:
    spec = MlaPrefillSpec(heads=2, causal=True)
    agrees(spec, prefill_inputs(spec, ((140, 300), (3, 3))), cores=28)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "lengths"),
    [
        pytest.param(MlaPrefillSpec(heads=3, group=3, d_qk=128), ((70, 200),), id="128-one-key-head"),
        pytest.param(
            MlaPrefillSpec(heads=16, causal=True, tokens=33), ((10, 40), (20, 20)), id="16-heads-static"
        ),
    ],
)
def test_chosen_tiles_agree(spec: MlaPrefillSpec, lengths: tuple[tuple[int, int], ...]) -> None:
    agrees(spec, prefill_inputs(spec, lengths))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 48, 64, 128])
@pytest.mark.parametrize("keys", [16, 48, 80, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_tiles_of_every_size_agree(rows: int, keys: int, causal: bool) -> None:
    spec = MlaPrefillSpec(heads=2, causal=causal, tile=AttentionTile(rows=rows, keys=keys))
    agrees(spec, prefill_inputs(spec, ((rows + 5, 4 * keys + 3), (1, 5 * keys), (3, 0))))


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 5, 64, 128])
def test_any_number_of_heads_agrees(heads: int) -> None:
    spec = MlaPrefillSpec(heads=heads, causal=True, tile=SMALL)
    agrees(spec, prefill_inputs(spec, ((17, 40), (0, 0), (2, 2))))


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_any_number_of_heads_may_share_keys(group: int) -> None:
    spec = MlaPrefillSpec(heads=8, group=group, d_qk=128, causal=True, tile=SMALL)
    agrees(spec, prefill_inputs(spec, ((17, 40), (20, 33))))


@pytest.mark.parametrize("length", [1, 64])
def test_equal_weights_and_single_keys_are_exact(length: int) -> None:
    given = prefill_inputs(FULL, ((20, length), (40, 1)), integers=True)
    given["softmax_scale"] = 0.0 if length > 1 else 0.125
    agrees(FULL, given, out=EXACT_SUMS, lse=Close(absolute=1e-6) if length > 1 else EXACT)


def test_queries_without_keys_get_zeros_and_an_infinite_lse() -> None:
    # The first 26 of 33 queries come before the first of 7 keys.
    outputs = agrees(CAUSAL, prefill_inputs(CAUSAL, ((33, 7), (4, 0))))
    assert (outputs["out"][:26] == 0).all()
    assert (outputs["lse"][:, :26] == torch.inf).all()
    assert outputs["lse"][:, 26:33].isfinite().all()
    assert (outputs["lse"][:, 33:37] == torch.inf).all()


def test_tokens_of_no_sequence_keep_what_they_hold() -> None:
    outputs = agrees(CAUSAL, prefill_inputs(CAUSAL, ((5, 5),)))
    assert (outputs["out"][5:] == 77).all()
    assert (outputs["lse"][:, 5:] == 77).all()


def test_large_scores_agree_in_direction() -> None:
    given = prefill_inputs(FULL, LENGTHS, sharpness=200.0)
    agrees(FULL, given, out=Close(2.01 / 64, 0.2), lse=Close(4.01 / 65536, 1e-5))


def test_starts_beyond_the_tokens_count_as_their_end() -> None:
    given = prefill_inputs(FULL, ((5, 40), (20, 30)))
    whole = {name: tensor.clone() for name, tensor in given.items() if isinstance(tensor, torch.Tensor)}
    whole |= {"softmax_scale": given["softmax_scale"]}
    # There are three tokens more of either kind, which are the last sequence's then.
    for name, count in (("q", 28), ("k", 73), ("v", 73)):
        whole[name] = whole[name].nan_to_num(0.25)
        assert len(whole[name]) == count
    whole["cu_seqlens_q"][-1], whole["cu_seqlens_k"][-1] = 28, 73
    expected = reference_of(FULL, whole)
    whole["cu_seqlens_q"][-1], whole["cu_seqlens_k"][-1] = 2**31 - 1, 2**31 - 1
    check_kernel(FULL, 4, whole, {"out": OUT, "lse": LSE}, expected=expected)


def test_a_query_with_nan_is_nan_and_no_other_is() -> None:
    given = prefill_inputs(CAUSAL, ((40, 60),))
    given["q"][20, 1, 100] = torch.nan
    outputs = agrees(CAUSAL, given)
    is_nan = outputs["out"].isnan().any(-1)
    assert is_nan[20, 1]
    assert is_nan.sum() == 1
    assert outputs["lse"][1, 20].isnan()


def test_keys_behind_a_sequence_change_nothing() -> None:
    # The next sequence's keys and values are NaN; it has no queries.
    given = prefill_inputs(FULL, ((20, 19), (0, 30)))
    given["k"][19:], given["v"][19:] = torch.nan, torch.nan
    agrees(FULL, given)


@pytest.mark.slow
def test_results_do_not_depend_on_the_core_count() -> None:
    check_on_every_part(CAUSAL, prefill_inputs(CAUSAL, LENGTHS), {"out": OUT, "lse": LSE})


@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 28, 32, 36])
def test_typical_kernels_agree_on_every_part_of_the_line(cores: int) -> None:
    spec = MlaPrefillSpec(heads=16, causal=True)
    agrees(spec, prefill_inputs(spec, ((140, 300), (3, 3), (1, 77))), cores=cores)
