"""Reference of swiglu_backward: the formulas in float64; rows of padding are zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.cast_output import cast_output
from kaas.kernel_library.references.expert_rows import is_token
from kaas.kernel_library.references.swiglu import as_fp32, row_weights

if TYPE_CHECKING:
    from kaas.kernel_library.families.swiglu_backward import SwigluBackwardSpec


def reference(spec: SwigluBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``dx``, and what else the spec asks for, in float64.

    With a cast, ``dx_cast`` and ``dx_cast_scales`` are the quantised fp32 gradient; the kernel's own may
    differ in the last bits.
    """
    x = inputs["x"].double()
    if spec.dtype == "e4m3":
        x = (x * inputs["x_scales"].double().repeat_interleave(32, 1)).float().double()
    gate, up = x[:, : spec.hidden], x[:, spec.hidden :]
    dy = inputs["dy"].double()
    tokens = torch.ones(len(x), dtype=torch.bool)
    if spec.experts:
        tokens = is_token(len(x), inputs["expert_ends"], spec.token_alignment)
    gate_cut = up_cut = torch.zeros_like(gate, dtype=torch.bool)
    if spec.clamp is not None:
        bound = as_fp32(spec.clamp)
        gate_cut, up_cut = gate > bound, up.abs() > bound
        gate, up = gate.clamp(max=bound), up.clamp(-bound, bound)
    weights = row_weights(spec, inputs)[:, None] if spec.weights else torch.ones((len(x), 1))
    sigmoid = 1 / (1 + torch.exp(-gate))
    activation = gate * sigmoid * up
    through = dy * weights * sigmoid
    dgate = (through * up * (1 + gate * (1 - sigmoid))).masked_fill(gate_cut, 0.0)
    dup = (through * gate).masked_fill(up_cut, 0.0)
    dx = torch.cat((dgate, dup), 1).masked_fill(~tokens[:, None], 0.0)
    outputs = {"dx": dx}
    if spec.cast != "none":
        outputs["dx_cast"], outputs["dx_cast_scales"] = cast_output(spec, dx.float())
    if spec.weights:
        scaling = inputs["scaling"] if spec.scaling else 1.0
        outputs["dweights"] = ((dy * activation).sum(1) * scaling).masked_fill(~tokens, 0.0)
    if spec.recompute:
        outputs["y"] = (activation * weights).masked_fill(~tokens[:, None], 0.0)
    return outputs
