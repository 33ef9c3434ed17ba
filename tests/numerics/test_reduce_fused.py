"""reduce_fused on the CPU twin: bit-exact against the same sums in the same order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.fused_positions import fused_positions
from support.kernel_checks import check_kernel, reference_of, tensor_dtype

from kaas.kernel_library.families.reduce_fused import ColumnTile, ReduceFusedSpec

CASES = [
    (ReduceFusedSpec(hidden=576, topk=6), 4),
    (ReduceFusedSpec(hidden=1040, topk=2, dtype="fp16", dtype_y="fp16", row_scales=True), 32),
    (
        ReduceFusedSpec(
            hidden=272, topk=8, dtype="fp32", dtype_y="fp32", tile=ColumnTile(columns=128, stages=2)
        ),
        28,
    ),
    (ReduceFusedSpec(hidden=528, topk=3, weights=False, tile=ColumnTile(columns=192, stages=3)), 4),
    (ReduceFusedSpec(hidden=256, topk=9, weights=False, row_scales=True, dtype_y="e4m3"), 4),
    (
        ReduceFusedSpec(
            hidden=512, topk=6, dtype="fp32", dtype_y="e4m3", scale=True, row_scales=True,
            tile=ColumnTile(columns=320, stages=2),
        ),
        36,
    ),
]  # fmt: skip
IDS = [f"{spec.dtype}-{spec.dtype_y}-{spec.hidden}-top{spec.topk}-{cores}cores" for spec, cores in CASES]


def inputs_for(spec: ReduceFusedSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    positions, experts = fused_positions(tokens, spec.topk, seed=tokens)
    x = torch.randn((len(experts), spec.hidden), generator=generator).to(tensor_dtype(spec.dtype))
    x[experts < 0] = torch.nan  # no token may look at padding
    inputs: dict[str, Any] = {"x": x, "token_topk_to_pos": positions}
    if spec.row_scales:
        inputs["x_scales"] = torch.randn(len(experts), generator=generator)
    if spec.weights:
        inputs["weights"] = torch.rand((tokens, spec.topk), generator=generator)
    if spec.scale:
        inputs["scale"] = torch.tensor([37.5])
    return inputs


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 5, 203])
def test_expert_rows_are_summed(spec: ReduceFusedSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, inputs_for(spec, tokens))


def test_positions_arrive_in_more_batches_than_one() -> None:
    spec = ReduceFusedSpec(hidden=16, topk=2, tokens=1500)
    check_kernel(spec, 4, inputs_for(spec, 1500))


def test_a_token_without_experts_here_becomes_zero() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 5)
    inputs["token_topk_to_pos"][:] = -1
    assert (check_kernel(spec, cores, inputs)["y"] == 0).all()
    inputs["x"] = inputs["x"][:0]
    assert (check_kernel(spec, cores, inputs)["y"] == 0).all()


def test_infinities_and_nans_of_a_weighted_row_come_through() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 5)
    place = int(inputs["token_topk_to_pos"][0].max())
    inputs["x"][place, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    y = check_kernel(spec, cores, inputs)["y"]
    assert y[0, :2].tolist() == [torch.inf, -torch.inf]
    assert y[0, 2].isnan()


def test_e4m3_saturates() -> None:
    spec, cores = CASES[4]
    inputs = inputs_for(spec, 5)
    inputs["x"] = (inputs["x"].float() * 1e4).bfloat16()
    y = check_kernel(spec, cores, inputs)["y"].float()
    assert y.abs().max() == 448


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[0][0]
    inputs = inputs_for(spec, 77)
    few, many = (check_kernel(spec, cores, inputs)["y"] for cores in (4, 32))
    assert few.equal(many)
    assert few.equal(reference_of(spec, inputs)["y"])
