"""Reference of mhc_head_mix_backward: the chain rule in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.token_blocks import block_sums

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_head_mix_backward import MhcHeadMixBackwardSpec


def reference(spec: MhcHeadMixBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``logits_grad``, and ``scale_grad`` and ``base_grad`` per block of 64 tokens, in float64."""
    gradient, logits, scale, base = (
        inputs[name].double() for name in ("mix_grad", "logits", "scale", "base")
    )
    level = (logits * scale + base).sigmoid()
    gradient = gradient * level * (1 - level)
    return {
        "logits_grad": gradient * scale,
        "scale_grad": block_sums((gradient * logits).sum(-1, keepdim=True)),
        "base_grad": block_sums(gradient),
    }
