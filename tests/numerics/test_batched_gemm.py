"""batched_gemm on the CPU twin against torch.einsum in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel, reference_of
from support.scaled_values import scaled_operand
from support.twin_kernels import TORCH_DTYPES, calc_diff

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.batched_gemm import EXPRESSIONS, BatchedGemmSpec, form_of
from kaas.kernel_library.references.number_formats import dequantise, pack_pairs, unpack_pairs

# Every core owns several tiles and every tile several K steps: more than any ring has slots.
TILE = GemmTile(block_m=16, block_n=32, block_k=32)
CLOSE = CalcDiff(1e-5)
RAGGED = {"b": 83, "h": 3, "d": 104, "r": 171}
ALIGNED = {"b": 96, "h": 4, "d": 96, "r": 160}
DYNAMIC: dict[str, Any] = {"b": "dynamic", "h": "dynamic", "d": "dynamic", "r": "dynamic"}


def inputs(spec: BatchedGemmSpec, sizes: dict[str, int], *, integers: bool) -> dict[str, torch.Tensor]:
    """a, b and, to be added to, d."""
    form = form_of(spec.expression)
    generator = torch.Generator().manual_seed(sum(sizes.values()))
    dtypes = {"a": spec.dtype_a, "b": spec.dtype_a, "d": spec.dtype_d}
    made = {}
    for name, letters in (("a", form.a), ("b", form.b), ("d", form.d)):
        shape = tuple(sizes[letter] for letter in letters)
        values = (
            torch.randint(-2, 3, shape, generator=generator).float()
            if integers
            else torch.randn(shape, generator=generator)
        )
        if name != "d" or spec.accumulate:
            made[name] = values.to(TORCH_DTYPES[dtypes[name]])
    return made


def sizes_of(spec: BatchedGemmSpec, dynamic: dict[str, int]) -> dict[str, int]:
    return {
        letter: dynamic[letter] if getattr(spec, letter) == "dynamic" else getattr(spec, letter)
        for letter in "bhdr"
    }


def check(spec: BatchedGemmSpec, cores: int, dynamic: dict[str, int]) -> None:
    """Small integers must come out to the last bit; random values within calc_diff 1e-5."""
    sizes = sizes_of(spec, dynamic)
    bound = {f"extent_{letter}": size for letter, size in sizes.items()}
    check_kernel(spec, cores, inputs(spec, sizes, integers=True), EXACT, sizes=bound)
    check_kernel(spec, cores, inputs(spec, sizes, integers=False), CLOSE, sizes=bound)


def cases() -> list[Any]:
    """expression x extents, with dtypes, epilogues and core counts in turn."""
    found = []
    extents = (("aligned", ALIGNED), ("ragged", RAGGED), ("dynamic", DYNAMIC))
    for index, (expression, (name, sizes)) in enumerate(itertools.product(EXPRESSIONS, extents)):
        dtype_d, cores, accumulate = ("bf16", "fp32")[index % 2], (28, 32, 36)[index % 3], index % 4 > 1
        spec = BatchedGemmSpec(
            expression=expression, **sizes, dtype_d=dtype_d, accumulate=accumulate, tile=TILE
        )
        words = [expression, name, dtype_d, *(["accumulate"] if accumulate else []), f"{cores}cores"]
        found.append(pytest.param(spec, cores, id="-".join(words)))
    return found


@pytest.mark.parametrize(("spec", "cores"), cases())
def test_every_form_agrees_in_every_kind_of_shape(spec: BatchedGemmSpec, cores: int) -> None:
    check(spec, cores, RAGGED)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_fp16_agrees_with_few_cores(expression: str) -> None:
    spec = BatchedGemmSpec(
        expression=expression, h=3, d=48, r=80, dtype_a="fp16", dtype_d="fp16", accumulate=True, tile=TILE
    )
    check(spec, 4, {"b": 70})


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_one_dynamic_kernel_serves_every_edge_shape(expression: str) -> None:
    spec = BatchedGemmSpec(expression=expression, **DYNAMIC, dtype_d="bf16", accumulate=False, tile=TILE)
    for b, h, d, r in ((1, 1, 1, 1), (1, 5, 17, 33), (40, 1, 1, 16), (31, 37, 16, 1)):
        sizes = {"b": b, "h": h, "d": d, "r": r}
        bound = {f"extent_{letter}": size for letter, size in sizes.items()}
        check_kernel(spec, 28, inputs(spec, sizes, integers=True), EXACT, sizes=bound)


@pytest.mark.parametrize("accumulate", [False, True])
def test_no_tokens_sum_to_zero(accumulate: bool) -> None:
    spec = BatchedGemmSpec(expression="bhd,bhr->hdr", h=5, d=40, r=72, accumulate=accumulate, tile=TILE)
    check_kernel(spec, 28, inputs(spec, {"b": 0, "h": 5, "d": 40, "r": 72}, integers=True), EXACT)


SCALED_TILE = GemmTile(block_m=32, block_n=64, block_k=128)
SCALED_SIZES = {"b": 150, "h": 3, "d": 96, "r": 288}


def scaled_inputs(spec: BatchedGemmSpec, sizes: dict[str, int], *, integers: bool) -> dict[str, torch.Tensor]:
    """a, b, sfa and sfb of a block-scaled call, and d if it is added to."""
    form = form_of(spec.expression)
    generator = torch.Generator().manual_seed(sum(sizes.values()))
    given = {}
    for name, letters, rows in (("a", form.a, form.rows), ("b", form.b, form.cols)):
        heads = [
            scaled_operand(sizes[rows], sizes[form.sums], "e4m3", generator, integers=integers)
            for _ in range(sizes["h"])
        ]
        stacked = torch.stack([values.view(torch.uint8) for values, _ in heads])
        order = [f"h{rows}{form.sums}".index(letter) for letter in letters]
        given[name] = stacked.permute(order).contiguous().view(torch.float8_e4m3fn)
        given[f"sf{name}"] = torch.stack([pack_pairs(scales) for _, scales in heads])
    if spec.accumulate:
        shape = tuple(sizes[letter] for letter in form.d)
        given["d"] = torch.randint(-8, 9, shape, generator=generator).to(TORCH_DTYPES[spec.dtype_d])
    return given


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_block_scaled_products_agree(expression: str, accumulate: bool) -> None:
    index = EXPRESSIONS.index(expression) + accumulate
    extents: dict[str, Any] = DYNAMIC if accumulate else {"h": 3, "d": 96, "r": 288}
    spec = BatchedGemmSpec(
        expression=expression,
        **extents,
        dtype_a="e4m3",
        dtype_d=("bf16", "fp32")[index % 2],
        accumulate=accumulate,
        tile=SCALED_TILE,
    )
    cores = (4, 28, 32, 36)[index]
    bound = {f"extent_{letter}": size for letter, size in SCALED_SIZES.items()}
    check_kernel(spec, cores, scaled_inputs(spec, SCALED_SIZES, integers=True), EXACT, sizes=bound)
    check_kernel(spec, cores, scaled_inputs(spec, SCALED_SIZES, integers=False), CLOSE, sizes=bound)


@pytest.mark.parametrize("tile", [SCALED_TILE, None], ids=["given", "chosen"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_quantised_results_agree(expression: str, tile: GemmTile | None) -> None:
    spec = BatchedGemmSpec(expression=expression, h=3, d=96, r=288, dtype_a="e4m3", dtype_d="e4m3", tile=tile)
    given = scaled_inputs(spec, SCALED_SIZES, integers=True)
    check_kernel(spec, 28, given, EXACT, sizes={"extent_b": 150})
    # Sums in another order may round to the neighbouring e4m3 value: compare what the output stands for.
    given = scaled_inputs(spec, SCALED_SIZES, integers=False)
    accept_all = {"d": CalcDiff(1.0), "sfd": CalcDiff(1.0)}
    actual = check_kernel(spec, 28, given, accept_all, sizes={"extent_b": 150})
    assert calc_diff(meaning(spec, actual), meaning(spec, reference_of(spec, given))) < 1e-5


def meaning(spec: BatchedGemmSpec, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The values that a quantised D stands for, [h, rows, columns]."""
    form = form_of(spec.expression)
    bytes_of = outputs["d"].view(torch.uint8)
    order = [form.d.index(letter) for letter in ("h", form.rows, form.cols)]
    stored = bytes_of.permute(order).contiguous().view(torch.float8_e4m3fn)
    blocks = stored.shape[2] // 32
    return torch.stack(
        [
            dequantise(values, unpack_pairs(scales, blocks), "e4m3")
            for values, scales in zip(stored, outputs["sfd"], strict=True)
        ]
    )


