"""mla_decode on the CPU twin against softmax attention in float64."""

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
from support.mla_inputs import decode_inputs

from kaas.kernel_library.attention.attention_tiles import AttentionTile
from kaas.kernel_library.families.mla_decode import MlaDecodeSpec, tiles_of
from kaas.kernel_library.targets import target_named

OUT, LSE = Close(2.01 / 128, 1e-3), Close(8.01 / 65536, 1e-6)
DIRECTION = CalcDiff(5e-6)
EXACT_SUMS = Close(absolute=1e-12)
"""The reference divides by a power of two in several steps."""

# Blocks of 32 keys on pages of 16: requests of 100 keys go round every ring.
SMALL = AttentionTile(rows=16, keys=32)
PLAIN = MlaDecodeSpec(heads=16, page=16, tile=SMALL)
CAUSAL = MlaDecodeSpec(heads=16, page=16, s_q=3, causal=True, tile=AttentionTile(rows=32, keys=32))
PARTS = MlaDecodeSpec(heads=16, page=16, s_q=2, causal=True, split=64, tile=SMALL)
SLOW_CAUSAL = pytest.param(CAUSAL, marks=pytest.mark.slow, id="causal")
SLOW_PARTS = pytest.param(PARTS, marks=pytest.mark.slow, id="parts")
# Empty, a single key, ends of pages, blocks and parts, one off them, and many blocks.
LENGTHS = (100, 0, 1, 16, 17, 65, 230)


def agrees(
    spec: MlaDecodeSpec, given: dict[str, Any], cores: int = 4, out: Comparison = OUT, lse: Comparison = LSE
) -> dict[str, torch.Tensor]:
    """Check outputs within tolerance and, for all together, in direction; returns them."""
    compare = {"out": out, "lse": lse}
    if spec.split:
        compare |= {"part_out": out, "part_lse": lse}
    outputs = check_kernel(spec, cores, given, compare)
    if isinstance(out, Close) and outputs["out"].isfinite().all():
        compare_output("out", outputs["out"], reference_of(spec, given)["out"], DIRECTION)
    return outputs


@pytest.mark.parametrize("spec", [PLAIN, SLOW_CAUSAL, PARTS])
def test_requests_of_every_length_agree(spec: MlaDecodeSpec) -> None:
    agrees(spec, decode_inputs(spec, LENGTHS))


def test_the_typical_kernel_agrees() -> None:
    spec = MlaDecodeSpec(heads=128)
    agrees(spec, decode_inputs(spec, (300, 1)), cores=28)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "lengths"),
    [
        pytest.param(MlaDecodeSpec(heads=16), (200, 0, 129), id="16-heads"),
        pytest.param(MlaDecodeSpec(heads=64, d_qk=512), (150, 64), id="64-heads-512"),
        pytest.param(MlaDecodeSpec(heads=48, s_q=2, causal=True), (130, 2), id="48-heads"),
        pytest.param(MlaDecodeSpec(heads=112, s_q=1), (65,), id="112-heads"),
        pytest.param(MlaDecodeSpec(heads=16, s_q=16, causal=True), (20, 130), id="16-tokens"),
    ],
)
def test_chosen_tiles_agree_for_these_heads(spec: MlaDecodeSpec, lengths: tuple[int, ...]) -> None:
    agrees(spec, decode_inputs(spec, lengths))


