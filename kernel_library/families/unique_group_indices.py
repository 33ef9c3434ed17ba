"""unique_group_indices: each group once per token, further mentions of it replaced by -1."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    MAX_TOPK,
    IndexDtype,
    index_words,
)
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_dim,
    require_int,
    require_one_of,
    within,
)
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


class UniqueGroupIndicesSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="unique_group_indices"
):
    """Repeated indices of a token become -1, on the vector cores.

    The only argument: group_indices[tokens, topk] of ``index_dtype``, updated in place.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topk: Annotated[int, within(1, MAX_TOPK)]
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: UniqueGroupIndicesSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 tokens, changed in place."""
    count = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_rows(
        target,
        row_bytes=4 * VECTOR_LANES * index_words(spec.topk, spec.index_dtype),
        rows=-(-count // VECTOR_LANES),
        passes=1.0 + spec.topk / 2,
        what=f"64 tokens with {spec.topk} indices",
        field="topk",
        given=spec.tile,
    )


def build(spec: UniqueGroupIndicesSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: UniqueGroupIndicesSpec) -> tuple[Parameter, ...]:
    """What a call takes: group_indices."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    return (Parameter(name="group_indices", role="inout", dtype=spec.index_dtype, shape=(tokens, spec.topk)),)


def _program(spec: UniqueGroupIndicesSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: 64 tokens side by side, each index compared with those before it."""
    import tilelang.ascend.language as T

    entry = Entry("unique_group_indices", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    topk, step = spec.topk, index_words(1, spec.index_dtype)
    words = topk * step
    read = move_words(tokens, words, "int32", into_ub=True)
    write = move_words(tokens, words, "int32", into_ub=False)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub = state
        read(call.group_indices, index_ub, slot, first, count)

    @T.macro
    def mark(index_ub: Any, slot: Any, first: Any, count: Any) -> None:
        with T.SimdVF():
            again = T.simd.alloc_var("int32")
            for block in T.serial(T.cast(count, "uint16")):
                there = tokens_in_block(tokens, first + T.cast(block, "int32"))
                start = T.cast(block, "int32") * (VECTOR_LANES * words)
                origin = word_places(words)
                # From the last index to the second: those before it are still what they were.
                for turn in T.serial(T.uint16(topk - 1)):
                    k = topk - 1 - T.cast(turn, "int32")
                    place = T.reinterpret(T.simd.vadds(origin, k * step), "uint32x64")
                    index = T.simd.vgather2(index_ub[slot, start], place, there)
                    again = T.simd.vdup(0, "int32")
                    for earlier in T.serial(T.cast(k, "uint16")):
                        other_place = T.simd.vadds(origin, T.cast(earlier, "int32") * step)
                        other = T.simd.vgather2(
                            index_ub[slot, start], T.reinterpret(other_place, "uint32x64"), there
                        )
                        same = T.simd.vcmp(index, other, there, op="eq")
                        again = T.simd.vsel(T.simd.vdup(1, "int32"), again, same)
                    repeated = T.simd.vcmps(again, 0, T.simd.vcmps(index, 0, there, op="ge"), op="ne")
                    none = T.simd.vdup(-1, "int32")
                    T.simd.vscatter(none, index_ub[slot, start], place, repeated)
                    if step == 2:
                        high = T.reinterpret(T.simd.vadds(origin, k * step + 1), "uint32x64")
                        T.simd.vscatter(none, index_ub[slot, start], high, repeated)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, index_ub = state
        if topk > 1:
            mark(index_ub, slot, first, count)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub = state
        write(call.group_indices, index_ub, slot, first, count)

    run = row_pipeline(plan, cores, blocks_of(tokens), load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            index_ub = T.alloc_shared((plan.stages, plan.rows * VECTOR_LANES * words), "int32")
            run((call, index_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="unique_group_indices",
    summary="each group once per token: further mentions of it become -1",
    spec_type=UniqueGroupIndicesSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, LANE_TOPK_SOURCE, WORD_BLOCKS_SOURCE),
    page=KernelPage(
        computes=(
            "`group_indices[t, k]` becomes -1 if it is not negative and equals `group_indices[t, j]` for "
            "some j < k. Everything else keeps its bits. There is no limit on the number of groups."
        ),
        arguments={
            "group_indices": (
                "row-major groups of each token's experts, below 2^31, updated in place; of an int64 the low "
                "word is looked at"
            ),
        },
        tolerance="exact",
        facts=("TileKernels, first version: inplace_unique_group_indices, for up to 128 groups",),
        serves=("tile_kernels.moe.inplace_unique_group_indices",),
        examples=(UniqueGroupIndicesSpec(topk=8),),
    ),
)
