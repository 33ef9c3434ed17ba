"""cast on the CPU twin: bit-exact against its reference, in eager order and under adversarial schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.block_values import VALUE_DTYPES, corner_rows, random_matrix, random_scales, random_values
from support.kernel_checks import check_kernel
from support.twin_kernels import kernel

from kaas.kernel_library.families.cast import CastSpec
from kaas.kernel_library.vector.row_plan import RowTile

NARROW_STAGES = RowTile(rows=2, stages=2)
NARROW_TILES = RowTile(rows=32, stages=2)
E8M0 = {"round_sf": True, "scale_dtype": "e8m0x2"}

SPECS = [
    CastSpec(hidden=576, tile=NARROW_STAGES, **E8M0),
    CastSpec(hidden=1056, in_dtype="fp32", fmt="e2m1", tile=NARROW_STAGES, **E8M0),
    CastSpec(hidden=4128, fmt="e2m1", tile=NARROW_STAGES),
    CastSpec(hidden=96, in_dtype="fp32", round_sf=True, tile=NARROW_STAGES),
    CastSpec(hidden=1056, fmt="e2m1", col_major=True, tile=NARROW_TILES, **E8M0),
    CastSpec(hidden=864, in_dtype="fp32", col_major=True, tile=NARROW_TILES),
    CastSpec(hidden=576, scales="only", tile=NARROW_STAGES, **E8M0),
    CastSpec(hidden=576, scales="given", fmt="e2m1", tile=NARROW_STAGES),
    CastSpec(hidden=576, scales="given", in_dtype="fp32", tile=NARROW_STAGES),
    CastSpec(hidden=2112, in_dtype="e4m3", in_scales="fp32", fmt="e2m1", tile=NARROW_STAGES),
    CastSpec(hidden=2112, in_dtype="e4m3", in_scales="e8m0x2", tile=NARROW_STAGES, **E8M0),
    CastSpec(hidden=1056, in_dtype="e2m1", in_scales="e8m0x2", in_col_major=True, tile=NARROW_TILES),
    CastSpec(
        hidden=1056, in_dtype="e2m1", in_scales="fp32", in_col_major=True, col_major=True, tile=NARROW_TILES
    ),
    CastSpec(hidden=864, granularity="per_block", tile=NARROW_TILES, **E8M0),
    CastSpec(hidden=1056, granularity="per_block", in_dtype="fp32", fmt="e2m1", tile=NARROW_TILES),
    CastSpec(hidden=1056, granularity="per_block", col_major=True, tile=NARROW_TILES, **E8M0),
    CastSpec(hidden=288, granularity="per_block", scales="given", tile=NARROW_TILES),
    CastSpec(hidden=288, granularity="per_block", scales="only", fmt="e2m1", tile=NARROW_TILES),
    CastSpec(hidden=864, granularity="per_channel", tile=RowTile(rows=64, stages=2), **E8M0),
    CastSpec(hidden=608, granularity="per_channel", in_dtype="fp32", tile=NARROW_TILES),
    CastSpec(
        hidden=608,
        granularity="per_channel",
        in_dtype="e4m3",
        in_scales="fp32",
        round_sf=True,
        tile=NARROW_TILES,
    ),
]


def name(spec: CastSpec) -> str:
    words = [spec.granularity, spec.in_dtype, spec.in_scales, spec.fmt, str(spec.hidden), spec.scales]
    flags = [flag for flag in ("round_sf", "col_major", "in_col_major") if getattr(spec, flag)]
    return "-".join([*words, spec.scale_dtype, *flags])


def inputs_of(spec: CastSpec, tokens: int, x: torch.Tensor | None = None) -> dict[str, Any]:
    blocks = spec.hidden // 32
    given = {"x": random_values(tokens, spec.hidden, spec.in_dtype, seed=tokens) if x is None else x}
    if spec.in_scales != "none":
        given["x_scales"] = random_scales(
            tokens, blocks, spec.in_scales, seed=tokens + 1, col_major=spec.in_col_major
        )
    if spec.scales == "given":
        rows = tokens if spec.granularity == "per_token" else -(-tokens // 32)
        given["out_scales"] = random_scales(rows, blocks, "fp32", seed=tokens + 2)
    return given


@pytest.mark.parametrize("spec", SPECS, ids=name)
@pytest.mark.parametrize("tokens", [1, 45, 161])
def test_values_and_scales_are_those_of_the_rule(spec: CastSpec, tokens: int) -> None:
    check_kernel(spec, 4, inputs_of(spec, tokens))


@pytest.mark.parametrize(
    "spec",
    [
        CastSpec(hidden=256, in_dtype=dtype, fmt=fmt, tile=NARROW_STAGES, **options)
        for dtype in VALUE_DTYPES
        for fmt in ("e4m3", "e2m1")
        for options in (E8M0, {"round_sf": False})
    ],
    ids=name,
)
def test_ties_powers_of_two_clamped_and_unbounded_blocks(spec: CastSpec) -> None:
    x = corner_rows(spec.fmt, spec.hidden).to(VALUE_DTYPES[spec.in_dtype])
    check_kernel(spec, 4, inputs_of(spec, len(x), x))


@pytest.mark.parametrize("granularity", ["per_block", "per_channel"])
@pytest.mark.parametrize("round_sf", [False, True])
def test_corner_cases_of_blocks_of_rows(granularity: Any, round_sf: bool) -> None:
    spec = CastSpec(
        hidden=256, granularity=granularity, in_dtype="fp32", round_sf=round_sf, tile=NARROW_TILES
    )
    x = corner_rows("e4m3", spec.hidden).repeat_interleave(32, 0)
    check_kernel(spec, 4, inputs_of(spec, len(x), x))


def test_given_scales_saturate_values_and_drop_nan() -> None:
    for fmt in ("e4m3", "e2m1"):
        spec = CastSpec(hidden=576, in_dtype="fp32", scales="given", fmt=fmt, tile=NARROW_STAGES)
        x = random_matrix(3, 576, seed=5)
        x[0, 3], x[0, 40], x[1, 5] = torch.inf, -torch.inf, torch.nan
        given = inputs_of(spec, 3, x)
        given["out_scales"] = torch.full((3, 18), 2.0**-10)
        out = check_kernel(spec, 4, given)["out"].view(torch.uint8)
        largest = {"e4m3": 0x7E, "e2m1": 7}[fmt]
        at = 3 if fmt == "e4m3" else 1
        assert int(out[0, at]) >> (0 if fmt == "e4m3" else 4) == largest


@pytest.mark.parametrize("in_dtype", ["e4m3", "e2m1"])
def test_extreme_input_scales(in_dtype: Any) -> None:
    spec = CastSpec(hidden=576, in_dtype=in_dtype, in_scales="e8m0x2", tile=NARROW_STAGES, **E8M0)
    given = inputs_of(spec, 6)
    codes = torch.tensor([0, 1, 127, 253, 254, 255], dtype=torch.uint8)
    given["x_scales"] = codes[:, None].repeat(1, 18).view(torch.int16)
    check_kernel(spec, 4, given)


def test_a_block_with_nan_dequantises_to_nan_and_its_neighbours_do_not() -> None:
    spec = CastSpec(hidden=256, tile=NARROW_STAGES, **E8M0)
    x = torch.ones((2, 256), dtype=torch.bfloat16)
    x[0, 70] = torch.nan
    scales = check_kernel(spec, 4, {"x": x})["out_scales"].view(torch.uint8)
    assert scales[0].tolist() == [119, 119, 255, 119, 119, 119, 119, 119]
    assert scales[1].tolist() == [119] * 8


@pytest.mark.parametrize(
    "spec",
    [
        CastSpec(hidden=576, **E8M0),
        CastSpec(hidden=2048, in_dtype="fp32", fmt="e2m1", col_major=True),
        CastSpec(hidden=1024, granularity="per_block", **E8M0),
        CastSpec(hidden=1024, granularity="per_channel"),
    ],
    ids=name,
)
@pytest.mark.parametrize("cores", [28, 36])
def test_chosen_tiles_agree_on_other_parts(spec: CastSpec, cores: int) -> None:
    check_kernel(spec, cores, inputs_of(spec, 333))


def test_static_tokens_agree() -> None:
    for tokens in (1, 33, 130):
        check_kernel(CastSpec(hidden=128, tokens=tokens), 4, {"x": random_values(tokens, 128, "bf16", 1)})


def test_widest_rows_agree() -> None:
    spec = CastSpec(hidden=32768, in_dtype="fp32", **E8M0)
    check_kernel(spec, 4, inputs_of(spec, 10))


def test_no_tokens_are_no_work() -> None:
    for granularity in ("per_token", "per_block", "per_channel"):
        spec = CastSpec(hidden=128, granularity=granularity)
        columns = 128 if granularity == "per_channel" else 4
        kernel(spec, 4).launch(
            torch.empty((0, 128), dtype=torch.bfloat16),
            torch.empty((0, 128), dtype=torch.float8_e4m3fn),
            torch.empty((0, columns)),
        )
