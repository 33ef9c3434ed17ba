"""scale_layout: scales of an operand in the packed form that scaled products read."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any, Literal

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_one_of,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.scale_pairs import SCALE_PAIR_SOURCES, PairLayout, allocate_pairs, pair_pass
from kaas.kernel_library.vector.tile_pipeline import TILE_KERNEL_SOURCES, TilePlan
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_K = 2**22
MAX_MN = 2**22
"""As many rows as scaled products take of an operand."""
GRANULARITIES = (1, 2, 4, 8, 16, 32, 64, 128)


class ScaleLayoutSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="scale_layout"):
    """Scales of an operand [mn, k], one per ``gran_mn`` x 32 values, as e8m0 pairs [ceil(k/64), mn].

    Arguments in call order: scales, of ``source``: [ceil(mn/gran_mn), blocks] for ``major`` "k", or
    [blocks, ceil(mn/gran_mn)], where blocks is ceil(k/32) for fp32 and ceil(k/64) for pairs;
    grouped_layout[num_groups] int32 unless ``groups`` is "none"; pairs. With ``batched`` the two matrices
    have a first axis of batches. ``groups`` "m" or "k" splits the rows or K into groups that start at
    multiples of 256 and end at grouped_layout; scales in no group become 0.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    mn: Dim = "dynamic"
    k: Dim = "dynamic"
    source: Literal["fp32", "e8m0x2"] = "fp32"
    major: Literal["k", "mn"] = "k"
    gran_mn: Literal[1, 2, 4, 8, 16, 32, 64, 128] = 1
    batched: bool = False
    groups: Literal["none", "m", "k"] = "none"

    def __post_init__(self) -> None:
        require_dim(self.mn, "mn", MAX_MN)
        require_dim(self.k, "k", MAX_K)
        require_one_of(self.source, "source", ("fp32", "e8m0x2"))
        require_one_of(self.major, "major", ("k", "mn"))
        require_one_of(self.gran_mn, "gran_mn", GRANULARITIES)
        require_bool(self.batched, "batched")
        require_one_of(self.groups, "groups", ("none", "m", "k"))
        if self.batched and self.groups != "none":
            message = f'groups is "{self.groups}"; batched scales have no groups: legal: "none"'
            raise InvalidSpec(message, field="groups", legal=["none"])

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile fits ``target``'s UB."""
        plan_of(self, target)


def _layout(spec: ScaleLayoutSpec) -> PairLayout:
    source: Literal["fp32", "e8m0"] = "fp32" if spec.source == "fp32" else "e8m0"
    return PairLayout(source=source, major=spec.major, repeat=spec.gran_mn)


