"""k_grouped_gemm on the CPU twin against one product per group in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel
from support.scaled_values import scaled_operand
from support.twin_kernels import TORCH_DTYPES

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec
from kaas.kernel_library.references.number_formats import pack_pairs

# Every core owns several tiles and every tile several K steps: more than any ring has slots.
TILE = GemmTile(block_m=16, block_n=32, block_k=32)
CLOSE = CalcDiff(1e-5)
ALIGNED = {"m": 96, "n": 128}
RAGGED = {"m": 83, "n": 105}
DYNAMIC: dict[str, Any] = {"groups": "dynamic", "m": "dynamic", "n": "dynamic"}

# Sums of one row, of nothing, beyond the alignment, of exactly the alignment.
SUMS = (1, 0, 300, 256, 37)


def layout_of(sums: tuple[int, ...]) -> torch.Tensor:
    """Ends of groups of ``sums`` rows."""
    ends, end = [], 0
    for count in sums:
        end = -(-end // 256) * 256 + count
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int32)


def inputs(
    spec: KGroupedGemmSpec,
    sums: tuple[int, ...],
    *,
    k: int | None = None,
    m: int = 83,
    n: int = 105,
    integers: bool = True,
) -> dict[str, torch.Tensor]:
    """a, b, d and grouped_layout; NaN in all rows of A and B that belong to no group."""
    layout = layout_of(sums)
    k = -(-int(layout[-1]) // 256) * 256 if k is None else k
    m, n = (size if extent == "dynamic" else int(extent) for size, extent in ((m, spec.m), (n, spec.n)))
    generator = torch.Generator().manual_seed(m + n + k)

    def values(*shape: int) -> torch.Tensor:
        if integers:
            return torch.randint(-2, 3, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    a, b, d = values(k, m), values(k, n), values(len(layout), m, n)
    owned = torch.zeros(k, dtype=torch.bool)
    for count, end in zip(sums, layout.tolist(), strict=True):
        owned[end - count : end] = True
    a[~owned], b[~owned] = torch.nan, torch.nan
    dtype = TORCH_DTYPES[spec.dtype_a]
    return {
        "a": a.to(dtype),
        "b": b.to(dtype),
        "d": d.to(TORCH_DTYPES[spec.dtype_d]),
        "grouped_layout": layout,
    }


CASES = [
    (KGroupedGemmSpec(groups=5, **ALIGNED, tile=TILE), 28),
    (KGroupedGemmSpec(groups=5, k=1280, **RAGGED, dtype_a="fp16", dtype_d="fp16", tile=TILE), 4),
    (KGroupedGemmSpec(groups=5, **RAGGED, dtype_d="bf16", tile=TILE), 32),
    (KGroupedGemmSpec(**DYNAMIC, tile=TILE), 36),
    (KGroupedGemmSpec(**DYNAMIC, dtype_d="bf16", tile=TILE), 28),
]


def name_of(case: Any) -> str | None:
    if not isinstance(case, KGroupedGemmSpec):
        return None
    return f"{case.groups}-groups-{case.m}x{case.n}-{case.dtype_a}-{case.dtype_d}"


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=name_of)
def test_groups_of_all_sizes_agree(spec: KGroupedGemmSpec, cores: int) -> None:
    check_kernel(spec, cores, inputs(spec, SUMS), EXACT)
    check_kernel(spec, cores, inputs(spec, SUMS, integers=False), CLOSE)


@pytest.mark.parametrize("sums", [(40,), (0, 0, 0), (0, 300), (300, 0), (1, 1, 1, 0, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype_d", ["fp32", "bf16"])
def test_one_dynamic_kernel_serves_every_layout(sums: tuple[int, ...], dtype_d: str) -> None:
    spec = KGroupedGemmSpec(**DYNAMIC, dtype_d=dtype_d, tile=TILE)
    for k in {sum(sums) if len(sums) == 1 else int(layout_of(sums)[-1]), 2048}:
        check_kernel(spec, 28, inputs(spec, sums, k=k, m=40, n=33), EXACT)


SCALED_TILE = GemmTile(block_m=32, block_n=64, block_k=128)
SCALED = [
    (KGroupedGemmSpec(groups=5, m=96, n=160, dtype_a="e4m3", tile=SCALED_TILE), 28),
    (KGroupedGemmSpec(**DYNAMIC, dtype_a="e4m3", dtype_d="bf16", tile=SCALED_TILE), 4),
    (KGroupedGemmSpec(groups=5, k=1280, m=40, n=72, dtype_a="e4m3"), 32),
]


def scaled_inputs(
    spec: KGroupedGemmSpec, sums: tuple[int, ...], *, integers: bool
) -> dict[str, torch.Tensor]:
    """All arguments of a block-scaled call; scales of blocks of no group are NaN."""
    layout = layout_of(sums)
    k = -(-int(layout[-1]) // 256) * 256
    m, n = (size if extent == "dynamic" else int(extent) for size, extent in ((83, spec.m), (105, spec.n)))
    generator = torch.Generator().manual_seed(m + n + k)
    a, sfa = scaled_operand(m, k, "e4m3", generator, integers=integers)
    b, sfb = scaled_operand(n, k, "e4m3", generator, integers=integers)
    owned = torch.zeros(k // 32, dtype=torch.bool)
    for count, end in zip(sums, layout.tolist(), strict=True):
        # Both scales of a pair are read; the second may be one that no value of the group has.
        owned[(end - count) // 32 : -(-end // 64) * 2 if count else 0] = True
    sfa[:, ~owned] = 255
    sfb[:, ~owned] = 255
    d = torch.randint(-2, 3, (len(sums), m, n), generator=generator).to(TORCH_DTYPES[spec.dtype_d])
    return {
        "a": a.T.contiguous(),
        "b": b.T.contiguous(),
        "sfa": pack_pairs(sfa),
        "sfb": pack_pairs(sfb),
        "d": d,
        "grouped_layout": layout,
    }


@pytest.mark.parametrize(("spec", "cores"), SCALED, ids=["static", "dynamic-bf16", "chosen-tiles"])
def test_block_scaled_groups_agree(spec: KGroupedGemmSpec, cores: int) -> None:
    check_kernel(spec, cores, scaled_inputs(spec, SUMS, integers=True), EXACT)
    check_kernel(spec, cores, scaled_inputs(spec, SUMS, integers=False), CLOSE)


def test_an_empty_group_leaves_every_bit_of_its_d_alone() -> None:
    spec = KGroupedGemmSpec(**DYNAMIC, tile=TILE)
    given = inputs(spec, (5, 0, 5), m=40, n=33)
    given["d"][1] = torch.nan
    given["d"][1, 0] = -0.0
    outputs = check_kernel(spec, 28, given, EXACT)
    assert torch.equal(outputs["d"][1].view(torch.int32), given["d"][1].view(torch.int32))


def test_ends_beyond_k_and_ends_that_go_back_stay_inside() -> None:
    spec = KGroupedGemmSpec(**DYNAMIC, tile=TILE)
    for ends in ((70, 2**31 - 1, 5), (-5, 100, 90), (2**30, 2**30, 2**30)):
        given = inputs(spec, (700, 0, 0), k=700, m=40, n=33)
        given["grouped_layout"] = torch.tensor(ends, dtype=torch.int32)
        check_kernel(spec, 28, given, EXACT)


def test_chosen_tiles_agree_and_core_counts_do_not_matter() -> None:
    spec = KGroupedGemmSpec(groups=5, m=200, n=300)
    given = inputs(spec, SUMS, integers=False)
    results = [check_kernel(spec, cores, given, CLOSE)["d"] for cores in (4, 32)]
    assert torch.equal(*results)
