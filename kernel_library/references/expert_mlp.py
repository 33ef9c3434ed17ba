"""Reference of expert_mlp: group after group in float64, quantised between the products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.group_spans import spans_of
from kaas.kernel_library.references.scaled_products import operand, quantised
from kaas.kernel_library.references.swiglu import as_fp32

if TYPE_CHECKING:
    from kaas.kernel_library.families.expert_mlp import ExpertMlpSpec


def reference(spec: ExpertMlpSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``h``, ``h_scales`` as stored and ``y`` in float64: the old ones with the rows of groups replaced.

    The kernel's fp32 activation may differ from this one in the last bits, and where it does its quantised
    value may be the next one.
    """
    x = operand(inputs["x"], inputs["x_scales"], "e4m3")
    h, h_scales, y = inputs["h"].clone(), inputs["h_scales"].clone(), inputs["y"].double()
    for group, (start, end) in enumerate(spans_of(inputs["grouped_layout"], len(x))):
        if start == end:
            continue
        up_weights = operand(inputs["w1"][group], inputs["w1_scales"][group], spec.dtype_w)
        down_weights = operand(inputs["w2"][group], inputs["w2_scales"][group], spec.dtype_w)
        gate, up = (x[start:end] @ up_weights.T + 0.0).chunk(2, dim=1)
        if spec.clamp is not None:
            bound = as_fp32(spec.clamp)
            gate, up = gate.clamp(max=bound), up.clamp(-bound, bound)
        factor = inputs["weights"][start:end, None].double()
        values, scales = quantised(gate / (1 + torch.exp(-gate)) * up * factor)
        h[start:end], h_scales[:, start:end] = values, scales
        # One column is contiguous for torch whatever its stride, but only a stride of 1 can be seen as bytes.
        scales = scales.flatten().view(scales.shape)
        y[start:end] = operand(values, scales, "e4m3") @ down_weights.T + 0.0
    return {"h": h, "h_scales": h_scales, "y": y}
