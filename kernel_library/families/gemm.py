"""gemm: D[M, N] = (alpha *) A @ B (+ D) on the cube cores, fp32 accumulation, plain or quantised result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kaas.kernel_library.cube.gemm_fields import (
    MAX_EXTENT,
    QUANTISED_BLOCK,
    QUANTISED_PAIR,
    GemmDim,
    GemmTile,
    require_multiple,
    require_tile,
)
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dtype,
    KernelSpec,
    require_bool,
    require_dim,
    require_one_of,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

if TYPE_CHECKING:
    from kaas.kernel_library.cube.gemm_tiles import GemmProblem

# The program and its tiles are imported late, and their modules spelt out: a rank that gets a product which
# the node has needs neither.
SOURCES = (
    "kaas.kernel_library.choice",
    "kaas.kernel_library.cube.cube_pipeline",
    "kaas.kernel_library.cube.gemm_fields",
    "kaas.kernel_library.cube.gemm_program",
    "kaas.kernel_library.cube.gemm_tiles",
    "kaas.kernel_library.cube.quantised_epilogue",
    "kaas.kernel_library.entry",
    "kaas.kernel_library.vector.block_values",
    "kaas.kernel_library.vector.quantise",
    "kaas.kernel_library.vector.row_plan",
)

DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
"""Legal inputs, and legal outputs of each: the accumulator is fp32 and can be rounded to any of them."""


class GemmSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gemm"):
    """Dense matrix product on one NPU.

    Layouts give the stored shapes: ``nt`` A[M,K] B[N,K]; ``nn`` A[M,K] B[K,N]; ``tn`` A[K,M] B[K,N];
    ``tt`` A[K,M] B[N,K]. D is always [M,N], row-major. ``accumulate`` adds the product to the D passed in;
    ``alpha`` adds an fp32 scalar argument that multiplies the product. ``tile`` overrides the tile choice.
    The result is rounded once, from fp32, to ``dtype_d``; e4m3 makes it block-scaled, with scales ``sfd`` for
    32 consecutive N, and then ``n`` is a multiple of 32.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    m: GemmDim = "dynamic"
    n: GemmDim
    k: GemmDim
    dtype_a: Dtype = "bf16"
    dtype_b: Dtype = "bf16"
    dtype_d: Dtype | Literal["e4m3"] = "bf16"
    layout: Literal["nt", "nn", "tn", "tt"] = "nt"
    accumulate: bool = False
    alpha: bool = False
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        for field in ("m", "n", "k"):
            require_dim(getattr(self, field), field, MAX_EXTENT)
        for field in ("dtype_a", "dtype_b"):
            require_one_of(getattr(self, field), field, DTYPES)
        require_one_of(self.dtype_d, "dtype_d", (*DTYPES, "e4m3"))
        if self.dtype_b != self.dtype_a:
            raise InvalidSpec(
                f"dtype_b is {self.dtype_b} but dtype_a is {self.dtype_a}; the cube takes equal input dtypes",
                field="dtype_b",
                legal=[self.dtype_a],
            )
        require_one_of(self.layout, "layout", ("nt", "nn", "tn", "tt"))
        require_bool(self.accumulate, "accumulate")
        require_bool(self.alpha, "alpha")
        require_tile(self.tile)
        if self.dtype_d == "e4m3":
            require_multiple(self.n, "n", QUANTISED_BLOCK)
            require_one_of(self.accumulate, "accumulate", (False,))
            if self.tile is not None:
                require_multiple(self.tile.block_n, "tile.block_n", QUANTISED_PAIR)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        from kaas.kernel_library.cube.gemm_tiles import require_fit

        require_fit(problem_of(self), target, self.tile)