@pytest.mark.parametrize("expression", EXPRESSIONS[:2])
def test_no_tokens_are_no_work(expression: str) -> None:
    spec = BatchedGemmSpec(expression=expression, h=5, d=40, r=72, tile=TILE)
    outputs = check_kernel(spec, 28, inputs(spec, {"b": 0, "h": 5, "d": 40, "r": 72}, integers=True), EXACT)
    assert outputs["d"].numel() == 0


@pytest.mark.parametrize(("expression", "cores"), list(zip(EXPRESSIONS, (4, 28, 32), strict=True)))
def test_chosen_tiles_agree(expression: str, cores: int) -> None:
    check(BatchedGemmSpec(expression=expression, h=6, d=128, r=320), cores, {"b": 150})


def test_heads_do_not_see_each_other() -> None:
    # An infinity or a NaN stays in its own head, also in rows and columns that a tile reads beyond its end.
    spec = BatchedGemmSpec(expression="bhr,hdr->bhd", **DYNAMIC, tile=TILE)
    sizes = {"b": 21, "h": 3, "d": 40, "r": 50}
    given = inputs(spec, sizes, integers=True)
    given["a"][:, 1] = torch.inf
    given["b"][1] = 1.0
    given["a"][3, 2] = torch.nan
    check_kernel(spec, 28, given, EXACT)


def test_tiles_follow_the_number_of_heads() -> None:
    from kaas.kernel_library.families.batched_gemm import tiles_of
    from kaas.kernel_library.targets import target_named

    target = target_named("Ascend950DT_9581")
    few, many = (
        tiles_of(BatchedGemmSpec(expression="bhr,hdr->bhd", b=256, h=h, d=256, r=512), target)
        for h in (1, 256)
    )
    assert few.block_m * few.block_n < many.block_m * many.block_n
