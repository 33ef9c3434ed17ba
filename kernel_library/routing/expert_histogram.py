"""Expert histogram: how often each expert occurs among the indices of all tokens.

Every vector core reads all indices and counts a few experts of its own, by comparing 64 indices at a time.
Nothing is added across cores, so there is neither an atomic nor a barrier, and counts do not depend on order.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Callable
from typing import Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.routing.lane_topk import LANE_TOPK_SOURCE, index_words
from kaas.kernel_library.spec import DYNAMIC
from kaas.kernel_library.vector.row_pipeline import ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import NOMINAL_ROWS, VECTOR_LANES, RowPlan, RowTile, plan_rows
from kaas.kernel_library.vector.word_blocks import WORD_BLOCKS_SOURCE, blocks_of, move_words, tokens_in_block
from kaas.proto.target import Target

HISTOGRAM_SOURCES = (
    *ROW_KERNEL_SOURCES,
    LANE_TOPK_SOURCE,
    WORD_BLOCKS_SOURCE,
    "kaas.kernel_library.routing.expert_histogram",
)
"""Modules that decide what a family built on this histogram generates."""

TOGETHER = 4
"""Experts counted in one pass over the indices in UB."""


def experts_per_core(experts: int, cores: int) -> int:
    """Experts that a core counts, a multiple of ``TOGETHER``."""
    return -(-experts // (cores * TOGETHER)) * TOGETHER


def plan_histogram(
    target: Target, *, experts: int, topk: int, dtype: str, tokens: int | str, given: RowTile | None
) -> RowPlan:
    """The plan of one core's stages; a "row" of it is a block of 64 indices.

    Raises :class:`DoesNotFit` naming ``tile``.
    """
    own = experts_per_core(experts, target.vector_cores)
    count = NOMINAL_ROWS if tokens == DYNAMIC else int(tokens)
    return plan_rows(
        target,
        row_bytes=4 * VECTOR_LANES * index_words(1, dtype),
        fixed_bytes=own * (VECTOR_LANES * 4 + 4) + 4 * VECTOR_LANES,
        # Each core takes all blocks.
        rows=-(-count * topk // VECTOR_LANES) * target.vector_cores,
        passes=float(own),
        what="a block of 64 indices",
        field="experts",
        given=given,
    )


def histogram_program(
    entry: Entry,
    plan: RowPlan,
    cores: int,
    *,
    experts: int,
    topk: int,
    dtype: str,
    tokens: Any,
    indices: str,
    counts: str,
    counts_dtype: str,
    finish: Callable[[Any, Any], Any],
) -> Any:
    """The TileLang function that counts the argument ``indices`` into the argument ``counts``.

    ``finish`` is a macro from the call and an int32 register, all lanes the count of one expert, to what is
    stored.
    """
    import tilelang.ascend.language as T

    own, words = experts_per_core(experts, cores), index_words(1, dtype)
    total = tokens * topk

    read = move_words(total, words, "int32", into_ub=True)

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, _, _ = state
        read(getattr(call, indices), index_ub, slot, first, count)

    @T.macro
    def low_words(index_ub: Any, slot: Any, block: Any) -> Any:
        """64 indices as int32."""
        if words == 2:
            low, _ = T.simd.vld2(index_ub[slot, block * (2 * VECTOR_LANES)], dist="DINTLV_B32")
        else:
            low = T.simd.vld(index_ub[slot, block * VECTOR_LANES])
        return low

    @T.macro
    def add(index_ub: Any, sums_ub: Any, slot: Any, first: Any, count: Any, origin: Any) -> None:
        with T.SimdVF():
            sums = T.simd.alloc_local((TOGETHER,), "int32")
            for group in T.serial(T.uint16(own // TOGETHER)):
                expert = T.cast(group, "int32") * TOGETHER
                for i in T.unroll(TOGETHER, explicit=True):
                    sums[i] = T.simd.vld(sums_ub[expert + i, 0])
                for block in T.serial(T.cast(count, "uint16")):
                    there = tokens_in_block(total, first + T.cast(block, "int32"))
                    index = low_words(index_ub, slot, T.cast(block, "int32"))
                    for i in T.unroll(TOGETHER, explicit=True):
                        hit = T.simd.vcmps(index, origin + expert + i, there, op="eq")
                        sums[i] = T.simd.vsel(T.simd.vadds(sums[i], 1), sums[i], hit)
                for i in T.unroll(TOGETHER, explicit=True):
                    T.simd.vsts(sums_ub[expert + i, 0], sums[i])
            # The next stage reads what this one has written.
            T.simd.mem_bar("VST_VLD")

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, index_ub, sums_ub, core = state
        # A vector function cannot ask for the core's number; a variable is passed to it by value.
        origin = T.alloc_var("int32")
        origin = core * own
        add(index_ub, sums_ub, slot, first, count, origin)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        pass

    run = row_pipeline(plan, 1, blocks_of(total), load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            index_ub = T.alloc_shared((plan.stages, plan.rows * VECTOR_LANES * words), "int32")
            sums_ub = T.alloc_shared((own, VECTOR_LANES), "int32")
            counts_ub = T.alloc_shared((own + VECTOR_LANES,), counts_dtype)
            mine = T.alloc_var("int32")
            mine = T.max(T.min(own, experts - core * own), 0)
            with T.SimdVF():
                for expert in T.serial(T.uint16(own)):
                    T.simd.vsts(sums_ub[T.cast(expert, "int32"), 0], T.simd.vdup(0, "int32"))
                T.simd.mem_bar("VST_VLD")
            run((call, index_ub, sums_ub, core), 0)
            with T.SimdVF():
                for expert in T.serial(T.uint16(own)):
                    sums = T.simd.vld(sums_ub[T.cast(expert, "int32"), 0])
                    found = finish(call, T.simd.vdupv(T.simd.vcadd(sums)))
                    T.simd.vsts(counts_ub[T.cast(expert, "int32")], found, dist="ONEPT_B32")
            T.ascend_set_flag("V_MTE3", 0)
            T.ascend_wait_flag("V_MTE3", 0)
            if mine > 0:
                T.copy(counts_ub[0:mine], getattr(call, counts)[core * own : core * own + mine])

    return entry.prim_func(block)
