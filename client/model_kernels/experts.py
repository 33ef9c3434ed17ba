"""A mixture of experts: router, gate, rows to experts and back, the experts' products.

With ``ep`` above 1 rows travel between ranks, and what each card computes of that is listed; the transfer
itself is the network runtime's. With ``ep`` 1 rows are sorted by expert on the rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kaas.client.model_kernels.products import SCALES, Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.cast import CastSpec
from kaas.kernel_library.families.ep_combine import EpCombineSpec
from kaas.kernel_library.families.ep_expand import EpExpandSpec
from kaas.kernel_library.families.ep_layout import EpLayoutSpec
from kaas.kernel_library.families.ep_pack import EpPackSpec
from kaas.kernel_library.families.ep_prefix import EpPrefixSpec
from kaas.kernel_library.families.expand_to_fused import ExpandToFusedSpec
from kaas.kernel_library.families.fused_mapping import FusedMappingSpec
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec
from kaas.kernel_library.families.moe_gate import MoeGateSpec
from kaas.kernel_library.families.moe_gate_backward import MoeGateBackwardSpec
from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec
from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec
from kaas.kernel_library.routing.expert_parallel import ExpertParallelTopology
from kaas.proto.errors import InvalidSpec

ROW_ALIGNMENT = 256
"""Rows of an expert start at multiples of this in every grouped product."""
PAIR = 64
"""Values whose two scales are one 16-bit word."""


class ExpertFacts(NamedTuple):
    """What a configuration says about its experts; ``gate`` are fields of moe_gate."""

    hidden: int
    experts: int
    topk: int
    intermediate: int
    shared_intermediate: int
    gate: dict[str, Any]
    clamp: float | None = None


def mixture_of_experts(step: Step, layers: Layers, facts: ExpertFacts) -> None:
    """One layer's router, experts and shared experts."""
    _router(step, layers, facts)
    if facts.shared_intermediate:
        width = step.deployment.share("width of the shared experts", facts.shared_intermediate)
        step.gated_mlp(layers, "shared_experts", hidden=facts.hidden, intermediate=width, clamp=facts.clamp)
    local = step.deployment.share("number of experts", facts.experts, "ep")
    if step.deployment.ep > 1:
        width = facts.intermediate
        topology = _topology(step, layers, facts)
        if topology is not None:
            _dispatch(step, layers, facts, topology)
    else:
        width = step.deployment.share("moe_intermediate_size", facts.intermediate)
        topology = None
        _sort_rows(step, layers, facts)
    _products(step, layers, facts, local, width)
    if topology is not None:
        _combine(step, layers, facts, topology)
    elif step.deployment.ep == 1:
        _join_rows(step, layers, facts)


def _router(step: Step, layers: Layers, facts: ExpertFacts) -> None:
    step.product(layers, "router", n=facts.experts, k=facts.hidden, is_scaled=False, dtype_d="fp32")
    step.wishes.want(
        layers,
        "gate",
        MoeGateSpec,
        experts=facts.experts,
        topk=facts.topk,
        scores=step.trains,
        tokens=step.tokens,
        **facts.gate,
    )
    if step.trains:
        step.wishes.want(
            layers,
            "gate, gradient",
            MoeGateBackwardSpec,
            experts=facts.experts,
            topk=facts.topk,
            scoring=facts.gate["scoring"],
            tokens=step.tokens,
        )
        dtype = step.deployment.plain_dtype
        needs = f"gradients of logits as {dtype}"
        step.wishes.lacks(layers, "router, gradients", needs, "no family rounds fp32 rows to it")


