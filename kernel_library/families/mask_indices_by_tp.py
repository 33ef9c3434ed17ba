"""mask_indices_by_tp: expert indices as one tensor-parallel rank numbers them, the others' experts as -1."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.lane_topk import INDEX_DTYPES, LANE_TOPK_SOURCE, IndexDtype, index_words
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
from kaas.kernel_library.vector.whole_numbers import WHOLE_NUMBERS_SOURCE, remainder
from kaas.kernel_library.vector.word_blocks import MAX_WORDS, WORD_BLOCKS_SOURCE, blocks_of, move_words
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_TOPK = 128


class MaskIndicesByTpSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mask_indices_by_tp"
):
    """Expert indices for one tensor-parallel rank, on the vector cores.

    Arguments in call order: indices[tokens, topk] and masked_indices[tokens, topk] of ``index_dtype``; the
    int32 scalars n (experts in all), num_ep_ranks, tp_rank, num_tp_ranks.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    topk: Annotated[int, within(1, MAX_TOPK)]
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", MAX_WORDS // self.topk)
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: MaskIndicesByTpSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 indices, masked in place."""
    count = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_rows(
        target,
        row_bytes=4 * VECTOR_LANES * index_words(1, spec.index_dtype),
        rows=-(-count * spec.topk // VECTOR_LANES),
        passes=15.0,
        what="a block of 64 indices",
        field="topk",
        given=spec.tile,
    )


def build(spec: MaskIndicesByTpSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: MaskIndicesByTpSpec) -> tuple[Parameter, ...]:
    """What a call takes: indices, masked_indices and four numbers."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    shape = (tokens, spec.topk)
    return (
        Parameter(name="indices", role="in", dtype=spec.index_dtype, shape=shape),
        Parameter(name="masked_indices", role="out", dtype=spec.index_dtype, shape=shape),
        *(
            Parameter(name=name, role="scalar", dtype="int32")
            for name in ("n", "num_ep_ranks", "tp_rank", "num_tp_ranks")
        ),
    )


def _program(spec: MaskIndicesByTpSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: 64 indices at a time."""
    import tilelang.ascend.language as T

    entry = Entry("mask_indices_by_tp", parameters(spec))
    total = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens) * spec.topk
    words = index_words(1, spec.index_dtype)
    read = move_words(total, words, "int32", into_ub=True)
    write = move_words(total, words, "int32", into_ub=False)
    rest_of = remainder()

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub = state
        read(call.indices, index_ub, slot, first, count)

    @T.macro
    def local(index: Any, rank_size: Any, tp_rank: Any, num_tp_ranks: Any) -> Any:
        """64 indices as the rank numbers them, -1 where the expert is not on it."""
        size = T.simd.vcvt(T.simd.vdup(rank_size, "int32"), "float32")
        ranks = T.simd.vcvt(T.simd.vdup(num_tp_ranks, "int32"), "float32")
        place = T.simd.alloc_var("float32")
        owner = T.simd.alloc_var("float32")
        turn = T.simd.alloc_var("float32")
        number = T.simd.vcvt(index, "float32")
        place = rest_of(number, size)
        owner = T.simd.vdiv(T.simd.vsub(number, place), size)
        turn = rest_of(owner, ranks)
        group = T.simd.vdiv(T.simd.vsub(owner, turn), ranks)
        mine = T.simd.vcvt(T.simd.vadd(T.simd.vmul(group, size), place), "int32")
        none = T.simd.vdup(-1, "int32")
        is_here = T.simd.vcmps(T.simd.vcvt(turn, "int32"), tp_rank, op="eq")
        return T.simd.vsel(T.simd.vsel(mine, none, is_here), none, T.simd.vcmps(index, 0, op="ge"))

    @T.macro
    def mask(index_ub: Any, slot: Any, first: Any, count: Any, rank_size: Any, call: Any) -> None:
        with T.SimdVF():
            for block in T.serial(T.cast(count, "uint16")):
                if words == 2:
                    at = T.cast(block, "int32") * (2 * VECTOR_LANES)
                    low, _ = T.simd.vld2(index_ub[slot, at], dist="DINTLV_B32")
                    found = T.simd.alloc_var("int32")
                    found = local(low, rank_size, call.tp_rank, call.num_tp_ranks)
                    front, back = T.simd.vintlv(found, T.simd.vshrs(found, 31))
                    T.simd.vsts(index_ub[slot, at], front)
                    T.simd.vsts(index_ub[slot, at + VECTOR_LANES], back)
                else:
                    at = T.cast(block, "int32") * VECTOR_LANES
                    index = T.simd.vld(index_ub[slot, at])
                    T.simd.vsts(index_ub[slot, at], local(index, rank_size, call.tp_rank, call.num_tp_ranks))

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub = state
        rank_size = T.alloc_var("int32")
        rank_size = T.max(T.truncdiv(call.n, T.max(call.num_ep_ranks, 1)), 1)
        mask(index_ub, slot, first, count, rank_size, call)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub = state
        write(call.masked_indices, index_ub, slot, first, count)

    run = row_pipeline(plan, cores, blocks_of(total), load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            index_ub = T.alloc_shared((plan.stages, plan.rows * VECTOR_LANES * words), "int32")
            run((call, index_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="mask_indices_by_tp",
    summary="expert indices as one tensor-parallel rank numbers them, others' experts as -1",
    spec_type=MaskIndicesByTpSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, LANE_TOPK_SOURCE, WHOLE_NUMBERS_SOURCE, WORD_BLOCKS_SOURCE),
    page=KernelPage(
        computes=(
            "Each of the `num_ep_ranks` ranks has r = n / num_ep_ranks consecutive experts, and runs of "
            "`num_tp_ranks` ranks form a data-parallel group. Expert i is place p = i mod r of rank i / r, "
            "which is rank t = (i / r) mod num_tp_ranks of group d = (i / r) / num_tp_ranks (quotients "
            "rounded down). `masked_indices` is d r + p where t is `tp_rank`, else -1; negative indices "
            "give -1."
        ),
        arguments={
            "indices": "row-major indices below 2^24",
            "masked_indices": "row-major, the same shape",
            "n": "experts in all, a multiple of num_ep_ranks, below 2^24",
            "num_ep_ranks": "ranks that share them",
            "tp_rank": "the rank to keep, 0 to num_tp_ranks - 1",
            "num_tp_ranks": "ranks in a group",
        },
        tolerance="exact",
        facts=("TileKernels: mask_indices_by_tp",),
        serves=("tile_kernels.moe.mask_indices_by_tp",),
        examples=(MaskIndicesByTpSpec(topk=8),),
    ),
)
