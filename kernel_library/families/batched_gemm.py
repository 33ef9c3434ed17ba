"""batched_gemm: one matrix product per head, in three einsum forms, fp32 accumulation."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS, tile_origin, tile_walk
from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.cube.gemm_tiles import (
    GemmProblem,
    GemmTiles,
    choose_tiles,
    explain_tiles,
    tiles_for_blocks,
)
from kaas.kernel_library.cube.matrix_views import Slab
from kaas.kernel_library.cube.product_operands import ProductOperands, require_whole_blocks
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.cube.stacked_product import STACKED_PRODUCT_SOURCES, Place, stacked_product
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    KernelSpec,
    require_bool,
    require_dim,
    require_one_of,
    within,
)
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter, Role
from kaas.proto.target import Target

EXPRESSIONS = ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr")
HEAD = "h"
TOKENS = "b"
MAX_CONSTANT = {"b": 2**16, "h": 2**8, "d": 2**14, "r": 2**14}
"""Of constant extents: 256 rows then span fewer than 2^31 elements, as TileLang's literals must."""
NOMINAL_HEADS = 16
"""What a dynamic number of heads is taken to be when tiles are chosen."""


class BatchedGemmSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="batched_gemm"):
    """One product per head h of tensors whose letters ``expression`` names, as in torch.einsum.

    ``b`` counts tokens, ``h`` heads, ``d`` and ``r`` are the two widths. ``dtype_a`` is that of both
    operands; e4m3 ones are block-scaled: 32 consecutive values along the summed letter share an e8m0 scale,
    and a summed width is a multiple of 32. ``dtype_d`` e4m3 makes D block-scaled itself, along its last
    letter, a multiple of 32. ``accumulate`` adds to the D passed in. ``tile`` overrides the tile choice: of
    the product's rows, columns and sum. The result is rounded once, from fp32, to ``dtype_d``.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    expression: Literal["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"]
    b: Annotated[int, within(1, 2**16)] | Literal["dynamic"] = "dynamic"
    h: Annotated[int, within(1, 2**8)] | Literal["dynamic"]
    d: Annotated[int, within(1, 2**14)] | Literal["dynamic"]
    r: Annotated[int, within(1, 2**14)] | Literal["dynamic"]
    dtype_a: Literal["bf16", "fp16", "e4m3"] = "bf16"
    dtype_d: Literal["bf16", "fp16", "fp32", "e4m3"] = "bf16"
    accumulate: bool = False
    tile: GemmTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.expression, "expression", EXPRESSIONS)
        for field, high in MAX_CONSTANT.items():
            require_dim(getattr(self, field), field, high)
        require_one_of(self.dtype_a, "dtype_a", ("bf16", "fp16", "e4m3"))
        results = ("bf16", "fp16", "fp32", "e4m3") if self.dtype_a == "e4m3" else ("bf16", "fp16", "fp32")
        require_one_of(self.dtype_d, "dtype_d", results)
        require_bool(self.accumulate, "accumulate")
        form = form_of(self.expression)
        if self.dtype_a == "e4m3" and form.sums != TOKENS:
            require_whole_blocks(getattr(self, form.sums), form.sums)
        if self.dtype_d == "e4m3":
            require_whole_blocks(getattr(self, form.cols), form.cols)
            require_one_of(self.accumulate, "accumulate", (False,))
        operands_of(self).require_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


class Form(msgspec.Struct, frozen=True):
    """An expression as a matrix product: the letters of the operands, and which are rows, columns and sum."""

    a: str
    b: str
    d: str
    rows: str
    cols: str
    sums: str

    @property
    def a_k_major(self) -> bool:
        """Whether A's sum comes before its rows in memory."""
        return self.a.index(self.sums) < self.a.index(self.rows)

    @property
    def b_k_major(self) -> bool:
        """Whether B's sum comes before its columns in memory."""
        return self.b.index(self.sums) < self.b.index(self.cols)


def form_of(expression: str) -> Form:
    """The product that ``expression`` asks for, head by head."""
    operands, _, d = expression.partition("->")
    a, _, b = operands.partition(",")
    (rows,) = set(a) - set(b)
    (cols,) = set(b) - set(a)
    (sums,) = set(a) & set(b) - {HEAD}
    return Form(a, b, d, rows, cols, sums)