def plan_of(spec: ScaleLayoutSpec, target: Target) -> TilePlan:
    """The tiles; raises :class:`DoesNotFit` if none fits."""
    blocks = None if spec.k == DYNAMIC else -(-int(spec.k) // 32)
    rows = None if spec.mn == DYNAMIC else int(spec.mn)
    return _layout(spec).plan(target, blocks, rows, field="gran_mn")


def _elements(spec: ScaleLayoutSpec) -> Extent:
    """Source elements of a row."""
    per_element = 32 if spec.source == "fp32" else 64
    if spec.k != DYNAMIC:
        return -(-int(spec.k) // per_element)
    return "blocks" if spec.source == "fp32" else "pair_count"


def _pairs(spec: ScaleLayoutSpec) -> Extent:
    if spec.k != DYNAMIC:
        return -(-int(spec.k) // 64)
    return "ceil(blocks/2)" if spec.source == "fp32" else "pair_count"


def _source_rows(spec: ScaleLayoutSpec) -> Extent:
    """Rows of the source; with a dynamic mn an extent of its own, since the first argument binds it."""
    if spec.mn != DYNAMIC:
        return divided(int(spec.mn), spec.gran_mn)
    return "mn" if spec.gran_mn == 1 else "scale_rows"


def parameters(spec: ScaleLayoutSpec) -> tuple[Parameter, ...]:
    """What a call takes: the scales, the ends of groups, the pairs."""
    mn: Extent = "mn" if spec.mn == DYNAMIC else spec.mn
    batch: tuple[Extent, ...] = ("batches",) if spec.batched else ()
    rows = _source_rows(spec)
    source = (rows, _elements(spec)) if spec.major == "k" else (_elements(spec), rows)
    taken = [Parameter(name="scales", role="in", dtype=spec.source, shape=(*batch, *source))]
    if spec.groups != "none":
        taken.append(Parameter(name="grouped_layout", role="in", dtype="int32", shape=("num_groups",)))
    taken.append(Parameter(name="pairs", role="out", dtype="e8m0x2", shape=(*batch, _pairs(spec), mn)))
    return tuple(taken)


def build(spec: ScaleLayoutSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: a transposition by gathers in UB.

    Raises :class:`DoesNotFit` if no tile fits UB.
    """
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: ScaleLayoutSpec, plan: TilePlan, cores: int) -> Any:
    """The TileLang function of ``spec``."""
    import tilelang.ascend.language as T

    entry, layout = Entry("scale_layout", parameters(spec)), _layout(spec)
    run = pair_pass(
        layout,
        plan,
        cores,
        source="scales",
        pairs="pairs",
        source_rows=entry.extent(_source_rows(spec)),
        batches=entry.extent("batches") if spec.batched else None,
        rows=entry.extent("mn" if spec.mn == DYNAMIC else spec.mn),
        elements=entry.extent(_elements(spec)),
        groups=spec.groups,
        group_count=entry.extent("num_groups") if spec.groups != "none" else None,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            source_ub, pairs_ub = allocate_pairs(layout, plan)
            run((call, source_ub, pairs_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="scale_layout",
    summary="scales of an operand as packed pairs, the layout that scaled products read",
    spec_type=ScaleLayoutSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*TILE_KERNEL_SOURCES, *SCALE_PAIR_SOURCES),
    page=KernelPage(
        computes=(
            "`pairs[p, r]` holds the scales of blocks `2p` (low byte) and `2p + 1` (high byte) of row r,\n"
            "from row `r // gran_mn` of the source; a missing last block is 0, and 0x7F7F is two times 1.\n"
            "fp32 scales must be powers of two: 2^-127 to 2^127 are exact, 0 becomes byte 0, and whatever\n"
            "else there is (other fractions, negative, infinite, NaN) becomes 255, which is NaN. Pairs are\n"
            "moved as they are. A group ends where `grouped_layout` says and starts at the next multiple of\n"
            "256 behind the end of the one before; a scale that covers part of a group belongs to it."
        ),
        arguments={
            "scales": (
                "one scale per `gran_mn` x 32 values, fp32 or pairs, either axis contiguous (`major`); rows "
                "of the result without one get 0, and scales of rows behind the last one are not read"
            ),
            "grouped_layout": "end of each group in rows (`groups` m) or in values of K (`groups` k)",
            "pairs": "e8m0 pairs [pairs of blocks, rows]",
        },
        tolerance="bit-exact",
        facts=(
            "github.com/deepseek-ai/DeepGEMM-Ascend: csrc/apis/layout.hpp (shapes, granularities), "
            "csrc/jit_kernels/transform_sf.hpp (groups, alignment)",
            "github.com/tile-ai/tilelang: examples/ascend/deepgemm/kernels/transform_sf.py (groups)",
        ),
        serves=(
            "deep_gemm.transform_sf_into_required_layout",
            "deep_gemm.transform_k_grouped_sf_into_required_layout",
        ),
        examples=(
            ScaleLayoutSpec(k=7168),
            ScaleLayoutSpec(k=7168, gran_mn=128, batched=True),
            ScaleLayoutSpec(mn=2048, major="mn", groups="k"),
        ),
    ),
)
