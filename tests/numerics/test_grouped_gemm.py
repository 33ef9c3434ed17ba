"""grouped_gemm on the CPU twin against one product per group in float64."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel
from support.scaled_values import scaled_operand
from support.twin_kernels import TORCH_DTYPES, kernel, lowered

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.references.number_formats import pack_pairs

# Every core owns several tiles and every tile several K steps: more than any ring has slots.
TILE = GemmTile(block_m=16, block_n=32, block_k=32)
CLOSE = CalcDiff(1e-5)
PROT_NONE = 0
ALIGNED = {"n": 96, "k": 96}
RAGGED = {"n": 83, "k": 104}
DYNAMIC: dict[str, Any] = {"groups": "dynamic", "n": "dynamic", "k": "dynamic"}

# Rows of each group: one row, an empty group, more than the alignment, exactly the alignment.
ROWS = (1, 0, 300, 256, 17)


def layout_of(rows: tuple[int, ...], *, empty_repeats: bool = False) -> torch.Tensor:
    """Ends of groups of ``rows`` rows; an empty group's end is its start, or the end before it."""
    ends, end = [], 0
    for count in rows:
        start = -(-end // 256) * 256
        end = end if count == 0 and empty_repeats else start + count
        ends.append(end)
    return torch.tensor(ends, dtype=torch.int32)


def inputs(
    spec: GroupedGemmSpec,
    layout: torch.Tensor,
    *,
    m: int,
    n: int = 83,
    k: int = 104,
    integers: bool = True,
) -> dict[str, torch.Tensor]:
    """a, b, d and grouped_layout; NaN in all rows of A, and marks in all of D, that belong to no group."""
    n, k = (size if extent == "dynamic" else int(extent) for size, extent in ((n, spec.n), (k, spec.k)))
    generator = torch.Generator().manual_seed(m + n + k)

    def values(*shape: int) -> torch.Tensor:
        if integers:
            return torch.randint(-2, 3, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    owned = torch.zeros(m, dtype=torch.bool)
    end = 0
    for stated in layout.tolist():
        start = -(-end // 256) * 256
        end = max(start, stated)
        owned[start:end] = True
    a, d = values(m, k), values(m, n)
    a[~owned], d[~owned] = torch.nan, 77.0
    b = values(len(layout), n, k) if spec.layout == "nt" else values(len(layout), k, n)
    dtype = TORCH_DTYPES[spec.dtype_a]
    return {
        "a": a.to(dtype),
        "b": b.to(dtype),
        "d": d.to(TORCH_DTYPES[spec.dtype_d]),
        "grouped_layout": layout,
    }


def padded(layout: torch.Tensor) -> int:
    """Rows of all groups with the last one's padding."""
    return -(-int(layout[-1]) // 256) * 256


CASES = [
    (GroupedGemmSpec(groups=5, **ALIGNED, tile=TILE), 28),
    (GroupedGemmSpec(groups=5, **RAGGED, layout="nn", dtype_d="fp32", tile=TILE), 32),
    (
        GroupedGemmSpec(
            groups=5, m=1280, **RAGGED, dtype_a="fp16", dtype_b="fp16", dtype_d="fp16", tile=TILE
        ),
        4,
    ),
    (GroupedGemmSpec(**DYNAMIC, dtype_d="fp32", tile=TILE), 36),
    (GroupedGemmSpec(**DYNAMIC, layout="nn", tile=TILE), 28),
    (GroupedGemmSpec(groups=5, **ALIGNED, tile=GemmTile(block_m=48, block_n=80, block_k=64)), 32),
]


def name_of(case: Any) -> str | None:
    if not isinstance(case, GroupedGemmSpec):
        return None
    return (
        f"{case.groups}-groups-{case.n}x{case.k}-{case.layout}-{case.dtype_a}-{case.dtype_b}-{case.dtype_d}"
    )


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=name_of)
def test_groups_of_all_sizes_agree(spec: GroupedGemmSpec, cores: int) -> None:
    layout = layout_of(ROWS)
    rows = padded(layout) if spec.m == "dynamic" else int(spec.m)
    check_kernel(spec, cores, inputs(spec, layout, m=rows), EXACT)
    random = inputs(spec, layout, m=rows, integers=False)
    random["a"] = random["a"].nan_to_num(0.0)
    check_kernel(spec, cores, random, CLOSE)


@pytest.mark.parametrize(
    "rows",
    [(40,), (0, 0, 0), (0, 513), (513, 0), (0, 0, 1, 0), (2, 2, 2, 2, 2, 2, 2, 2), (256, 256)],
    ids=str,
)
@pytest.mark.parametrize("empty_repeats", [False, True])
def test_one_dynamic_kernel_serves_every_layout(rows: tuple[int, ...], empty_repeats: bool) -> None:
    spec = GroupedGemmSpec(**DYNAMIC, layout="nn", tile=TILE)
    layout = layout_of(rows, empty_repeats=empty_repeats)
    for m in {int(layout.max()), padded(layout) + 256}:
        check_kernel(spec, 28, inputs(spec, layout, m=m, n=40, k=33), EXACT)


def test_no_rows_are_no_work() -> None:
    spec = GroupedGemmSpec(groups=3, **RAGGED, tile=TILE)
    check_kernel(spec, 28, inputs(spec, torch.zeros(3, dtype=torch.int32), m=0), EXACT)


def test_no_group_leaves_the_ends_of_the_matrices() -> None:
    # Ends beyond M, ends that go back, a negative one: never more than the rows that there are.
    spec = GroupedGemmSpec(**DYNAMIC, layout="nn", tile=TILE)
    for ends in ((70, 2**31 - 1, 5), (-5, 100, 90), (2**30, 2**30, 2**30)):
        given = inputs(spec, torch.tensor([700, 0, 0], dtype=torch.int32), m=700, n=40, k=33)
        given["a"] = given["a"].nan_to_num(1.0)
        given["grouped_layout"] = torch.tensor(ends, dtype=torch.int32)
        check_kernel(spec, 28, given, EXACT)


SCALED_TILE = GemmTile(block_m=32, block_n=64, block_k=128)
SCALED = [
    (GroupedGemmSpec(groups=4, n=96, k=416, dtype_a="e4m3", dtype_b="e4m3", tile=SCALED_TILE), 28),
    (
        GroupedGemmSpec(
            n=96, k=416, dtype_a="e4m3", dtype_b="e4m3", dtype_d="fp32", layout="nn", tile=SCALED_TILE
        ),
        4,
    ),
    (GroupedGemmSpec(**DYNAMIC, dtype_a="e4m3", dtype_b="e4m3", tile=SCALED_TILE), 36),
    (GroupedGemmSpec(n=96, k=416, dtype_a="e4m3", dtype_b="e2m1", tile=SCALED_TILE), 32),
    (GroupedGemmSpec(**DYNAMIC, dtype_a="e4m3", dtype_b="e2m1", dtype_d="fp32", tile=SCALED_TILE), 4),
    (GroupedGemmSpec(n=96, k=416, dtype_a="e2m1", dtype_b="e2m1", dtype_d="fp16", tile=SCALED_TILE), 28),
    (GroupedGemmSpec(**DYNAMIC, dtype_a="e2m1", dtype_b="e2m1", tile=SCALED_TILE), 4),
    (GroupedGemmSpec(n=96, k=416, dtype_a="e4m3", dtype_b="e2m1"), 32),
]


def scaled_inputs(
    spec: GroupedGemmSpec, rows: tuple[int, ...], *, n: int = 96, k: int = 416, integers: bool
) -> dict[str, torch.Tensor]:
    """All arguments of a block-scaled call; scales of rows of no group are NaN."""
    layout = layout_of(rows)
    m = padded(layout)
    generator = torch.Generator().manual_seed(m + n + k)
    a, sfa = scaled_operand(m, k, spec.dtype_a, generator, integers=integers)
    owned = torch.zeros(m, dtype=torch.bool)
    for count, end in zip(rows, layout.tolist(), strict=True):
        owned[end - count : end] = True
    sfa[~owned] = 255
    groups = [scaled_operand(n, k, spec.dtype_b, generator, integers=integers) for _ in rows]
    b = torch.stack([values if spec.layout == "nt" else values.T.contiguous() for values, _ in groups])
    return {
        "a": a,
        "b": b,
        "sfa": pack_pairs(sfa),
        "sfb": torch.stack([pack_pairs(scales) for _, scales in groups]),
        "d": torch.full((m, n), 77.0, dtype=TORCH_DTYPES[spec.dtype_d]),
        "grouped_layout": layout,
    }


@pytest.mark.parametrize(("spec", "cores"), SCALED, ids=name_of)
def test_block_scaled_groups_agree(spec: GroupedGemmSpec, cores: int) -> None:
    rows = (1, 0, 130, 77)
    check_kernel(spec, cores, scaled_inputs(spec, rows, integers=True), EXACT)
    check_kernel(spec, cores, scaled_inputs(spec, rows, integers=False), CLOSE)


@pytest.mark.parametrize(("dtype_a", "dtype_b"), [("e4m3", "e4m3"), ("e4m3", "e2m1"), ("e2m1", "e2m1")])
def test_one_block_of_k_and_an_empty_group_agree(dtype_a: str, dtype_b: str) -> None:
    spec = GroupedGemmSpec(**DYNAMIC, dtype_a=dtype_a, dtype_b=dtype_b, tile=SCALED_TILE)
    for rows, k in (((3, 0, 40), 32), ((0, 5, 1), 128), ((0, 0, 0), 64)):
        check_kernel(spec, 4, scaled_inputs(spec, rows, n=33, k=k, integers=True), EXACT)


def test_nothing_behind_the_last_row_is_read() -> None:
    # A ends where memory that nobody may touch begins, in the middle of a tile.
    spec = GroupedGemmSpec(groups=2, n=64, k=80, tile=TILE)
    given = inputs(spec, layout_of((3, 23)), m=279)
    given["a"] = before_a_guard_page(given["a"])
    check_kernel(spec, 28, given, EXACT)


def before_a_guard_page(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte is the last one of a page, with a page behind it that faults."""
    page = mmap.PAGESIZE
    size = tensor.numel() * tensor.element_size()
    room = mmap.mmap(-1, (-(-size // page) + 1) * page)
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(room)) + len(room) - page
    assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), PROT_NONE) == 0
    copy = torch.frombuffer(room, dtype=tensor.dtype, offset=len(room) - page - size, count=tensor.numel())
    assert copy.data_ptr() % 32 == 0
    return copy.view(tensor.shape).copy_(tensor)


def test_chosen_tiles_agree_and_core_counts_do_not_matter() -> None:
    spec = GroupedGemmSpec(groups=5, n=200, k=600)
    layout = layout_of(ROWS)
    given = inputs(spec, layout, m=padded(layout), integers=False)
    given["a"] = given["a"].nan_to_num(0.0)
    results = [check_kernel(spec, cores, given, CLOSE)["d"] for cores in (4, 32)]
    assert torch.equal(*results)


def test_tiles_follow_the_rows_of_a_group() -> None:
    few, many = (lowered(GroupedGemmSpec(groups=64, m=m, n=512, k=256), 32).choices for m in (64 * 32, 2**20))
    assert few["block_m"] <= 32 < many["block_m"]
    assert few["why"]["runners_up"]


def test_a_given_tile_is_reported_as_given() -> None:
    assert kernel(CASES[0][0], CASES[0][1]).lowered.choices["why"]["reason"] == "given by the spec"