def operands_of(spec: BatchedGemmSpec) -> ProductOperands:
    """The operands of each head's product."""
    form = form_of(spec.expression)
    return ProductOperands(
        dtype_a=spec.dtype_a,
        dtype_b=spec.dtype_a,
        dtype_d=spec.dtype_d,
        a_k_major=form.a_k_major,
        b_k_major=form.b_k_major,
        accumulate=spec.accumulate,
    )


def problem_of(spec: BatchedGemmSpec) -> GemmProblem:
    """What tile choice needs to know of ``spec``."""
    form = form_of(spec.expression)
    m, n, k = (_constant(spec, letter) for letter in (form.rows, form.cols, form.sums))
    return operands_of(spec).problem(m, n, k, _constant(spec, HEAD) or NOMINAL_HEADS)


def _constant(spec: BatchedGemmSpec, letter: str) -> int | None:
    extent = getattr(spec, letter)
    return None if extent == DYNAMIC else int(extent)


def tiles_of(spec: BatchedGemmSpec, target: Target) -> GemmTiles:
    """The effective tiles: ``spec.tile`` completed, or the chosen ones. Raises :class:`DoesNotFit`."""
    problem = problem_of(spec)
    if spec.tile is None:
        return choose_tiles(problem, target)
    return tiles_for_blocks(problem, target, spec.tile.block_m, spec.tile.block_n, spec.tile.block_k)


