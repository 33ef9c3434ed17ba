"""engram_sinkhorn_momentum on the CPU twin against float64, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import Close, Comparison, check_kernel
from support.twin_kernels import TORCH_DTYPES

from kaas.kernel_library.families.engram_sinkhorn_momentum import EngramSinkhornMomentumSpec
from kaas.kernel_library.vector.row_plan import RowTile

TILE = RowTile(rows=3, stages=2)
SPECS = [
    EngramSinkhornMomentumSpec(tile=TILE),
    EngramSinkhornMomentumSpec(dtype="bf16", momentum_dtype="bf16", nesterov=False, tile=TILE),
    EngramSinkhornMomentumSpec(dtype="bf16", beta1=0.95, tile=TILE),
    EngramSinkhornMomentumSpec(momentum_dtype="bf16", tile=TILE),
]
IDS = [f"{spec.dtype}-{spec.momentum_dtype}-{spec.beta1}-{spec.nesterov}" for spec in SPECS]


def inputs_of(spec: EngramSinkhornMomentumSpec, rows: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows)
    return {
        "grad": torch.randn((rows, 256), generator=generator).to(TORCH_DTYPES[spec.dtype]),
        "momentum_buffer": torch.randn((rows, 256), generator=generator).to(
            TORCH_DTYPES[spec.momentum_dtype]
        ),
    }


def comparison(spec: EngramSinkhornMomentumSpec) -> dict[str, Comparison]:
    exact = Close(relative=2**-21, absolute=2**-20)
    half = Close(relative=2**-8, absolute=2**-20)
    return {"momentum_buffer": half if spec.momentum_dtype == "bf16" else exact, "sinkhorn_input": exact}


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
@pytest.mark.parametrize("rows", [1, 125])
def test_momentum_follows_the_gradient(spec: EngramSinkhornMomentumSpec, rows: int) -> None:
    check_kernel(spec, 4, inputs_of(spec, rows), comparison(spec))


@pytest.mark.parametrize("nesterov", [True, False])
def test_small_integers_are_exact(nesterov: bool) -> None:
    spec = EngramSinkhornMomentumSpec(dtype="bf16", momentum_dtype="bf16", beta1=0.5, nesterov=nesterov)
    generator = torch.Generator().manual_seed(3)
    grad, momentum = torch.randint(-16, 17, (2, 70, 256), generator=generator).bfloat16()
    check_kernel(spec, 36, {"grad": grad, "momentum_buffer": momentum})


def test_a_nan_stays_in_its_place() -> None:
    inputs = inputs_of(SPECS[0], 9)
    inputs["grad"][4, 7], inputs["momentum_buffer"][5, 8] = torch.nan, torch.inf
    found = check_kernel(SPECS[0], 4, inputs, comparison(SPECS[0]))["sinkhorn_input"]
    assert (~found.isfinite()).nonzero().tolist() == [[4, 7], [5, 8]]