def problem_of(spec: GemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``."""
    from kaas.kernel_library.cube.gemm_tiles import GemmProblem
    from kaas.kernel_library.cube.quantised_epilogue import widest_row_bytes

    m, n, k = (None if extent == DYNAMIC else int(extent) for extent in (spec.m, spec.n, spec.k))
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        input_bytes=DTYPE_BYTES[spec.dtype_a],
        output_bytes=DTYPE_BYTES[spec.dtype_d],
        vector_epilogue=uses_vector_epilogue(spec),
        reads_output=spec.accumulate,
        # Two scales of the result, for 32 columns each, are written as one.
        n_multiple=QUANTISED_PAIR if spec.dtype_d == "e4m3" else 16,
        result_row_bytes=widest_row_bytes() if spec.dtype_d == "e4m3" else 0,
    )


def uses_vector_epilogue(spec: GemmSpec) -> bool:
    """Whether the result passes the vector cores.

    They apply ``alpha``, they quantise, and they add D when D is narrower than the accumulator: an atomic
    store would round the product before the addition, so that the sum would be rounded twice. An fp32 D needs
    no rounding and is added to by the store itself; every element has one writer, so that every run gives the
    same bits.
    """
    return spec.alpha or spec.dtype_d == "e4m3" or (spec.accumulate and spec.dtype_d != "fp32")


def build(spec: GemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    One block per cube core walks its share of the output tiles on the rings of
    :mod:`kaas.kernel_library.cube.cube_pipeline`. The fixpipe stores a tile's accumulator or hands it to the
    two vector cores through UB.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
    from kaas.kernel_library.cube.gemm_program import gemm_program
    from kaas.kernel_library.cube.gemm_tiles import effective_tiles, explain_tiles

    problem = problem_of(spec)
    tiles = effective_tiles(problem, target, spec.tile)
    return BuiltKernel(
        prim_func=gemm_program(spec, tiles, target.cube_cores),
        choices={
            **msgspec.to_builtins(tiles),
            "why": explain_tiles(problem, target, tiles, given=spec.tile is not None),
        },
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: GemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, d, its scales sfd if it has any, and alpha if asked for."""
    m: Extent = "m" if spec.m == DYNAMIC else spec.m
    n: Extent = "n" if spec.n == DYNAMIC else spec.n
    k: Extent = "k" if spec.k == DYNAMIC else spec.k
    taken = [
        Parameter(name="a", role="in", dtype=spec.dtype_a, shape=_a_shape(spec.layout, m, k)),
        Parameter(name="b", role="in", dtype=spec.dtype_b, shape=_b_shape(spec.layout, n, k)),
        Parameter(name="d", role="inout" if spec.accumulate else "out", dtype=spec.dtype_d, shape=(m, n)),
    ]
    if spec.dtype_d == "e4m3":
        taken.append(Parameter(name="sfd", role="out", dtype="e8m0x2", shape=(divided(n, QUANTISED_PAIR), m)))
    if spec.alpha:
        taken.append(Parameter(name="alpha", role="scalar", dtype="fp32"))
    return tuple(taken)


def _a_shape(layout: str, m: Any, k: Any) -> tuple[Any, Any]:
    return (k, m) if layout[0] == "t" else (m, k)


def _b_shape(layout: str, n: Any, k: Any) -> tuple[Any, Any]:
    return (n, k) if layout[1] == "t" else (k, n)


PAGE = KernelPage(
    computes=(
        "D[m,n] = (alpha *) sum over k of A[m,k] * B[k,n] (+ D[m,n]). Sums are fp32; the result is rounded "
        "once, to nearest even and without saturation.\n\n"
        "With `dtype_d` e4m3 the fp32 result is quantised: 32 consecutive N of a row share the scale "
        "`2^ceil(log2(max(amax, 1e-4) / 448))`, and values are rounded to nearest even."
    ),
    arguments={
        "a": "[M, K] (layouts n.) or [K, M] (t.), row-major",
        "b": "[N, K] (.t) or [K, N] (.n), row-major",
        "d": "the result [M, N], row-major; with `accumulate` also what the product is added to",
        "sfd": "scale pairs of an e4m3 result: [ceil(N/64), M], the first 32 N in the low byte",
        "alpha": "multiplies the product",
    },
    tolerance=(
        "small integers to the last bit, the quantised form included; random values within calc_diff 1e-5 of "
        "the product in float64 (1e-3 with `dtype_d` e4m3, whose values have 3 bits)"
    ),
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (bf16_gemm, epilogues)",
        "asc-devkit, docs/zh/api: asc_mmad, asc_copy_l0c2gm, asc_copy_gm2l1_nd2nz",
    ),
    serves=(*(f"deep_gemm.bf16_gemm_{layout}" for layout in ("nt", "nn", "tn", "tt")), "deep_gemm.epilogue"),
    examples=(
        GemmSpec(n=7168, k=2048),
        GemmSpec(m=4096, n=4096, k=4096, dtype_d="fp32", accumulate=True, layout="tn"),
        GemmSpec(n=4096, k=7168, dtype_a="fp16", dtype_b="fp16", dtype_d="fp16", alpha=True, accumulate=True),
        GemmSpec(n=4096, k=512, dtype_a="fp32", dtype_b="fp32", dtype_d="fp32", layout="nn"),
        GemmSpec(n=2048, k=7168, dtype_d="e4m3"),
    ),
)

FAMILY = Family(
    name="gemm",
    summary="matrix product of bf16, fp16 or fp32, any layout, fp32 accumulation, plain or quantised result",
    spec_type=GemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=SOURCES,
    page=PAGE,
)
