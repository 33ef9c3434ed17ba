"""cast_and_back on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

import pytest
import torch
from support.block_values import VALUE_DTYPES, corner_rows, random_values
from support.kernel_checks import check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.cast_and_back import CastAndBackSpec
from kaas.kernel_library.vector.row_plan import RowTile

TILE = RowTile(rows=2, stages=2)

SPECS = [
    CastAndBackSpec(hidden=544, dtype=dtype, fmt=fmt, round_sf=round_sf, tile=TILE)
    for dtype, fmt, round_sf in (
        ("bf16", "e4m3", False),
        ("bf16", "e2m1", True),
        ("fp32", "e4m3", True),
        ("fp32", "e2m1", False),
    )
]


def name(spec: CastAndBackSpec) -> str:
    return "-".join([spec.dtype, spec.fmt, *(["round_sf"] if spec.round_sf else [])])


@pytest.mark.parametrize("spec", SPECS, ids=name)
@pytest.mark.parametrize("tokens", [1, 77])
def test_values_are_those_of_cast_and_cast_back(spec: CastAndBackSpec, tokens: int) -> None:
    check_kernel(spec, 4, {"x": random_values(tokens, spec.hidden, spec.dtype, seed=tokens)})


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_ties_powers_of_two_clamped_and_unbounded_blocks(spec: CastAndBackSpec) -> None:
    check_kernel(spec, 4, {"x": corner_rows(spec.fmt, spec.hidden).to(VALUE_DTYPES[spec.dtype])})


def test_what_is_representable_stays_as_it_is() -> None:
    spec = CastAndBackSpec(hidden=544, fmt="e2m1", round_sf=True, tile=TILE)
    values = torch.tensor([6.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 0.0])
    x = (values.repeat(5, 68) * 2.0 ** torch.arange(5)[:, None]).bfloat16()
    assert torch.equal(check_kernel(spec, 4, {"x": x})["x"], x)


def test_the_chosen_tile_agrees_on_another_part() -> None:
    check_kernel(CastAndBackSpec(hidden=7168), 36, {"x": random_values(300, 7168, "bf16", seed=1)})


def test_no_tokens_are_no_work() -> None:
    kernel(SPECS[0], 4).launch(torch.empty((0, 544), dtype=torch.bfloat16))
