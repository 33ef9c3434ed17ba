"""moe_gate: expert scores from a router's logits, the k best of each token, and their normalised weights."""

from typing import Annotated, Any

from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.routing.expert_copies import EXPERT_COPIES_SOURCE, MAX_COPIES
from kaas.kernel_library.routing.expert_groups import EXPERT_GROUPS_SOURCE, MAX_GROUPS
from kaas.kernel_library.routing.expert_scores import EXPERT_SCORES_SOURCE, SCORINGS, Scoring
from kaas.kernel_library.routing.lane_topk import (
    INDEX_DTYPES,
    LANE_TOPK_SOURCE,
    MAX_TOPK,
    IndexDtype,
    index_pitch,
)
from kaas.kernel_library.routing.moe_gate_program import FLAG_PITCH, MOE_GATE_PROGRAM_SOURCE, moe_gate_program
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES
from kaas.kernel_library.vector.row_plan import (
    MAX_ROWS,
    VECTOR_LANES,
    RowPlan,
    RowTile,
    padded,
    plan_rows,
    require_row_tile,
)
from kaas.kernel_library.vector.whole_numbers import WHOLE_NUMBERS_SOURCE
from kaas.proto.errors import InvalidSpec
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

MAX_EXPERTS = 1024


class MoeGateSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="moe_gate"):
    """Router of a mixture of experts on the vector cores, fp32.

    Arguments in call order, those in brackets if the field of the name asks for them:
    logits[tokens, experts]; [bias[experts]]; [image_bias[experts], image_token_mask[tokens]]; [mask[tokens]];
    [fix_routing_mask[tokens]]; [to_physical_map[experts + shared_experts, duplicates]]; [logical_count
    [experts + shared_experts] if duplicates > 1]; topk_idx and topk_weights [tokens, topk + shared_experts];
    [unmapped_topk_idx[tokens, topk]]; [scores[tokens, experts]]; routed_scaling_factor; [ep_rank if
    duplicates > 1].

    ``groups`` > 1 restricts a token to the ``topk_groups`` groups whose two best experts rank highest.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    experts: Annotated[int, within(1, MAX_EXPERTS)]
    topk: Annotated[int, within(1, MAX_TOPK)]
    scoring: Scoring = "sqrtsoftplus"
    bias: bool = True
    image_bias: bool = False
    mask: bool = False
    fixed_routing: bool = False
    unmapped: bool = False
    scores: bool = False
    shared_experts: Annotated[int, within(0, 2)] = 0
    duplicates: Annotated[int, within(0, MAX_COPIES)] = 0
    groups: Annotated[int, within(1, MAX_GROUPS)] = 1
    topk_groups: Annotated[int, within(1, MAX_GROUPS)] = 1
    index_dtype: IndexDtype = "int64"
    tokens: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_int(self.experts, "experts", 1, MAX_EXPERTS)
        require_int(self.topk, "topk", 1, MAX_TOPK)
        require_one_of(self.scoring, "scoring", SCORINGS)
        for field in ("bias", "image_bias", "mask", "fixed_routing", "unmapped", "scores"):
            require_bool(getattr(self, field), field)
        require_int(self.shared_experts, "shared_experts", 0, 2)
        require_int(self.duplicates, "duplicates", 0, MAX_COPIES)
        require_int(self.groups, "groups", 1, MAX_GROUPS)
        require_int(self.topk_groups, "topk_groups", 1, MAX_GROUPS)
        require_one_of(self.index_dtype, "index_dtype", INDEX_DTYPES)
        require_dim(self.tokens, "tokens")
        require_row_tile(self.tile)
        _require(
            self.topk + self.shared_experts <= MAX_TOPK,
            "shared_experts",
            self.shared_experts,
            f"at most {MAX_TOPK - self.topk} with topk {self.topk}",
        )
        _require(
            self.unmapped or not self.fixed_routing,
            "unmapped",
            self.unmapped,
            "true with fixed_routing, whose indices are passed there",
        )
        _require(
            self.experts % self.groups == 0 and (self.groups == 1 or self.experts >= 2 * self.groups),
            "groups",
            self.groups,
            f"a divisor of the {self.experts} experts with at least two of them per group",
        )
        _require(
            self.topk_groups <= self.groups, "topk_groups", self.topk_groups, f"at most {self.groups} groups"
        )
        candidates = self.experts // self.groups * self.topk_groups
        _require(
            self.topk <= candidates, "topk", self.topk, f"at most the {candidates} experts to choose from"
        )

    @property
    def is_grouped(self) -> bool:
        """Whether some groups are left out."""
        return self.topk_groups < self.groups

    @property
    def physical_topk(self) -> int:
        """Experts per token, shared ones included."""
        return self.topk + self.shared_experts

    @property
    def logical_experts(self) -> int:
        """All experts, shared ones included."""
        return self.experts + self.shared_experts

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a row and the maps do not fit ``target``'s UB."""
        plan_of(self, target)


