"""normalize_weight: the weights of a token's experts, divided by their sum."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, require_int, within
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import (
    NOMINAL_ROWS,
    VECTOR_LANES,
    RowPlan,
    RowTile,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.word_blocks import (
    WORD_BLOCKS_SOURCE,
    blocks_of,
    move_words,
    tokens_in_block,
    word_places,
)
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_TOPK = 128
LEAST_SUM = 1e-20


class NormalizeWeightSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="normalize_weight"
):
    """Normalisation of expert weights on the vector cores, fp32.

    Arguments in call order: topk_weights[tokens, topk]; denominator[tokens]; normalized_weights[tokens,
    topk].

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topk: Annotated[int, within(1, MAX_TOPK)]
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: NormalizeWeightSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 tokens: weights, which the normalised ones replace, and sums."""
    count = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_rows(
        target,
        row_bytes=4 * VECTOR_LANES * (spec.topk + 1),
        rows=-(-count // VECTOR_LANES),
        passes=4.0,
        what=f"64 tokens with {spec.topk} weights",
        field="topk",
        given=spec.tile,
    )


def build(spec: NormalizeWeightSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: NormalizeWeightSpec) -> tuple[Parameter, ...]:
    """What a call takes: topk_weights, denominator, normalized_weights."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (
        Parameter(name="topk_weights", role="in", dtype="fp32", shape=(tokens, spec.topk)),
        Parameter(name="denominator", role="out", dtype="fp32", shape=(tokens,)),
        Parameter(name="normalized_weights", role="out", dtype="fp32", shape=(tokens, spec.topk)),
    )


def _program(spec: NormalizeWeightSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: 64 tokens side by side, their weights one after the other."""
    import tilelang.ascend.language as T

    entry = Entry("normalize_weight", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    topk = spec.topk
    read = move_words(tokens, topk, "float32", into_ub=True)
    write = move_words(tokens, topk, "float32", into_ub=False)
    write_sums = move_words(tokens, 1, "float32", into_ub=False)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, weights_ub, _ = state
        read(call.topk_weights, weights_ub, slot, first, count)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, weights_ub, sums_ub = state
        with T.SimdVF():
            total = T.simd.alloc_var("float32")
            for block in T.serial(T.cast(count, "uint16")):
                there = tokens_in_block(tokens, first + T.cast(block, "int32"))
                places = word_places(topk)
                start = T.cast(block, "int32") * (VECTOR_LANES * topk)
                total = T.simd.vdup(LEAST_SUM, "float32")
                for k in T.serial(T.uint16(topk)):
                    place = T.reinterpret(T.simd.vadds(places, T.cast(k, "int32")), "uint32x64")
                    weight = T.simd.vgather2(weights_ub[slot, start], place, there)
                    total = T.simd.vadd(total, weight)
                T.simd.vsts(sums_ub[slot, T.cast(block, "int32") * VECTOR_LANES], total, there)
                for k in T.serial(T.uint16(topk)):
                    place = T.reinterpret(T.simd.vadds(places, T.cast(k, "int32")), "uint32x64")
                    weight = T.simd.vgather2(weights_ub[slot, start], place, there)
                    T.simd.vscatter(T.simd.vdiv(weight, total), weights_ub[slot, start], place, there)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, weights_ub, sums_ub = state
        write(call.normalized_weights, weights_ub, slot, first, count)
        write_sums(call.denominator, sums_ub, slot, first, count)

    run = row_pipeline(plan, cores, blocks_of(tokens), load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            weights_ub = T.alloc_shared((plan.stages, plan.rows * VECTOR_LANES * topk), "float32")
            sums_ub = T.alloc_shared((plan.stages, plan.rows * VECTOR_LANES), "float32")
            run((call, weights_ub, sums_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="normalize_weight",
    summary="the weights of a token's experts, divided by their sum",
    spec_type=NormalizeWeightSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, WORD_BLOCKS_SOURCE),
    page=KernelPage(
        computes=(
            "`denominator[t]` = 1e-20 + w_0 + w_1 + ... in fp32 and in this order, and "
            "`normalized_weights[t, k]` = w_k / `denominator[t]`, rounded once. NaN and infinities behave as "
            "in IEEE arithmetic and stay with their token."
        ),
        arguments={
            "topk_weights": "row-major fp32",
            "denominator": "fp32, one per token",
            "normalized_weights": "row-major fp32",
        },
        tolerance="exact, for quotients that are not subnormal",
        facts=("TileKernels: normalize_weight, sum from 1e-20 on in the order of the experts",),
        serves=("tile_kernels.moe.normalize_weight",),
        examples=(NormalizeWeightSpec(topk=8),),
    ),
)
