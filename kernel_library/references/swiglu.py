"""Reference of swiglu: float64 from the inputs as they are; rows of padding, which nobody writes, are NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.cast_output import cast_output
from kaas.kernel_library.references.expert_rows import is_token

if TYPE_CHECKING:
    from kaas.kernel_library.families.swiglu import SwigluSpec


def reference(spec: SwigluSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` [tokens, hidden] in float64 and, if counted, the new ``clamped`` [4].

    With a cast, ``y`` and ``y_scales`` are the quantised fp32 result, rows of padding included; the kernel's
    own fp32 result may differ in the last bits.
    """
    x = inputs["x"].double()
    gate, up = x[:, : spec.hidden], x[:, spec.hidden :]
    tokens = torch.ones(len(x), dtype=torch.bool)
    if spec.experts:
        tokens = is_token(len(x), inputs["expert_ends"], spec.token_alignment)
    outputs = {}
    if spec.clamp is not None:
        bound = as_fp32(spec.clamp)
        if spec.count_clamped:
            cut_off = torch.stack((gate > bound, up > bound, up < -bound))[:, tokens].flatten(1).sum(1)
            seen = torch.tensor([int(tokens.sum()) * spec.hidden])
            outputs["clamped"] = inputs["clamped"] + torch.cat((cut_off, seen))
        gate, up = gate.clamp(max=bound), up.clamp(-bound, bound)
    y = gate / (1 + torch.exp(-gate)) * up
    if spec.weights:
        y = y * row_weights(spec, inputs)[:, None]
    if spec.cast == "none":
        outputs["y"] = torch.where(tokens[:, None], y, torch.nan)
    else:
        outputs["y"], outputs["y_scales"] = cast_output(spec, y.float())
    return outputs


def as_fp32(value: float) -> float:
    """What a constant of the kernel is once compiled."""
    return float(torch.tensor(value, dtype=torch.float32))


def row_weights(spec: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The factor of each row, its product with the scaling rounded to fp32 as the kernel's."""
    weights = inputs["weights"].float()
    return (weights * inputs["scaling"] if spec.scaling else weights).double()