def _require(holds: bool, field: str, value: Any, legal: str) -> None:
    if not holds:
        raise InvalidSpec(f"{field} is {value}; legal: {legal}", field=field, legal=legal)


def plan_of(spec: MoeGateSpec, target: Target) -> RowPlan:
    """The row plan; raises :class:`DoesNotFit` if not even one row fits beside biases and maps."""
    row = padded(spec.experts) * (2 if spec.is_grouped else 1)
    row += index_pitch(spec.physical_topk, spec.index_dtype) + index_pitch(spec.physical_topk, "int32")
    row += index_pitch(spec.topk, spec.index_dtype) if spec.unmapped else 0
    flags = sum((spec.mask, spec.image_bias, spec.fixed_routing))
    fixed = padded(spec.experts) * sum((spec.bias, spec.image_bias))
    fixed += padded(spec.logical_experts * spec.duplicates)
    fixed += padded(spec.logical_experts) if spec.duplicates > 1 else 0
    fixed += MAX_ROWS * VECTOR_LANES  # the rows of winners
    return plan_rows(
        target,
        row_bytes=4 * row + flags,
        fixed_bytes=4 * fixed + 4 * FLAG_PITCH * flags,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        passes=3.0 * spec.topk + 10,
        what=f"a row of {spec.experts} logits with {spec.duplicates} copies of each expert",
        field="duplicates" if spec.duplicates else "experts",
        given=spec.tile,
    )


