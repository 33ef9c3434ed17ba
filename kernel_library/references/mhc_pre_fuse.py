"""Reference of mhc_pre_fuse in float64, written from the mathematics of its four steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaas.kernel_library.references.mhc_sinkhorn import sinkhorn

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_pre_fuse import MhcPreFuseSpec


def reference(spec: MhcPreFuseSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``post_mix``, ``comb_mix`` and ``y`` in float64."""
    streams = spec.streams
    sizes = [streams, streams, streams**2]
    mean = inputs["square_sum"].double() / (streams * spec.hidden)
    normed = inputs["mixes"].double() * (mean + spec.norm_eps).rsqrt().unsqueeze(-1)
    scale, base = inputs["scale"].double(), inputs["base"].double().split(sizes)
    pre, post, comb = (part * scale[i] + base[i] for i, part in enumerate(normed.split(sizes, dim=-1)))
    pre_mix = pre.sigmoid() + spec.pre_eps
    return {
        "post_mix": post.sigmoid() * spec.post_mult,
        "comb_mix": sinkhorn(comb.unflatten(-1, (streams, streams)), spec.repeat, spec.sinkhorn_eps),
        "y": (pre_mix.unsqueeze(-1) * inputs["x"].double()).sum(1),
    }
