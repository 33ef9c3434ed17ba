"""gemm on the CPU twin against torch in float64, in eager order and under adversarial schedules."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.kernel_checks import EXACT, CalcDiff, check_kernel
from support.twin_kernels import TORCH_DTYPES, aligned, calc_diff, in_every_schedule, kernel

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.references.number_formats import dequantise, unpack_pairs

LAYOUTS = ("nt", "nn", "tn", "tt")
DTYPES = ("bf16", "fp16", "fp32")
ALIGNED = {"m": 192, "n": 320, "k": 128}
RAGGED = {"m": 187, "n": 333, "k": 104}
DYNAMIC: dict[str, Any] = {"m": "dynamic", "n": "dynamic", "k": "dynamic"}
# Every core owns several tiles and every tile several K steps: more than any ring has slots.
TILE = GemmTile(block_m=16, block_n=32, block_k=32)
ALPHA = 0.375


def base_cases() -> list[Any]:
    """dtype x layout x {aligned, ragged, dynamic}, with core counts and output dtypes in turn."""
    cases = []
    for index, (dtype, layout, (name, extents)) in enumerate(
        itertools.product(DTYPES, LAYOUTS, (("aligned", ALIGNED), ("ragged", RAGGED), ("dynamic", DYNAMIC)))
    ):
        cores, dtype_d = (28, 32, 36)[index % 3], DTYPES[(index // 3) % 3]
        cases.append(_case(f"{name}", cores, dtype, layout, dtype_d, extents))
    return cases


def epilogue_cases() -> list[Any]:
    """accumulate and alpha, alone and together, for every output dtype."""
    cases = []
    for index, (dtype_d, (accumulate, alpha), (name, extents)) in enumerate(
        itertools.product(
            DTYPES, ((True, False), (False, True), (True, True)), (("aligned", ALIGNED), ("ragged", RAGGED))
        )
    ):
        cores, dtype, layout = (28, 32, 36)[index % 3], DTYPES[index // 2 % 3], LAYOUTS[index % 4]
        cases.append(_case(name, cores, dtype, layout, dtype_d, extents, accumulate=accumulate, alpha=alpha))
    for cores in (28, 32, 36):
        cases.append(_case("dynamic", cores, "bf16", "nt", "bf16", DYNAMIC, accumulate=True, alpha=True))
        cases.append(_case("dynamic", cores, "bf16", "tn", "fp32", DYNAMIC, accumulate=True))
    return cases


def _case(
    name: str, cores: int, dtype: str, layout: str, dtype_d: str, extents: dict[str, Any], **more: Any
) -> Any:
    spec = GemmSpec(
        **extents, dtype_a=dtype, dtype_b=dtype, dtype_d=dtype_d, layout=layout, tile=TILE, **more
    )
    words = [name, layout, f"{dtype}-{dtype_d}", *(word for word, on in more.items() if on), f"{cores}cores"]
    return pytest.param(spec, cores, id="-".join(words))


class Product:
    """Inputs of one call and the product in float64."""

    def __init__(self, spec: GemmSpec, shape: tuple[int, int, int], *, integers: bool, seed: int) -> None:
        m, n, k = shape
        self._spec = spec
        generator = torch.Generator().manual_seed(seed)

        def values(*size: int) -> torch.Tensor:
            if integers:
                return torch.randint(-2, 3, size, generator=generator).float()
            return torch.randn(size, generator=generator)

        dtype = TORCH_DTYPES[spec.dtype_a]
        left, right = values(m, k).to(dtype), values(k, n).to(dtype)
        self.a = aligned((left.T if spec.layout[0] == "t" else left).contiguous())
        self.b = aligned((right.T if spec.layout[1] == "t" else right).contiguous())
        self.old = values(m, n).to(TORCH_DTYPES[spec.dtype_d])
        expected = left.double() @ right.double()
        if spec.alpha:
            expected = expected * ALPHA
        if spec.accumulate:
            expected = expected + self.old.double()
        self.expected = expected

    def arguments(self) -> tuple[Any, ...]:
        """Call arguments with a fresh D: the old values, or NaN where nothing may be read."""
        d = aligned(self.old.clone() if self._spec.accumulate else torch.full_like(self.old, torch.nan))
        return (self.a, self.b, d, ALPHA) if self._spec.alpha else (self.a, self.b, d)


def check(spec: GemmSpec, cores: int, shape: tuple[int, int, int]) -> None:
    """Small integers must come out to the last bit; random values within calc_diff 1e-5."""
    built = kernel(spec, cores)
    exact = Product(spec, shape, integers=True, seed=1)
    random = Product(spec, shape, integers=False, seed=2)

    def run() -> None:
        arguments = exact.arguments()
        built.launch(*arguments)
        assert torch.equal(arguments[2], exact.expected.to(arguments[2].dtype))
        arguments = random.arguments()
        built.launch(*arguments)
        assert calc_diff(arguments[2], random.expected) < 1e-5

    in_every_schedule(run)


def extents_of(spec: GemmSpec, dynamic: dict[str, int]) -> tuple[int, int, int]:
    m, n, k = (dynamic[name] if getattr(spec, name) == "dynamic" else getattr(spec, name) for name in "mnk")
    return m, n, k


@pytest.mark.parametrize(("spec", "cores"), base_cases())
def test_product_agrees_in_every_layout_dtype_and_shape(spec: GemmSpec, cores: int) -> None:
    check(spec, cores, extents_of(spec, RAGGED))


@pytest.mark.parametrize(("spec", "cores"), epilogue_cases())
def test_accumulation_and_alpha_agree(spec: GemmSpec, cores: int) -> None:
    check(spec, cores, extents_of(spec, RAGGED))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 40, 33), (17, 1, 16), (16, 32, 1), (15, 31, 32), (33, 65, 31)], ids=str
)
@pytest.mark.parametrize("epilogue", [False, True], ids=["plain", "alpha-accumulate"])
@pytest.mark.parametrize(("dtype", "layout"), [("bf16", "nt"), ("fp16", "tn"), ("fp32", "nn")])
def test_one_dynamic_kernel_serves_every_edge_shape(
    dtype: str, layout: str, epilogue: bool, shape: tuple[int, int, int]
) -> None:
    spec = GemmSpec(
        **DYNAMIC,
        dtype_a=dtype,
        dtype_b=dtype,
        dtype_d=dtype,
        layout=layout,
        tile=TILE,
        accumulate=epilogue,
        alpha=epilogue,
    )
    check(spec, 28, shape)


@pytest.mark.parametrize(
    "spec",
    [
        GemmSpec(m=1, n=512, k=384),
        GemmSpec(m="dynamic", n=500, k=600, layout="nn"),
        GemmSpec(m=300, n=520, k=600, dtype_a="fp32", dtype_b="fp32", dtype_d="fp32", layout="tt"),
        GemmSpec(m=300, n=520, k=600, accumulate=True, alpha=True, layout="tn"),
        GemmSpec(m=768, n=640, k=512, dtype_d="fp32", accumulate=True),
    ],
    ids=["one-row", "dynamic-rows", "fp32", "epilogue", "atomic"],
)
@pytest.mark.parametrize("cores", [4, 32])
def test_chosen_tiles_agree(spec: GemmSpec, cores: int) -> None:
    check(spec, cores, extents_of(spec, {"m": 270}))


@pytest.mark.parametrize("tiles", [1, 27, 28, 29, 56, 57])
def test_any_number_of_tiles_is_shared_out_exactly_once(tiles: int) -> None:
    # Accumulating shows a tile that two cores wrote as well as one that none wrote.
    spec = GemmSpec(m=16 * tiles, n=32, k=32, dtype_d="fp32", accumulate=True, tile=TILE)
    check(spec, 28, extents_of(spec, {}))


def test_no_rows_leave_everything_alone() -> None:
    spec = GemmSpec(**DYNAMIC, tile=TILE)
    empty = torch.empty((0, 64), dtype=torch.bfloat16)
    kernel(spec, 28).launch(
        empty, torch.ones((32, 64), dtype=torch.bfloat16), torch.empty((0, 32), dtype=torch.bfloat16)
    )


def test_infinities_and_nans_pass_through_both_epilogues() -> None:
    for alpha in (False, True):
        spec = GemmSpec(**DYNAMIC, dtype_a="fp16", dtype_b="fp16", dtype_d="fp16", tile=TILE, alpha=alpha)
        a = torch.ones((3, 16), dtype=torch.float16)
        a[0, 0], a[1, 0] = torch.inf, torch.nan
        a[2] = 60000.0
        d = aligned(torch.zeros((3, 8), dtype=torch.float16))
        arguments = (aligned(a), aligned(torch.ones((8, 16), dtype=torch.float16)), d)
        kernel(spec, 28).launch(*arguments, *((1.0,) if alpha else ()))
        assert torch.isinf(d[0]).all()
        assert torch.isnan(d[1]).all()
        assert torch.isinf(d[2]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("extents", "layout", "alpha"), [(RAGGED | {"n": 224}, "nt", False), (DYNAMIC, "tn", True)], ids=str
)
def test_a_quantised_result_has_a_scale_for_32_columns(
    dtype: str, extents: dict[str, Any], layout: str, alpha: bool
) -> None:
    tile = GemmTile(block_m=16, block_n=64, block_k=32)
    spec = GemmSpec(
        **extents, dtype_a=dtype, dtype_b=dtype, dtype_d="e4m3", layout=layout, alpha=alpha, tile=tile
    )
    generator = torch.Generator().manual_seed(5)
    m, n, k = extents_of(spec, {"m": 91, "n": 224, "k": 104})
    for draw, compare in ((_integers, EXACT), (torch.randn, CalcDiff(1.0))):
        a = draw((k, m) if layout[0] == "t" else (m, k), generator=generator).to(TORCH_DTYPES[dtype])
        b = draw((n, k) if layout[1] == "t" else (k, n), generator=generator).to(TORCH_DTYPES[dtype])
        inputs: dict[str, Any] = {"a": a, "b": b} | ({"alpha": ALPHA} if alpha else {})
        actual = check_kernel(spec, 28, inputs, compare)
        values = dequantise(actual["d"], unpack_pairs(actual["sfd"], n // 32), "e4m3")
        wide = (a.T if layout[0] == "t" else a).double() @ (b.T if layout[1] == "t" else b).double()
        assert calc_diff(values, wide * (ALPHA if alpha else 1.0)) < 1e-3


def _integers(size: tuple[int, int], *, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-2, 3, size, generator=generator).float()