def build(spec: MoeGateSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores and UB size."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=moe_gate_program(spec, parameters(spec), plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: MoeGateSpec) -> tuple[Parameter, ...]:
    """What a call takes, in call order."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    chosen = (tokens, spec.physical_topk)

    def tensor(name: str, role: Any, dtype: str, *shape: Extent) -> Parameter:
        return Parameter(name=name, role=role, dtype=dtype, shape=shape)

    taken = [tensor("logits", "in", "fp32", tokens, spec.experts)]
    if spec.bias:
        taken.append(tensor("bias", "in", "fp32", spec.experts))
    if spec.image_bias:
        taken.append(tensor("image_bias", "in", "fp32", spec.experts))
        taken.append(tensor("image_token_mask", "in", "bool", tokens))
    if spec.mask:
        taken.append(tensor("mask", "in", "bool", tokens))
    if spec.fixed_routing:
        taken.append(tensor("fix_routing_mask", "in", "bool", tokens))
    if spec.duplicates:
        taken.append(tensor("to_physical_map", "in", "int32", spec.logical_experts, spec.duplicates))
    if spec.duplicates > 1:
        taken.append(tensor("logical_count", "in", "int32", spec.logical_experts))
    taken.append(tensor("topk_idx", "out", spec.index_dtype, *chosen))
    taken.append(tensor("topk_weights", "out", "fp32", *chosen))
    if spec.unmapped:
        role = "inout" if spec.fixed_routing else "out"
        taken.append(tensor("unmapped_topk_idx", role, spec.index_dtype, tokens, spec.topk))
    if spec.scores:
        taken.append(tensor("scores", "out", "fp32", tokens, spec.experts))
    taken.append(Parameter(name="routed_scaling_factor", role="scalar", dtype="fp32"))
    if spec.duplicates > 1:
        taken.append(Parameter(name="ep_rank", role="scalar", dtype="int32"))
    return tuple(taken)


FAMILY = Family(
    name="moe_gate",
    summary="expert scores from logits, the k best experts of each token and their normalised weights",
    spec_type=MoeGateSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(
        *ROW_KERNEL_SOURCES,
        EXPERT_COPIES_SOURCE,
        EXPERT_GROUPS_SOURCE,
        EXPERT_SCORES_SOURCE,
        LANE_TOPK_SOURCE,
        MOE_GATE_PROGRAM_SOURCE,
        WHOLE_NUMBERS_SOURCE,
    ),
    page=KernelPage(
        computes=(
            "Scores s = sqrt(log(1 + exp(logit))), or another `scoring`. Each token takes its `topk` experts "
            "with the largest s + bias, ties to the lower index; image tokens take `image_bias` instead "
            "(softmax ranks logit + bias). Their weights, without bias, are\n\n"
            "    w_k = s_k / (1e-20 + s_1 + ... + s_topk) * routed_scaling_factor\n\n"
            "summed in the order of the ranks. With `groups`, only experts in the `topk_groups` best groups "
            "are candidates; a group ranks by the sum of its two largest s + bias. Shared experts follow as "
            "ids `experts`, `experts` + 1 with weight 1. Tokens whose `mask` is false get index -1, weight 0 "
            "and score 0. With `duplicates` the indices become physical experts: for token t, copy "
            "(ep_rank + 23333 t) mod `logical_count[e]` of expert e. Logits are finite; a token with one "
            "that is not spoils no other token."
        ),
        arguments={
            "logits": "row-major fp32",
            "bias": "fp32, added for ranking only",
            "image_bias": "fp32, in place of `bias` for image tokens",
            "image_token_mask": "true for image tokens",
            "mask": "true for tokens that take part",
            "fix_routing_mask": "true for tokens that keep the experts passed in `unmapped_topk_idx`",
            "to_physical_map": "row-major int32, the copies of each logical expert",
            "logical_count": "int32, how many copies each has, 1 to `duplicates`",
            "topk_idx": "routed experts, best first, then shared ones; physical if there is a map",
            "topk_weights": "fp32, in the same order",
            "unmapped_topk_idx": (
                "logical routed experts; read first where routing is fixed, where -1 stands for none"
            ),
            "scores": "row-major fp32 scores of all experts, for the backward pass",
            "routed_scaling_factor": "factor of the routed experts' weights",
            "ep_rank": "expert-parallel rank, 0 to 2^24 - 1",
        },
        tolerance=(
            "selection exact; scores and weights 2^-20 of the value (exact for `identity`), down to scores "
            "of 2^-126, below which they may be 0"
        ),
        facts=(
            "TileKernels: moe_topk_gate_forward and, for groups and scoring functions, top2_sum_gate, whose "
            "numbering of experts by rank is left to mask_indices_by_tp",
            "TileKernels' random routing of marked tokens is not part of this kernel",
        ),
        serves=(
            "tile_kernels.moe.moe_topk_gate",
            "tile_kernels.moe.moe_topk_gate_forward",
            "tile_kernels.moe.top2_sum_gate",
        ),
        examples=(
            MoeGateSpec(experts=256, topk=8),
            MoeGateSpec(experts=384, topk=6, mask=True, unmapped=True, scores=True),
            MoeGateSpec(experts=256, topk=8, scoring="sigmoid", groups=8, topk_groups=4),
            MoeGateSpec(experts=256, topk=8, shared_experts=1, duplicates=33),
        ),
    ),
)
