"""cast_back on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.block_values import random_scales, random_values
from support.kernel_checks import check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.cast_back import CastBackSpec
from kaas.kernel_library.vector.row_plan import RowTile

NARROW_STAGES = RowTile(rows=2, stages=2)
NARROW_TILES = RowTile(rows=32, stages=2)

SPECS = [
    CastBackSpec(hidden=576, scale_dtype="e8m0x2", tile=NARROW_STAGES),
    CastBackSpec(hidden=1056, in_dtype="e2m1", dtype="fp32", tile=NARROW_STAGES),
    CastBackSpec(hidden=1056, in_dtype="e2m1", scale_dtype="e8m0x2", col_major=True, tile=NARROW_TILES),
    CastBackSpec(hidden=864, dtype="fp32", col_major=True, tile=NARROW_TILES),
    CastBackSpec(hidden=864, granularity="per_block", scale_dtype="e8m0x2", tile=NARROW_TILES),
    CastBackSpec(hidden=1056, granularity="per_block", in_dtype="e2m1", col_major=True, tile=NARROW_TILES),
    CastBackSpec(hidden=864, granularity="per_channel", dtype="fp32", tile=NARROW_TILES),
    CastBackSpec(
        hidden=608,
        granularity="per_channel",
        in_dtype="e2m1",
        scale_dtype="e8m0x2",
        tile=RowTile(rows=64, stages=2),
    ),
]


def name(spec: CastBackSpec) -> str:
    words = [spec.granularity, spec.in_dtype, spec.scale_dtype, spec.dtype, str(spec.hidden)]
    return "-".join([*words, *(["col_major"] if spec.col_major else [])])


def inputs_of(spec: CastBackSpec, tokens: int, exponents: tuple[int, int] = (100, 150)) -> dict[str, Any]:
    x = random_values(tokens, spec.hidden, spec.in_dtype, seed=tokens)
    row_blocks, column_blocks = -(-tokens // 32), spec.hidden // 32
    if spec.granularity == "per_channel":
        # Pairs along columns are pairs along the rows of the transpose.
        scales = random_scales(
            spec.hidden, row_blocks, spec.scale_dtype, 1, col_major=True, exponents=exponents
        )
    else:
        rows = tokens if spec.granularity == "per_token" else row_blocks
        scales = random_scales(
            rows, column_blocks, spec.scale_dtype, 1, col_major=spec.col_major, exponents=exponents
        )
    return {"x": x, "x_scales": scales}


@pytest.mark.parametrize("spec", SPECS, ids=name)
@pytest.mark.parametrize("tokens", [1, 161])
def test_values_are_products_with_their_scales(spec: CastBackSpec, tokens: int) -> None:
    check_kernel(spec, 4, inputs_of(spec, tokens))


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_extreme_scales(spec: CastBackSpec) -> None:
    """Smallest scales give subnormal numbers, largest ones infinities in bf16."""
    for exponents in ((0, 1), (253, 254)):
        check_kernel(spec, 4, inputs_of(spec, 33, exponents))


def test_nan_scales_and_nan_values_stay_nan() -> None:
    spec = CastBackSpec(hidden=576, scale_dtype="e8m0x2", tile=NARROW_STAGES)
    given = inputs_of(spec, 3)
    given["x_scales"].view(torch.uint8)[0, 2] = 255
    given["x"].view(torch.uint8)[1, 40] = 0x7F
    out = check_kernel(spec, 4, given)["out"]
    assert out[0, 64:96].isnan().all()
    assert out[1, 40].isnan()
    assert int(out.isnan().sum()) == 33


@pytest.mark.parametrize("cores", [28, 36])
def test_chosen_tiles_agree_on_other_parts(cores: int) -> None:
    for spec in (CastBackSpec(hidden=7168), CastBackSpec(hidden=1024, granularity="per_block", tokens=333)):
        check_kernel(spec, cores, inputs_of(spec, 333))


def test_no_tokens_are_no_work() -> None:
    kernel(CastBackSpec(hidden=128, scale_dtype="e8m0x2"), 4).launch(
        torch.empty((0, 128), dtype=torch.float8_e4m3fn),
        torch.empty((0, 2), dtype=torch.int16),
        torch.empty((0, 128), dtype=torch.bfloat16),
    )