@pytest.mark.slow
@pytest.mark.parametrize("page", [16, 32, 48, 64, 80, 96, 112, 128, 144, 256, 1024])
def test_pages_of_every_kind_agree(page: int) -> None:
    spec = MlaDecodeSpec(heads=16, page=page)
    agrees(spec, decode_inputs(spec, (3 * page + 5 if page < 256 else page + 70, page, page - 1, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 48, 64, 96])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_rows_that_do_not_divide_into_tiles_agree(rows: int, causal: bool) -> None:
    tile = AttentionTile(rows=rows, keys=32)
    spec = MlaDecodeSpec(heads=80, page=16, s_q=2, causal=causal, tile=tile)
    agrees(spec, decode_inputs(spec, (150, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [16, 32, 64, 128])
@pytest.mark.parametrize("d_qk", [512, 576])
def test_blocks_of_every_size_agree(keys: int, d_qk: int) -> None:
    tile = AttentionTile(rows=32, keys=keys)
    spec = MlaDecodeSpec(heads=32, page=64, d_qk=d_qk, tile=tile)
    agrees(spec, decode_inputs(spec, (4 * keys + 3, 5 * keys)))


@pytest.mark.slow
@pytest.mark.parametrize("split", [16, 48, 64, 256])
def test_parts_of_every_size_agree(split: int) -> None:
    spec = MlaDecodeSpec(heads=16, page=16, split=split)
    agrees(spec, decode_inputs(spec, LENGTHS, parts=-(-230 // split) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("s_q", [1, 2])
def test_parts_of_chosen_tiles_agree(s_q: int) -> None:
    spec = MlaDecodeSpec(heads=128, s_q=s_q, causal=s_q > 1, split=128)
    agrees(spec, decode_inputs(spec, (300, 1, 128)), cores=8)


@pytest.mark.parametrize("split", [None, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("length", [1, 64, 128])
def test_equal_weights_and_single_keys_are_exact(split: int | None, length: int) -> None:
    spec = MlaDecodeSpec(heads=16, page=16, split=split, tile=SMALL)
    given = decode_inputs(spec, (length, 1), integers=True)
    given["softmax_scale"] = 0.0 if length > 1 else 0.125
    agrees(spec, given, out=EXACT_SUMS, lse=Close(absolute=1e-6) if length > 1 else EXACT)


@pytest.mark.parametrize("scale", [2.0**32, -(2.0**32)])
@pytest.mark.parametrize("split", [None, 64])
def test_the_largest_scale_gives_the_best_keys_everything(split: int | None, scale: float) -> None:
    spec = MlaDecodeSpec(heads=16, page=16, split=split, tile=SMALL)
    given = decode_inputs(spec, (150, 1), integers=True)
    given["softmax_scale"] = scale
    agrees(spec, given, lse=Close(relative=1e-6))


@pytest.mark.parametrize("spec", [PLAIN, SLOW_PARTS])
def test_no_key_means_zeros_and_an_infinite_lse(spec: MlaDecodeSpec) -> None:
    outputs = agrees(spec, decode_inputs(spec, (0, 0, 0, 0, 40)))
    assert (outputs["out"][:4] == 0).all()
    assert (outputs["lse"][:4] == torch.inf).all()


@pytest.mark.parametrize("spec", [SLOW_CAUSAL, PARTS])
def test_tokens_before_the_first_key_see_none(spec: MlaDecodeSpec) -> None:
    outputs = agrees(spec, decode_inputs(spec, (1, 2, 0)))
    assert (outputs["lse"][0, :, : spec.s_q - 1] == torch.inf).all()
    assert outputs["lse"][0, :, -1].isfinite().all()
    assert (outputs["out"][0, : spec.s_q - 1] == 0).all()


@pytest.mark.parametrize("spec", [PLAIN, SLOW_PARTS])
def test_large_scores_agree_in_direction(spec: MlaDecodeSpec) -> None:
    given = decode_inputs(spec, LENGTHS, sharpness=200.0)
    agrees(spec, given, out=CalcDiff(5e-6), lse=Close(4.01 / 65536, 1e-5))


@pytest.mark.slow
def test_scores_that_grow_and_shrink_agree() -> None:
    # The maximum moves in every block, up by far more than an exponential can bear, or never again.
    given = decode_inputs(PLAIN, (230, 230), seed=3)
    steps = torch.linspace(0.1, 60, 230)
    for request, scale in enumerate((steps, steps.flip(0))):
        pages = given["block_table"][request].long()
        records = given["kv_cache"][pages, :, 0].flatten(0, 1)
        records[:230] = records[:230] * scale[:, None]
        given["kv_cache"][pages, :, 0] = records.view(len(pages), PLAIN.page, -1)
    agrees(PLAIN, given, out=CalcDiff(5e-6), lse=Close(4.01 / 65536, 1e-5))


def test_lengths_outside_the_block_table_are_cut() -> None:
    given = decode_inputs(PLAIN, (40, 20, 48), max_pages=2)
    given["cache_seqlens"][0] = 2**31 - 1
    given["cache_seqlens"][1] = -(2**31)
    agrees(PLAIN, given)


def test_keys_behind_the_last_part_are_left_out() -> None:
    agrees(PARTS, decode_inputs(PARTS, (100, 230, 128), parts=2))


def test_a_row_with_nan_is_nan_and_no_other_row_is() -> None:
    given = decode_inputs(PARTS, (100, 40))
    given["q"][0, 1, 5, 17] = torch.nan
    outputs = agrees(PARTS, given)
    is_nan = outputs["out"].isnan().all(-1)
    assert is_nan[0, 1, 5]
    assert is_nan.sum() == outputs["out"].isnan().any(-1).sum() == 1
    assert outputs["lse"][0, 5, 1].isnan()


def test_requests_may_share_pages() -> None:
    given = decode_inputs(PLAIN, (64, 64))
    given["block_table"][1] = given["block_table"][0]
    agrees(PLAIN, given)


def test_there_may_be_no_pages_at_all() -> None:
    given = decode_inputs(PLAIN, (0, 0))
    given["kv_cache"] = given["kv_cache"][:0]
    given["block_table"] = given["block_table"][:, :0]
    agrees(PLAIN, given)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PLAIN, PARTS], ids=["plain", "parts"])
def test_results_do_not_depend_on_the_core_count(spec: MlaDecodeSpec) -> None:
    compare: dict[str, Comparison] = {"out": OUT, "lse": LSE}
    if spec.split:
        compare |= {"part_out": OUT, "part_lse": LSE}
    check_on_every_part(spec, decode_inputs(spec, (100, 0, 65, 230, 3)), compare)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 28, 32, 36])
def test_parts_of_one_request_agree_on_every_part_of_the_line(cores: int) -> None:
    spec = MlaDecodeSpec(heads=32, page=64, split=64, tile=AttentionTile(rows=16, keys=64))
    agrees(spec, decode_inputs(spec, (1500,)), cores=cores)


def test_more_heads_make_higher_tiles() -> None:
    target = target_named("Ascend950DT_9581")
    few, many = (tiles_of(MlaDecodeSpec(heads=heads), target) for heads in (16, 128))
    assert few[0].rows == 16 < many[0].rows
    assert many[1]["runners_up"]
