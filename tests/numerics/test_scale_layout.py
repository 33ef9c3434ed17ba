"""scale_layout on the CPU twin: bit-exact against its reference, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec


def scales_of(spec: ScaleLayoutSpec, rows: int, blocks: int, batches: int = 2) -> torch.Tensor:
    """Every exponent, in the spec's form."""
    generator = torch.Generator().manual_seed(rows + blocks)
    count = batches if spec.batched else 1
    rows = -(-rows // spec.gran_mn)
    if spec.source == "e8m0x2":
        made = torch.randint(-(2**15), 2**15, (count, rows, -(-blocks // 2)), generator=generator)
        made = made.to(torch.int16)
    else:
        exponents = torch.randint(-127, 128, (count, rows, blocks), generator=generator)
        made = exponents.double().exp2().float()
    if spec.major == "mn":
        made = made.transpose(1, 2).contiguous()
    return made if spec.batched else made[0]


def check(spec: ScaleLayoutSpec, rows: int, blocks: int, cores: int = 4, **more: Any) -> torch.Tensor:
    inputs = {"scales": scales_of(spec, rows, blocks), "mn": rows, **more}
    return check_kernel(spec, cores, inputs, sizes={"mn": rows})["pairs"]


@pytest.mark.parametrize("source", ["fp32", "e8m0x2"])
@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("gran_mn", [1, 128])
def test_scales_are_packed_by_row_of_the_operand(source: Any, major: Any, gran_mn: Any) -> None:
    spec = ScaleLayoutSpec(source=source, major=major, gran_mn=gran_mn)
    for rows, blocks in ((1, 1), (300, 37), (2100, 130)):
        check(spec, rows, blocks)


@pytest.mark.parametrize("gran_mn", [2, 8, 32])
def test_other_granularities_and_batches(gran_mn: Any) -> None:
    check(ScaleLayoutSpec(gran_mn=gran_mn, batched=True, k=576), 333, 18)


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("source", ["fp32", "e8m0x2"])
def test_groups_of_k_end_in_zeros(source: Any, major: Any) -> None:
    spec = ScaleLayoutSpec(source=source, major=major, groups="k")
    ends = torch.tensor([200, 256, 256, 900, 2048, 2081], dtype=torch.int32)
    pairs = check(spec, 140, 72, grouped_layout=ends)
    assert (pairs[4 * 4 - 1] == 0).all()
    assert (pairs[33:] == 0).all()


@pytest.mark.parametrize(("gran_mn", "major"), [(1, "k"), (1, "mn"), (32, "k")])
def test_groups_of_rows_end_in_zeros(gran_mn: Any, major: Any) -> None:
    spec = ScaleLayoutSpec(gran_mn=gran_mn, major=major, groups="m", k=640)
    ends = torch.tensor([100, 256, 257, 700, 700], dtype=torch.int32)
    pairs = check(spec, 1100, 20, grouped_layout=ends)
    assert (pairs[:, 128:256] == 0).all()
    assert (pairs[:, 768:] == 0).all()


def test_what_is_no_power_of_two_becomes_nan() -> None:
    values = [1.0, 3.0, -1.0, torch.inf, torch.nan, 0.0, 2.0**-127, 2.0**-126, 2.0**127, 2.0**-128, -0.0, 1.5]
    scales = torch.tensor([values])
    pairs = check_kernel(ScaleLayoutSpec(), 4, {"scales": scales}, sizes={"mn": 1})["pairs"]
    expected = [127, 255, 255, 255, 255, 0, 0, 1, 254, 255, 255, 255]
    assert pairs.view(torch.uint8).flatten().tolist() == expected


def test_a_missing_last_block_is_zero_and_ones_are_7f7f() -> None:
    pairs = check_kernel(ScaleLayoutSpec(), 4, {"scales": torch.ones((2, 3))}, sizes={"mn": 2})["pairs"]
    assert pairs.tolist() == [[0x7F7F, 0x7F7F], [0x007F, 0x007F]]


@pytest.mark.parametrize("cores", [28, 36])
def test_other_parts_agree(cores: int) -> None:
    check(ScaleLayoutSpec(k=7168), 1000, 224, cores)


def test_no_rows_are_no_work() -> None:
    kernel(ScaleLayoutSpec(k=640), 4).launch(torch.empty((0, 20)), torch.empty((10, 0), dtype=torch.int16))