def _payload(step: Step, facts: ExpertFacts) -> dict[str, Any]:
    if step.deployment.is_scaled:
        return {"hidden": facts.hidden, "dtype": "e4m3", "scale_packs": -(-facts.hidden // PAIR)}
    return {"hidden": facts.hidden, "dtype": step.deployment.plain_dtype}


def _topology(step: Step, layers: Layers, facts: ExpertFacts) -> ExpertParallelTopology | None:
    try:
        return ExpertParallelTopology(
            ranks=step.deployment.ep,
            experts=facts.experts,
            topk=facts.topk,
            max_tokens_per_rank=step.deployment.slots(step.queries),
            expert_alignment=ROW_ALIGNMENT,
        )
    except InvalidSpec as refusal:
        step.wishes.lacks(layers, "dispatch and combine", "an expert-parallel topology", refusal.message)
        return None


def _rows_cast(step: Step, layers: Layers, what: str, facts: ExpertFacts) -> None:
    # Scales travel with their row, so that they are not [blocks, rows] yet.
    told = SCALES | {"col_major": False}
    step.wishes.want(layers, what, CastSpec, hidden=facts.hidden, tokens=step.tokens, **told)


def _dispatch(step: Step, layers: Layers, facts: ExpertFacts, topology: ExpertParallelTopology) -> None:
    want, payload = step.wishes.want, _payload(step, facts)
    if step.deployment.is_scaled:
        _rows_cast(step, layers, "dispatch cast", facts)
    want(layers, "dispatch layout", EpLayoutSpec, topology=topology, tokens=step.tokens)
    want(layers, "dispatch records", EpPackSpec, topology=topology, tokens=step.tokens, **payload)
    want(layers, "dispatch counts", EpPrefixSpec, topology=topology)
    # Gradients of weights sum over padding, too.
    want(
        layers,
        "dispatch rows by expert",
        EpExpandSpec,
        topology=topology,
        zero_padding=step.trains,
        **payload,
    )
    step.wishes.lacks(
        layers, "dispatch and combine", "transfer of records between ranks", "the network runtime's part"
    )


def _combine(step: Step, layers: Layers, facts: ExpertFacts, topology: ExpertParallelTopology) -> None:
    want = step.wishes.want
    total = {"topology": topology, "hidden": facts.hidden, "tokens": step.tokens}
    if step.deployment.plain_dtype != "bf16":
        step.wishes.lacks(layers, "combine", "sums of fp16", "ep_combine has bf16")
        return
    # The shared experts' output is a bias of the sum.
    want(layers, "combine", EpCombineSpec, biases=1 if facts.shared_intermediate else 0, **total)
    if step.trains:
        payload = {"hidden": facts.hidden, "weights": False, "cached": True}
        want(
            layers, "combine, gradient: records", EpPackSpec, topology=topology, tokens=step.tokens, **payload
        )
        want(
            layers,
            "combine, gradient: rows by expert",
            EpExpandSpec,
            topology=topology,
            zero_padding=True,
            **payload,
        )
        want(layers, "dispatch, gradient", EpCombineSpec, **total)


def _sort_rows(step: Step, layers: Layers, facts: ExpertFacts) -> None:
    scaled = step.deployment.is_scaled
    if scaled:
        _rows_cast(step, layers, "cast for the experts", facts)
    step.wishes.want(
        layers,
        "rows by expert: places",
        FusedMappingSpec,
        experts=facts.experts,
        topk=facts.topk,
        alignment=ROW_ALIGNMENT,
        tokens=step.tokens,
    )
    told: dict[str, Any] = (
        {"dtype": "e4m3", "scales": "e8m0x2"} if scaled else {"dtype": step.deployment.plain_dtype}
    )
    step.wishes.want(
        layers,
        "rows by expert",
        ExpandToFusedSpec,
        hidden=facts.hidden,
        topk=facts.topk,
        tokens=step.tokens,
        **told,
    )


def _join_rows(step: Step, layers: Layers, facts: ExpertFacts) -> None:
    dtype = step.deployment.plain_dtype
    rows = {"hidden": facts.hidden, "topk": facts.topk, "tokens": step.tokens, "dtype": dtype}
    step.wishes.want(layers, "sum over experts", ReduceFusedSpec, dtype_y=dtype, **rows)
    if facts.shared_intermediate:
        step.wishes.lacks(
            layers, "shared_experts", "an addition of two outputs", "reduce_fused has no bias; no family adds"
        )
    if step.trains:
        step.wishes.want(layers, "sum over experts, gradient", ExpandToFusedSpec, **rows)
        unweighted = {"dtype_y": dtype, "weights": False}
        step.wishes.want(layers, "rows by expert, gradient", ReduceFusedSpec, **unweighted, **rows)
        step.wishes.lacks(
            layers,
            "sum over experts, gradient",
            "rows multiplied by, and gradients of, the routing weights",
            "swiglu has them for rows that bring their weights along, as with ep",
        )


def _products(step: Step, layers: Layers, facts: ExpertFacts, local: int, width: int) -> None:
    want = step.wishes.want
    scaled = step.deployment.is_scaled
    plain = step.deployment.plain_dtype
    weights = {"fp8": "e4m3", "fp4": "e2m1"}.get(step.deployment.expert_dtype, plain)
    inputs = "e4m3" if scaled else plain
    dtypes = {"dtype_a": inputs, "dtype_b": weights, "dtype_d": plain}
    if scaled:
        # Rows bring their scales along; products read them by blocks of K.
        want(layers, "experts: scales of rows", ScaleLayoutSpec, k=facts.hidden, source="e8m0x2", groups="m")
    want(layers, "experts.gate_up_proj", GroupedGemmSpec, groups=local, n=2 * width, k=facts.hidden, **dtypes)
    told: dict[str, Any] = {
        "hidden": width,
        "clamp": facts.clamp,
        "experts": local,
        "token_alignment": ROW_ALIGNMENT,
        "weights": step.deployment.ep > 1,
    }
    step.activation(layers, "experts.activation", told | ({"cast": "e4m3", **SCALES} if scaled else {}))
    want(layers, "experts.down_proj", GroupedGemmSpec, groups=local, n=facts.hidden, k=width, **dtypes)
    if step.trains:
        for name, n, k in (("gate_up", 2 * width, facts.hidden), ("down", facts.hidden, width)):
            _gradients(step, layers, f"experts.{name}_proj", local, n, k, dtypes, name == "gate_up")


def _gradients(
    step: Step,
    layers: Layers,
    what: str,
    groups: int,
    n: int,
    k: int,
    dtypes: dict[str, str],
    is_cast: bool,
) -> None:
    want = step.wishes.want
    place = f"{what}, gradient of the input"
    if step.deployment.is_scaled and not is_cast:
        want(layers, f"cast for {place}", CastSpec, hidden=n, **SCALES)
    want(layers, place, GroupedGemmSpec, groups=groups, n=k, k=n, layout="nn", **dtypes)
    place = f"{what}, gradient of the weight"
    if step.deployment.is_scaled:
        told = SCALES | {"granularity": "per_channel", "col_major": False}
        want(layers, f"cast of the gradient for {place}", CastSpec, hidden=n, **told)
        # Rows come quantised by rows; the activations of the second product are computed again.
        rows = {"in_dtype": "e4m3", "in_scales": "e8m0x2"} if is_cast else {}
        want(layers, f"cast of the input for {place}", CastSpec, hidden=k, **told, **rows)
    want(layers, place, KGroupedGemmSpec, groups=groups, m=n, n=k, dtype_a=dtypes["dtype_a"])
