"""fused_mapping: where each choice of a token goes when rows are laid out expert by expert."""

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
    SIMT_CACHE_BYTES,
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.word_blocks import (
    WORD_BLOCKS_SOURCE,
    blocks_of,
    move_words,
    tokens_in_block,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXPERTS = 1024
MAX_TOPK = 128
MAX_ALIGNMENT = 65536
THREADS = 512
MAX_CHOICES = 2**29
MAX_EXPANDED = 2**30
"""Threads look for empty places up to so many behind the last aligned choice, and count them in 32 bits."""


class FusedMappingSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="fused_mapping"
):
    """Maps between tokens' choices and rows laid out expert by expert, on the vector cores.

    Arguments in call order: topk_idx[tokens, topk] of ``index_dtype``; then int32 outputs pos_to_expert,
    pos_to_token and pos_to_token_topk [expanded]; token_topk_to_pos[tokens, topk]; expert_start, expert_end
    and num_tokens_per_expert [experts]. Every expert's rows are a multiple of ``alignment``, a power of two.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    alignment: Annotated[int, within(1, MAX_ALIGNMENT)] = 1
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    expanded: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.experts, "experts", 1, MAX_EXPERTS)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_int(self.alignment, "alignment", 1, MAX_ALIGNMENT)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens", MAX_CHOICES // self.topk)
        require_dim(self.expanded, "expanded", MAX_EXPANDED)
        require_row_tile(self.tile)
        if self.alignment & (self.alignment - 1):
            legal = f"a power of two up to {MAX_ALIGNMENT}"
            raise InvalidSpec(
                f"alignment is {self.alignment}; legal: {legal}", field="alignment", legal=legal
            )

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: FusedMappingSpec, target: Target) -> RowPlan:
    """The plan of blocks of 64 indices with their places; every core looks at all indices."""
    count = NOMINAL_ROWS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_rows(
        target,
        row_bytes=4 * VECTOR_LANES * (index_words(1, spec.index_dtype) + 1),
        fixed_bytes=5 * 4 * padded(spec.experts) + SIMT_CACHE_BYTES,
        rows=-(-count * spec.topk // VECTOR_LANES) * target.vector_cores,
        passes=8.0,
        what="a block of 64 indices",
        field="experts",
        given=spec.tile,
    )


def build(spec: FusedMappingSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: FusedMappingSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    expanded: Extent = "expanded" if spec.expanded == DYNAMIC else spec.expanded
    choices = (tokens, spec.topk)

    def out(name: str, *shape: Extent, may_be_empty: bool = False) -> Parameter:
        return Parameter(name=name, role="out", dtype="int32", shape=shape, may_be_empty=may_be_empty)

    return (
        Parameter(name="topk_idx", role="in", dtype=spec.index_dtype, shape=choices, may_be_empty=True),
        *(
            out(name, expanded, may_be_empty=True)
            for name in ("pos_to_expert", "pos_to_token", "pos_to_token_topk")
        ),
        out("token_topk_to_pos", *choices, may_be_empty=True),
        *(out(name, spec.experts) for name in ("expert_start", "expert_end", "num_tokens_per_expert")),
    )


def _program(spec: FusedMappingSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``.

    Every core counts all indices, and those before its own share separately; so it knows where the next
    choice of each expert goes without asking another core. Then it places its share.
    """
    import tilelang.ascend.language as T

    entry = Entry("fused_mapping", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    expanded = entry.extent("expanded" if spec.expanded == DYNAMIC else spec.expanded)
    experts, topk, pitch = spec.experts, spec.topk, padded(spec.experts)
    vectors, words = pitch // VECTOR_LANES, index_words(1, spec.index_dtype)
    total = tokens * topk
    stage_indices = plan.rows * VECTOR_LANES
    steps = -(-stage_indices // THREADS)
    read = move_words(total, words, "int32", into_ub=True)
    write = move_words(total, 1, "int32", into_ub=False)

    def lanes() -> Any:
        return T.simd.vci(T.int32(0), "int32")

    @T.macro
    def clear(counts_ub: Any) -> None:
        with T.SimdVF():
            for i in T.unroll(2 * vectors, explicit=True):
                T.simd.vsts(counts_ub[i // vectors, i % vectors * VECTOR_LANES], T.simd.vdup(0, "int32"))

    @T.macro
    def load_all(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, _, _, _ = state
        read(call.topk_idx, index_ub, slot, first, count)

    @T.macro
    def count_indices(index_ub: Any, counts_ub: Any, slot: Any, held: Any, before: Any) -> None:
        """Adds ``held`` indices up, the first ``before`` of them in the second row as well."""
        with T.SimtVF(threads=THREADS):
            thread = T.get_thread_binding(0)
            for step in T.serial(steps):
                place = step * THREADS + thread
                if place < held:
                    expert = index_ub[slot, place * words]
                    if expert >= 0 and expert < experts:
                        T.atomic_add(counts_ub[0, expert], 1)
                        if place < before:
                            T.atomic_add(counts_ub[1, expert], 1)

    @T.macro
    def count_all(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, index_ub, _, counts_ub, share = state
        held = T.alloc_var("int32")
        before = T.alloc_var("int32")
        held = T.min(count * VECTOR_LANES, total - first * VECTOR_LANES)
        before = (share[0] - first) * VECTOR_LANES
        count_indices(index_ub, counts_ub, slot, held, before)

    @T.macro
    def nothing(state: Any, slot: Any, first: Any, count: Any) -> None:
        pass

    @T.macro
    def lay_out(counts_ub: Any, ranges_ub: Any) -> None:
        """Starts, ends and aligned counts of the experts; the second row of counts becomes next places."""
        with T.SimdVF():
            running = T.simd.alloc_var("int32")
            behind = T.simd.alloc_var("int32")
            running = T.simd.vdup(0, "int32")
            for i in T.serial(T.uint16(vectors)):
                at = T.cast(i, "int32") * VECTOR_LANES
                low_bits = T.simd.vdup(spec.alignment - 1, "int32")
                raised = T.simd.vadd(T.simd.vld(counts_ub[0, at]), low_bits)
                size = T.simd.vand(raised, T.simd.vnot(low_bits))
                behind = size
                # Sums of ever longer runs of lanes: 2, 4, 8 .. 64.
                for step in T.unroll(6, explicit=True):
                    distance = T.simd.vdup(T.int32(1) << step, "int32")
                    there = T.simd.vcmp(lanes(), distance, op="ge")
                    other = T.simd.vselr(behind, T.simd.vsub(lanes(), distance))
                    behind = T.simd.vadd(
                        behind, T.simd.vsel(T.reinterpret(other, "int32x64"), T.simd.vdup(0, "int32"), there)
                    )
                end = T.simd.vadd(running, behind)
                start = T.simd.vsub(end, size)
                T.simd.vsts(ranges_ub[0, at], start)
                T.simd.vsts(ranges_ub[1, at], end)
                T.simd.vsts(ranges_ub[2, at], size)
                T.simd.vsts(counts_ub[1, at], T.simd.vadd(start, T.simd.vld(counts_ub[1, at])))
                running = T.reinterpret(T.simd.vselr(end, T.simd.vdup(VECTOR_LANES - 1, "int32")), "int32x64")

    @T.macro
    def load_share(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, _, _, share = state
        read(call.topk_idx, index_ub, slot, share[0] + first, count)

    @T.macro
    def place_indices(
        index_ub: Any, place_ub: Any, counts_ub: Any, slot: Any, begin: Any, count: Any
    ) -> None:
        with T.SimdVF():
            index = T.simd.alloc_var("int32")
            rank = T.simd.alloc_var("int32")
            again = T.simd.alloc_var("int32")
            for block in T.serial(T.cast(count, "uint16")):
                there = tokens_in_block(total, begin + T.cast(block, "int32"))
                at = T.cast(block, "int32") * VECTOR_LANES
                places = T.reinterpret(T.simd.vmuls(lanes(), words), "uint32x64")
                given = T.simd.vgather2(index_ub[slot, at * words], places, there)
                unsigned = T.reinterpret(given, "uint32x64")
                known = T.simd.vcmps(unsigned, T.uint32(experts), there, op="lt")
                index = given
                rank = T.simd.vdup(0, "int32")
                again = T.simd.vdup(0, "int32")
                # How many of the block's indices before this one are the same, and whether one behind is.
                for j in T.serial(T.uint16(VECTOR_LANES)):
                    lane = T.simd.vdup(T.cast(j, "int32"), "int32")
                    other = T.reinterpret(T.simd.vselr(index, lane), "int32x64")
                    same = T.simd.vcmp(index, other, T.simd.vcmp(lanes(), lane, known, op="gt"), op="eq")
                    rank = T.simd.vsel(T.simd.vadds(rank, 1), rank, same)
                    later = T.simd.vcmp(index, other, T.simd.vcmp(lanes(), lane, there, op="lt"), op="eq")
                    held = T.simd.vcmps(lane, total - (begin * VECTOR_LANES + at), later, op="lt")
                    again = T.simd.vsel(T.simd.vdup(1, "int32"), again, held)
                slots = T.reinterpret(index, "uint32x64")
                place = T.simd.vadd(T.simd.vgather2(counts_ub[1, 0], slots, known), rank)
                is_last = T.simd.vcmps(again, 0, known, op="eq")
                T.simd.vscatter(T.simd.vadds(place, 1), counts_ub[1, 0], slots, is_last)
                none = T.simd.vdup(-1, "int32")
                T.simd.vsts(place_ub[slot, at], T.simd.vsel(place, none, known))
                T.simd.mem_bar("VST_VLD")

    @T.macro
    def write_places(call: Any, index_ub: Any, place_ub: Any, slot: Any, begin: Any, held: Any) -> None:
        with T.SimtVF(threads=THREADS):
            thread = T.get_thread_binding(0)
            for step in T.serial(steps):
                i = step * THREADS + thread
                if i < held:
                    place = place_ub[slot, i]
                    if place >= 0 and place < expanded:
                        choice = begin * VECTOR_LANES + i
                        call.pos_to_expert[place] = index_ub[slot, i * words]
                        call.pos_to_token[place] = T.truncdiv(choice, topk)
                        call.pos_to_token_topk[place] = choice

    @T.macro
    def place_share(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, index_ub, place_ub, counts_ub, share = state
        begin = T.alloc_var("int32")
        held = T.alloc_var("int32")
        begin = share[0] + first
        held = T.min(count * VECTOR_LANES, total - (share[0] + first) * VECTOR_LANES)
        place_indices(index_ub, place_ub, counts_ub, slot, begin, count)
        write_places(call, index_ub, place_ub, slot, begin, held)

    @T.macro
    def store_share(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, _, place_ub, _, share = state
        write(call.token_topk_to_pos, place_ub, slot, share[0] + first, count)

    @T.macro
    def set_none(call: Any, place: Any) -> None:
        call.pos_to_expert[place] = -1
        call.pos_to_token[place] = -1
        call.pos_to_token_topk[place] = -1

    @T.macro
    def fill(call: Any, counts_ub: Any, ranges_ub: Any, number: Any, rounds: Any) -> None:
        """Places that no choice goes to: behind some experts' rows, and a share of those behind them all."""
        with T.SimtVF(threads=THREADS):
            thread = T.get_thread_binding(0)
            for step in T.serial(-(-experts // cores)):
                expert = step * cores + number
                if expert < experts:
                    for i in T.serial(-(-spec.alignment // THREADS)):
                        place = ranges_ub[0, expert] + counts_ub[0, expert] + i * THREADS + thread
                        if place < ranges_ub[1, expert] and place < expanded:
                            set_none(call, place)
            for i in T.serial(rounds):
                behind = ranges_ub[1, experts - 1] + (i * cores + number) * THREADS + thread
                if behind < expanded:
                    set_none(call, behind)

    all_blocks = blocks_of(total)
    count_run = row_pipeline(plan, 1, all_blocks, load=load_all, compute=count_all, store=nothing)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            index_ub = T.alloc_shared((plan.stages, stage_indices * words), "int32")
            place_ub = T.alloc_shared((plan.stages, stage_indices), "int32")
            counts_ub = T.alloc_shared((2, pitch), "int32")
            ranges_ub = T.alloc_shared((3, pitch), "int32")
            share = T.alloc_local((1,), "int32")
            per_core = T.alloc_var("int32")
            mine = T.alloc_var("int32")
            number = T.alloc_var("int32")
            rounds = T.alloc_var("int32")
            per_core = T.truncdiv(all_blocks + cores - 1, cores)
            share[0] = core * per_core
            mine = T.max(T.min(per_core, all_blocks - core * per_core), 0)
            clear(counts_ub)
            count_run((call, index_ub, place_ub, counts_ub, share), 0)
            lay_out(counts_ub, ranges_ub)
            row_pipeline(plan, 1, mine, load=load_share, compute=place_share, store=store_share)(
                (call, index_ub, place_ub, counts_ub, share), 0
            )
            number = core
            rounds = T.truncdiv(expanded + cores * THREADS - 1, cores * THREADS)
            fill(call, counts_ub, ranges_ub, number, rounds)
            T.ascend_set_flag("V_MTE3", 0)
            T.ascend_wait_flag("V_MTE3", 0)
            if core == 0:
                T.copy(ranges_ub[0, 0:experts], call.expert_start[0:experts])
                T.copy(ranges_ub[1, 0:experts], call.expert_end[0:experts])
                T.copy(ranges_ub[2, 0:experts], call.num_tokens_per_expert[0:experts])

    return entry.prim_func(block)


FAMILY = Family(
    name="fused_mapping",
    summary="where each choice of a token goes when rows are laid out expert by expert",
    spec_type=FusedMappingSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, LANE_TOPK_SOURCE, WORD_BLOCKS_SOURCE),
    page=KernelPage(
        computes=(
            "Expert e owns the places `expert_start[e]` to `expert_end[e]`, as many as it has choices, "
            "rounded up to a multiple of `alignment`; the experts follow one another from place 0. Its "
            "choices take its places in the order of `topk_idx`, token by token:\n\n"
            "    place = token_topk_to_pos[t, k]\n"
            "    pos_to_expert[place], pos_to_token[place], pos_to_token_topk[place] = e, t, t * topk + k\n\n"
            "Choices of no expert have place -1, places that no choice took hold -1 in all three maps, those "
            "behind the last expert included. A choice whose place is not below `expanded` is in no map, and "
            "ranges are what they would be with room enough: compare `expert_end` of the last expert with "
            "`expanded`. Every core counts all choices, so that none waits for another."
        ),
        arguments={
            "topk_idx": (
                "row-major experts of each token; -1 stands for none; of an int64 the low word is looked at"
            ),
            "pos_to_expert": "int32, the expert of each place",
            "pos_to_token": "int32, the token of each place",
            "pos_to_token_topk": "int32, token * topk + choice of each place",
            "token_topk_to_pos": "row-major int32, the place of each choice",
            "expert_start": "int32, the first place of each expert",
            "expert_end": "int32, the place behind its last one",
            "num_tokens_per_expert": "int32, how many places it owns: a multiple of `alignment`",
        },
        tolerance="exact",
        facts=(
            "TileKernels: get_fused_mapping; cutting the maps to the places in use is left to the caller, "
            "who reads `num_tokens_per_expert` for it",
        ),
        serves=("tile_kernels.moe.get_fused_mapping",),
        examples=(
            FusedMappingSpec(experts=256, topk=8, alignment=128),
            FusedMappingSpec(experts=72, topk=6, index_dtype="int32"),
        ),
    ),
)
