"""block_scaled_gemm on the CPU twin against the product of the dequantised operands in float64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel, reference_of
from support.twin_kernels import aligned, calc_diff, kernel

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec
from kaas.kernel_library.references.number_formats import (
    decode_e8m0,
    dequantise,
    encode_e2m1,
    encode_float8,
    pack_pairs,
    unpack_pairs,
)
from kaas.kernel_library.references.quantisation import block_magnitudes, e8m0_of, scales_of, spread

ALPHA = 0.375
SHAPE = (151, 224, 416)
"""Ragged rows, and a K that ends in half a pair of scales inside the last step."""
TILE = {"block_m": 32, "block_n": 64, "block_k": 128}
CORES = (4, 28, 32, 36)
DYNAMIC: dict[str, Any] = {"m": "dynamic", "n": "dynamic", "k": "dynamic"}


def spec_of(**fields: Any) -> BlockScaledGemmSpec:
    m, n, k = SHAPE
    given = {"m": m, "n": n, "k": k, "tile": GemmTile(**TILE)} | fields
    return BlockScaledGemmSpec(**given)


def encoded(values: torch.Tensor, dtype: str) -> torch.Tensor:
    return encode_e2m1(values) if dtype == "e2m1" else encode_float8(values, dtype)


class Problem:
    """Operands of one product: quantised rows with their scales, stored as the layout wants them."""

    def __init__(
        self, spec: BlockScaledGemmSpec, shape: tuple[int, int, int] = SHAPE, *, exact: bool, seed: int = 1
    ) -> None:
        m, n, k = shape
        self.spec = spec
        self.generator = torch.Generator().manual_seed(seed)
        make = self._integers if exact else self._random
        self.left, a, sfa = make(m, k, spec.dtype_a)
        self.right, b, sfb = make(n, k, spec.dtype_b)
        self.inputs: dict[str, Any] = {
            "a": a.T.contiguous() if spec.layout[0] == "t" else a,
            "b": b.T.contiguous() if spec.layout[1] == "n" else b,
            "sfa": pack_pairs(sfa),
            "sfb": pack_pairs(sfb),
        }
        if spec.alpha:
            self.inputs["alpha"] = ALPHA
        if spec.accumulate:
            old = torch.randint(-8, 9, (m, n), generator=self.generator)
            self.inputs["d"] = old.to(
                {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.dtype_d, torch.float32)
            )

    def _integers(self, rows: int, k: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """-2 .. 2 with scales 1/2, 1 and 2: every sum is exact in fp32."""
        values = torch.randint(-2, 3, (rows, k), generator=self.generator).float()
        scales = torch.randint(126, 129, (rows, -(-k // 32)), generator=self.generator).to(torch.uint8)
        return values, encoded(values, dtype), scales

    def _random(self, rows: int, k: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        values = torch.randn((rows, k), generator=self.generator)
        scales, inverse = scales_of(block_magnitudes(values, (1, 32)), dtype, True)
        stored = encoded(values * spread(inverse, (1, 32), values.shape), dtype)
        return values, stored, e8m0_of(scales)

    def sizes(self) -> dict[str, int]:
        return {"m": self.left.shape[0], "n": self.right.shape[0]}

    def unquantised(self) -> torch.Tensor:
        product = self.left.double() @ self.right.double().T
        return product * (ALPHA if self.spec.alpha else 1.0)


def check(spec: BlockScaledGemmSpec, cores: int, shape: tuple[int, int, int] = SHAPE) -> None:
    exact = Problem(spec, shape, exact=True)
    check_kernel(spec, cores, exact.inputs, sizes=exact.sizes())
    random = Problem(spec, shape, exact=False, seed=2)
    if spec.dtype_d == "e4m3":
        check_quantised(spec, cores, random)
        return
    actual = check_kernel(spec, cores, random.inputs, CalcDiff(1e-5), sizes=random.sizes())
    if not spec.accumulate:
        assert calc_diff(actual["d"], random.unquantised()) < quantisation_limit(spec)


def quantisation_limit(spec: BlockScaledGemmSpec) -> float:
    """Of calc_diff against the product of what the operands stood for."""
    return {0: 1e-3, 1: 1e-2, 2: 2e-2}[(spec.dtype_a, spec.dtype_b).count("e2m1")]


def check_quantised(spec: BlockScaledGemmSpec, cores: int, problem: Problem) -> None:
    """Sums in another order may round to the neighbouring e4m3 value: compare what the output stands for."""
    expected = reference_of(spec, problem.inputs)
    accept_all = {"d": CalcDiff(1.0), "sfd": CalcDiff(1.0)}
    actual = check_kernel(spec, cores, problem.inputs, accept_all, sizes=problem.sizes())
    blocks = actual["d"].shape[1] // 32
    values = dequantise(actual["d"], unpack_pairs(actual["sfd"], blocks), "e4m3")
    assert calc_diff(values, dequantise(expected["d"], unpack_pairs(expected["sfd"], blocks), "e4m3")) < 1e-5
    assert calc_diff(values, problem.unquantised()) < quantisation_limit(spec) + 1e-3


LAYOUTS = [("e4m3", "e4m3", layout) for layout in ("nt", "nn", "tn", "tt")] + [
    ("e2m1", "e2m1", "nt"),
    ("e4m3", "e2m1", "nt"),
    ("e4m3", "e2m1", "tt"),
]


@pytest.mark.parametrize(
    ("dtype_a", "dtype_b", "layout", "extents"),
    [
        (a, b, layout, extents)
        for a, b, layout in LAYOUTS
        for extents in ({}, DYNAMIC)
        if not extents or layout in ("nt", "tn")
    ],
    ids=str,
)
def test_product_agrees_for_every_pair_and_layout(
    dtype_a: str, dtype_b: str, layout: str, extents: dict[str, Any]
) -> None:
    index = LAYOUTS.index((dtype_a, dtype_b, layout))
    dtype_d = ("bf16", "fp32", "fp16")[index % 3]
    spec = spec_of(dtype_a=dtype_a, dtype_b=dtype_b, layout=layout, dtype_d=dtype_d, **extents)
    check(spec, CORES[index % 4])


@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": True, "dtype_d": "fp32"},
        {"accumulate": True, "dtype_d": "fp32", "dtype_a": "e2m1", "dtype_b": "e2m1"},
        {"accumulate": True, "alpha": True, "layout": "tn"},
        {"accumulate": True, "alpha": True, "dtype_b": "e2m1", "dtype_d": "fp16", "m": "dynamic"},
    ],
    ids=lambda fields: "-".join(map(str, fields)),
)
def test_accumulation_and_alpha_agree(fields: dict[str, Any]) -> None:
    check(spec_of(**fields), 4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"alpha": True, **DYNAMIC},
        {"dtype_b": "e2m1", "m": "dynamic"},
        {"dtype_a": "e2m1", "dtype_b": "e2m1"},
    ],
    ids=lambda fields: "-".join(map(str, fields)) or "static",
)
def test_a_quantised_result_has_a_scale_for_32_columns_and_a_zero_where_there_are_none(
    fields: dict[str, Any],
) -> None:
    check(spec_of(dtype_d="e4m3", **fields), 4)


@pytest.mark.parametrize("shape", [(1, 32, 32), (17, 96, 64), (33, 160, 1056)], ids=str)
@pytest.mark.parametrize("dtypes", [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e4m3", "e2m1")], ids=str)
def test_one_dynamic_kernel_serves_edge_shapes(dtypes: tuple[str, str], shape: tuple[int, int, int]) -> None:
    check(spec_of(dtype_a=dtypes[0], dtype_b=dtypes[1], **DYNAMIC), 28, shape)


@functools.cache
def special() -> tuple[BlockScaledGemmSpec, dict[str, Any]]:
    spec = spec_of(dtype_d="fp32", **DYNAMIC)
    return spec, Problem(spec, (48, 64, 192), exact=True).inputs


def test_extreme_scales_keep_their_powers() -> None:
    spec, given = special()
    a, b = unpack_pairs(given["sfa"], 6), unpack_pairs(given["sfb"], 6)
    a[0], b[0] = 0, 254  # 2^-127 and 2^127
    a[1], b[1] = 254, 0
    a[2:], b[2:] = 127, 127
    codes = {name: given[name].clone().view(torch.uint8) for name in ("a", "b")}
    # One summand each for the huge row and column: infinities of both signs do not meet.
    codes["a"][1, 1:], codes["b"][0, 1:] = 0, 0
    codes["a"][1, 0], codes["b"][0, 0] = 0x38, 0x38  # 1.0
    inputs = {name: bits.view(torch.float8_e4m3fn) for name, bits in codes.items()}
    inputs |= {"sfa": pack_pairs(a), "sfb": pack_pairs(b)}
    # Rounded to fp32, where a tiny negative number added to zero is plain zero.
    expected = reference_of(spec, inputs)["d"].float() + 0.0
    actual = check_kernel(spec, 4, inputs, expected={"d": expected})["d"]
    assert actual[0].isfinite().all()
    assert actual[0, 2:].abs().max() < 2.0**-110
    assert actual[1, 0].isinf()
    assert actual[1, 1].isfinite()


def test_a_scale_that_is_no_number_makes_its_row_no_number() -> None:
    spec, given = special()
    scales = unpack_pairs(given["sfa"], 6)
    scales[5, 3] = 255
    inputs = given | {"sfa": pack_pairs(scales)}
    assert decode_e8m0(scales)[5, 3].isnan()
    expected = reference_of(spec, inputs)["d"]
    assert expected[5].isnan().all()
    actual = check_kernel(spec, 4, inputs, EXACT)["d"]
    assert actual[5].isnan().all()
    assert actual.isnan().sum() == actual.shape[1]


def test_no_rows_are_no_work() -> None:
    spec = spec_of(**DYNAMIC)
    inputs = Problem(spec, (1, 64, 128), exact=True).inputs
    nothing = {"a": inputs["a"][:0], "sfa": inputs["sfa"][:, :0]}
    none = torch.empty(0, 64)
    actual = check_kernel(spec, 28, inputs | nothing, sizes={"m": 0}, expected={"d": none})
    assert actual["d"].shape == (0, 64)


def test_chosen_tiles_agree() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {},
        {"dtype_a": "e2m1", "dtype_b": "e2m1"},
        {"dtype_b": "e2m1"},
        {"dtype_d": "e4m3"},
    )
    for fields in cases:
        spec = BlockScaledGemmSpec(m="dynamic", n=320, k=1184, **fields)
        problem = Problem(spec, (140, 320, 1184), exact=True)
        check_kernel(spec, 32, problem.inputs)


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = spec_of(m="dynamic", dtype_d="fp32")
    inputs = Problem(spec, exact=False).inputs
    results = []
    for cores in CORES:
        d = aligned(torch.full((SHAPE[0], SHAPE[1]), torch.nan))
        kernel(spec, cores).launch(*(aligned(inputs[name]) for name in ("a", "b", "sfa", "sfb")), d)
        results.append(d)
    assert all(torch.equal(results[0], other) for other in results[1:])
