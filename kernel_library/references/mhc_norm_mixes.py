"""Reference of mhc_norm_mixes in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_norm_mixes import MhcNormMixesSpec


def reference(spec: MhcNormMixesSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``normed``, and ``mixes`` and ``square_sum`` if they come in parts, in float64."""
    if spec.splits == 1:
        mixes, square_sum = inputs["mixes"].double(), inputs["square_sum"].double()
    else:
        mixes = inputs["mixes_parts"].double().sum(0)
        square_sum = inputs["square_sum_parts"].double().sum(0)
    outputs = {"normed": mixes * (square_sum / spec.hidden + spec.eps).rsqrt().unsqueeze(-1)}
    if spec.splits > 1:
        outputs |= {"mixes": mixes, "square_sum": square_sum}
    return outputs
