"""Reference of mhc_split_mixes_backward: the chain rule in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kaas.kernel_library.references.token_blocks import block_sums

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_split_mixes_backward import MhcSplitMixesBackwardSpec


def reference(spec: MhcSplitMixesBackwardSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``mixes_grad``, and ``scale_grad`` and ``base_grad`` per block of 64 tokens, in float64."""
    streams = spec.streams
    sizes = [streams, streams, streams**2]
    scale, base, mixes = (inputs[name].double() for name in ("scale", "base", "mixes"))
    logits = [
        part * factor + shift
        for part, factor, shift in zip(mixes.split(sizes, dim=-1), scale, base.split(sizes), strict=True)
    ]
    levels = [logits[0].sigmoid(), logits[1].sigmoid()]
    gradients = [
        inputs["pre_mix_grad"].double() * levels[0] * (1 - levels[0]),
        inputs["post_mix_grad"].double() * levels[1] * (1 - levels[1]) * spec.post_mult,
        inputs["comb_mix_grad"].double().flatten(1),
    ]
    of_scale = [
        (gradient * part).sum(-1)
        for gradient, part in zip(gradients, mixes.split(sizes, dim=-1), strict=True)
    ]
    return {
        "mixes_grad": torch.cat([one * factor for one, factor in zip(gradients, scale, strict=True)], dim=-1),
        "scale_grad": block_sums(torch.stack(of_scale, dim=-1)),
        "base_grad": block_sums(torch.cat(gradients, dim=-1)),
    }