def build(spec: BatchedGemmSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    The tiles of all heads form one sequence that the cores take in turn. Raises :class:`DoesNotFit` if no
    tile fits.
    """
    tiles = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={
            **msgspec.to_builtins(tiles),
            "why": explain_tiles(problem_of(spec), target, tiles, given=spec.tile is not None),
        },
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: BatchedGemmSpec) -> tuple[Parameter, ...]:
    """What a call takes: a, b, the scales sfa and sfb of e4m3 operands, d and the scales sfd of an e4m3 one.

    Operands have the letters of the expression as their axes. Scales are [h, pairs along the sum, rows].
    """
    form = form_of(spec.expression)
    # A sum over nothing is zero: plain operands without elements still make a D.
    may_be_empty = getattr(spec, form.sums) == DYNAMIC and spec.dtype_a != "e4m3"
    a, b = (
        Parameter(
            name=name, role="in", dtype=spec.dtype_a, shape=_shape(spec, letters), may_be_empty=may_be_empty
        )
        for name, letters in (("a", form.a), ("b", form.b))
    )
    taken = [a, b]
    if spec.dtype_a == "e4m3":
        taken.append(_scales(spec, "sfa", "in", form.sums, form.rows))
        taken.append(_scales(spec, "sfb", "in", form.sums, form.cols))
    role: Role = "inout" if spec.accumulate else "out"
    taken.append(Parameter(name="d", role=role, dtype=spec.dtype_d, shape=_shape(spec, form.d)))
    if spec.dtype_d == "e4m3":
        taken.append(_scales(spec, "sfd", "out", form.cols, form.rows))
    return tuple(taken)


def _scales(spec: BatchedGemmSpec, name: str, role: Role, along: str, rows: str) -> Parameter:
    shape = (_extent(spec, HEAD), divided(_extent(spec, along), PAIR), _extent(spec, rows))
    return Parameter(name=name, role=role, dtype="e8m0x2", shape=shape)


def _shape(spec: BatchedGemmSpec, letters: str) -> tuple[Extent, ...]:
    return tuple(_extent(spec, letter) for letter in letters)


def _extent(spec: BatchedGemmSpec, letter: str) -> Extent:
    """A letter's extent; a dynamic one has a name that is no tensor's."""
    extent: Extent = getattr(spec, letter)
    return f"extent_{letter}" if extent == DYNAMIC else extent


def _program(spec: BatchedGemmSpec, tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    form = form_of(spec.expression)
    entry = Entry("batched_gemm", parameters(spec))
    heads, m, n, k = (
        entry.extent(_extent(spec, letter)) for letter in (HEAD, form.rows, form.cols, form.sums)
    )
    m_tiles, n_tiles = T.ceildiv(m, tiles.block_m), T.ceildiv(n, tiles.block_n)
    k_is_dynamic = getattr(spec, form.sums) == DYNAMIC
    # A dynamic sum over nothing still runs one step over zero-filled L1, so that D becomes zero.
    k_steps = T.max(T.ceildiv(k, tiles.block_k), 1) if k_is_dynamic else -(-k // tiles.block_k)
    one_head = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
    row_of, col_of = tile_origin(getattr(spec, form.rows)), tile_origin(getattr(spec, form.cols))

    @T.macro
    def head_of(tile: Any, per_head: Any) -> Any:
        head = T.alloc_var("int32")
        head = T.truncdiv(tile, per_head)
        T.assume(head >= 0)
        T.assume(head < heads)
        return head

    def result(call: Any, head: Any) -> Any:
        d = Slab(call.d, form.d.index(HEAD), head)
        return (d, Slab(call.sfd, 0, head)) if spec.dtype_d == "e4m3" else d

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        per_head = T.alloc_var("int32")
        turns = T.alloc_var("int32")
        per_head = m_tiles * n_tiles
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(heads * per_head + cores - 1 - core, cores)
        for turn in T.serial(turns):
            tile = T.alloc_var("int32")
            tile = turn * cores + core
            head = head_of(tile, per_head)
            tile_row, tile_col = one_head.place_of(T.truncmod(tile, per_head))
            place = Place(
                a=Slab(call.a, form.a.index(HEAD), head),
                b=Slab(call.b, form.b.index(HEAD), head),
                d=result(call, head),
                sfa=Slab(call.sfa, 0, head),
                sfb=Slab(call.sfb, 0, head),
                row=row_of(tile_row, m_tiles, tiles.block_m),
                col=col_of(tile_col, n_tiles, tiles.block_n),
                k_first=0,
                k_length=k,
                k_steps=k_steps,
            )
            visit(turn, place)

    return stacked_product(
        entry,
        tiles,
        cores,
        operands_of(spec),
        walk,
        columns=n,
        ragged=k_is_dynamic or k % tiles.block_k != 0,
    )


PAGE = KernelPage(
    computes=(
        "For every head h, a matrix product of what the letters say, summed in fp32 and rounded once:\n\n"
        "- `bhr,hdr->bhd`: D[b,h,d] = sum over r of A[b,h,r] * B[h,d,r]\n"
        "- `bhd,hdr->bhr`: D[b,h,r] = sum over d of A[b,h,d] * B[h,d,r]\n"
        "- `bhd,bhr->hdr`: D[h,d,r] = sum over b of A[b,h,d] * B[b,h,r]\n\n"
        "With `accumulate` the product is added to the D passed in. Without tokens the third form sums to "
        "zero.\n\n"
        "An element of an e4m3 operand stands for its stored value times `2^(scale - 127)` of its block: 32 "
        "consecutive values along the summed letter. With `dtype_d` e4m3 the fp32 result is quantised: 32 "
        "consecutive values along D's last letter share the scale `2^ceil(log2(max(amax, 1e-4) / 448))`, and "
        "values are rounded to nearest even."
    ),
    arguments={
        "a": "the expression's first operand; row-major with its letters as axes",
        "b": "the second operand, likewise",
        "sfa": "scale pairs of A: 16-bit words [h, ceil(sum/64), A's other letter], the first 32 in the low "
        "byte; the high byte of an odd tail is 0",
        "sfb": "scale pairs of B, likewise with B's other letter",
        "d": "the result, likewise",
        "sfd": "scale pairs of an e4m3 result, ready to be the next product's sfa",
    },
    tolerance=(
        "integers with power-of-two scales to the last bit; random values within calc_diff 1e-5 of the "
        "product of the (dequantised) operands in float64"
    ),
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (einsum, fp8_einsum)",
        "https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf",
    ),
    serves=("deep_gemm.einsum", "deep_gemm.fp8_einsum"),
    examples=(
        BatchedGemmSpec(expression="bhr,hdr->bhd", h=128, d=128, r=512),
        BatchedGemmSpec(expression="bhd,hdr->bhr", h=128, d=128, r=512),
        BatchedGemmSpec(expression="bhd,bhr->hdr", h=128, d=128, r=512, dtype_d="fp32", accumulate=True),
        BatchedGemmSpec(expression="bhr,hdr->bhd", h=128, d=128, r=512, dtype_a="e4m3", dtype_d="e4m3"),
    ),
)

FAMILY = Family(
    name="batched_gemm",
    summary="one matrix product per head in three einsum forms, fp32 accumulation",
    spec_type=BatchedGemmSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=STACKED_PRODUCT_SOURCES,
    page=PAGE,
)
