"""randn on the CPU twin against Threefry and the float64 quantile, in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import Close, check_kernel

from kaas.kernel_library.families.randn import RandnSpec
from kaas.kernel_library.references.randn import threefry
from kaas.kernel_library.vector.row_plan import RowTile

TILE = RowTile(rows=2, stages=2)
PLAIN = RandnSpec(tile=TILE)
HALF = RandnSpec(dtype="bf16", tile=TILE)
ABSOLUTE = 2**-18
CLOSE = {
    "fp32": Close(absolute=ABSOLUTE),
    "bf16": Close(relative=2**-8, absolute=ABSOLUTE),
    "fp16": Close(relative=2**-11, absolute=ABSOLUTE),
}


def check(spec: RandnSpec, cores: int, elements: int, seed: int) -> torch.Tensor:
    inputs: dict[str, Any] = {"elements": elements, "seed": seed}
    return check_kernel(spec, cores, inputs, CLOSE[spec.dtype], sizes={"elements": elements})["out"]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_reference_gives_the_published_words(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    left, right = threefry((torch.tensor(counter[0]), torch.tensor(counter[1])), key)
    assert (left.item(), right.item()) == expected


@pytest.mark.parametrize(
    ("spec", "cores", "elements", "seed"),
    [
        pytest.param(PLAIN, 4, 128 * 2 * 8 * 3 + 77, 0, id="many stages"),
        pytest.param(PLAIN, 4, 1, 2**63 - 1, id="one element"),
        pytest.param(PLAIN, 4, 0, 5, id="no element"),
        pytest.param(PLAIN, 28, 1000, -1, id="negative seed"),
        pytest.param(HALF, 4, 5001, 2**40 + 3, id="bf16"),
        pytest.param(RandnSpec(dtype="fp16", elements=300), 36, 300, 9, id="fp16"),
    ],
)
def test_values_are_quantiles_of_the_words(spec: RandnSpec, cores: int, elements: int, seed: int) -> None:
    check(spec, cores, elements, seed)


def test_values_are_normally_distributed() -> None:
    found = check(PLAIN, 4, 100_000, 2026).double()
    assert abs(found.mean()) < 4 / 100_000**0.5
    assert abs(found.square().mean() - 1) < 4 * (2 / 100_000) ** 0.5
    assert abs((found**4).mean() - 3) < 4 * (96 / 100_000) ** 0.5
    ranks = torch.special.ndtr(found.sort().values)
    steps = (torch.arange(100_000) + 0.5) / 100_000
    assert (ranks - steps).abs().max() < 1.95 / 100_000**0.5  # Kolmogorov and Smirnov, one in a thousand
    neighbours = (found[1:] * found[:-1]).mean()
    halves = (found[:49_920].view(-1, 2, 64)[:, 0] * found[:49_920].view(-1, 2, 64)[:, 1]).mean()
    assert abs(neighbours) < 4 / 100_000**0.5
    assert abs(halves) < 4 / 24_960**0.5


def test_a_seed_gives_the_same_values_on_any_number_of_cores() -> None:
    few, many = check(PLAIN, 4, 700, 11), check(PLAIN, 28, 900, 11)
    assert few.equal(many[:700])
    assert not few.equal(check(PLAIN, 4, 700, 12))
    assert not few.equal(check(PLAIN, 4, 700, 11 + 2**32))
