"""rope on the CPU twin: bit-exact in every schedule, and the columns beside the rotated ones untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import CalcDiff, check_kernel, reference_of, tensor_dtype

from kaas.kernel_library.families.rope import RopeSpec
from kaas.kernel_library.vector.row_plan import RowTile

SMALL_STAGES = RowTile(rows=3, stages=2)
CASES = [
    (RopeSpec(heads=5, width=192, tile=SMALL_STAGES), 4),
    (RopeSpec(heads=3, width=96, interleaved=False, positions="int64", tile=SMALL_STAGES), 4),
    (RopeSpec(heads=2, width=128, rotary=128, positions="none", offset=True, part="first"), 32),
    (
        RopeSpec(
            heads=1, width=272, rotary=256, inverse=True, interleaved=False, offset=True, tile=SMALL_STAGES
        ),
        4,
    ),
    (RopeSpec(heads=3, width=48, rotary=32, dtype="fp32", part="first", tile=SMALL_STAGES), 28),
    (RopeSpec(heads=1, width=256, rotary=256, dtype="fp32", inverse=True, tile=SMALL_STAGES), 4),
    (RopeSpec(heads=4, width=64, dtype="fp32", interleaved=False, positions="none"), 36),
    (RopeSpec(heads=2, width=48, rotary=32, dtype="fp16", interleaved=False, inverse=True), 4),
]
IDS = [
    f"{spec.dtype}-{spec.heads}x{spec.width}-{spec.part}{spec.rotary}-"
    f"{'pairs' if spec.interleaved else 'halves'}-{'inverse' if spec.inverse else 'forward'}-{spec.positions}"
    for spec, _ in CASES
]


def inputs_for(spec: RopeSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    dtype = tensor_dtype(spec.dtype)
    offset = 7 if spec.offset else 0
    inputs: dict[str, Any] = {
        "x": torch.randn((tokens, spec.heads, spec.width), generator=generator).to(dtype),
        "cos_sin": torch.randn((tokens + offset + 20, spec.rotary), generator=generator),
    }
    if spec.positions != "none":
        positions = torch.randint(0, tokens + 20, (tokens,), generator=generator)
        inputs["positions"] = positions.to(tensor_dtype(spec.positions))
    if spec.offset:
        inputs["offset"] = offset
    return inputs


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 5, 151])
def test_pairs_are_rotated(spec: RopeSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, inputs_for(spec, tokens))


def test_positions_arrive_in_more_batches_than_one() -> None:
    spec = RopeSpec(heads=1, width=64, tokens=4200)
    check_kernel(spec, 4, inputs_for(spec, 4200))


def test_rotating_back_gives_the_input() -> None:
    forward, inverse = (
        RopeSpec(heads=2, width=64, dtype="fp32", inverse=inverse) for inverse in (False, True)
    )
    inputs = inputs_for(forward, 40)
    angles = inputs["cos_sin"][:, :32]
    inputs["cos_sin"] = torch.cat((angles.cos(), angles.sin()), dim=-1)
    turned = check_kernel(forward, 4, inputs)["x"]
    assert not torch.allclose(turned, inputs["x"], atol=0.1)
    check_kernel(inverse, 4, {**inputs, "x": turned}, CalcDiff(1e-12), expected={"x": inputs["x"]})


def test_columns_beside_the_rotated_ones_keep_their_bits() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 33)
    inputs["x"][..., : spec.width - spec.rotary] = torch.nan
    x = check_kernel(spec, cores, inputs)["x"]
    assert x[..., : spec.width - spec.rotary].isnan().all()
    assert x[..., spec.width - spec.rotary :].isfinite().all()


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[0][0]
    inputs = inputs_for(spec, 77)
    for cores in (4, 32):
        assert check_kernel(spec, cores, inputs)["x"].equal(reference_of(spec, inputs)["x"])
