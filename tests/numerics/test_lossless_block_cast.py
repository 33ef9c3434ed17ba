"""lossless_block_cast on the CPU twin: bit-exact against its reference, and without loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.block_values import random_scales, random_values
from support.kernel_checks import check_kernel

from kaas.kernel_library.families.lossless_block_cast import LosslessBlockCastSpec
from kaas.kernel_library.references.number_formats import decode_e2m1
from kaas.kernel_library.references.quantisation import decode_scales, spread
from kaas.kernel_library.vector.row_plan import RowTile

TILE = RowTile(rows=32, stages=2)

SPECS = [
    LosslessBlockCastSpec(hidden=864, tile=TILE),
    LosslessBlockCastSpec(hidden=1056, in_scales="fp32", scale_dtype="fp32", tile=TILE),
    LosslessBlockCastSpec(hidden=608, in_col_major=True, col_major=True, tile=TILE),
    LosslessBlockCastSpec(
        hidden=608, in_scales="fp32", in_col_major=True, scale_dtype="fp32", col_major=True, tile=TILE
    ),
]


def name(spec: LosslessBlockCastSpec) -> str:
    flags = [flag for flag in ("in_col_major", "col_major") if getattr(spec, flag)]
    return "-".join([spec.in_scales, spec.scale_dtype, *flags])


def inputs_of(spec: LosslessBlockCastSpec, tokens: int, exponents: tuple[int, int]) -> dict[str, Any]:
    scales = random_scales(
        tokens, spec.hidden // 32, spec.in_scales, 3, col_major=spec.in_col_major, exponents=exponents
    )
    if spec.in_scales == "fp32":
        scales = (scales.view(torch.int32) & 0x7F800000).view(torch.float32)  # powers of two
    return {"x": random_values(tokens, spec.hidden, "e2m1", seed=tokens), "x_scales": scales}


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_scales_and_values_are_those_of_the_rule(spec: LosslessBlockCastSpec) -> None:
    for tokens, exponents in ((1, (120, 130)), (161, (115, 129)), (161, (1, 8)), (45, (238, 252))):
        check_kernel(spec, 4, inputs_of(spec, tokens, exponents))


@pytest.mark.parametrize("spec", SPECS[:2], ids=name)
def test_rows_too_far_apart_make_a_block_nan(spec: LosslessBlockCastSpec) -> None:
    check_kernel(spec, 4, inputs_of(spec, 161, (113, 129)))


def test_nothing_is_lost() -> None:
    spec = SPECS[0]
    given = inputs_of(spec, 100, (116, 130))
    found = check_kernel(spec, 4, given)
    blocks = spec.hidden // 32
    before = decode_scales(given["x_scales"].view(torch.uint8)[:, :blocks])
    after = decode_scales(found["out_scales"].view(torch.uint8)[:, :blocks])
    x, out = decode_e2m1(given["x"]), found["out"].double()
    assert torch.equal(
        out * spread(after, (32, 32), out.shape).double(), x * spread(before, (1, 32), x.shape).double()
    )


def test_nan_and_extreme_scales() -> None:
    spec = SPECS[0]
    given = inputs_of(spec, 96, (0, 0))
    codes = given["x_scales"].view(torch.uint8)
    codes[5, 3] = 255
    codes[32:64] = 254
    check_kernel(spec, 4, given)


def test_fp32_scales_that_are_no_powers_of_two_make_a_block_nan() -> None:
    spec = SPECS[1]
    given = inputs_of(spec, 64, (120, 128))
    given["x_scales"][3, 2], given["x_scales"][40, 7] = 3.0, -1.0
    scales = check_kernel(spec, 4, given)["out_scales"]
    assert scales.isnan().nonzero().tolist() == [[0, 2], [1, 7]]


def test_the_chosen_tile_agrees_on_another_part() -> None:
    spec = LosslessBlockCastSpec(hidden=2048)
    check_kernel(spec, 28, inputs_of(spec, 333, (116, 129)))
