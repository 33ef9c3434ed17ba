"""Reference of mhc_split_mixes in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_split_mixes import MhcSplitMixesSpec


def reference(spec: MhcSplitMixesSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``pre_mix``, ``post_mix`` and ``comb_mix`` in float64."""
    streams = spec.streams
    scale = inputs["scale"].double()
    pre, post, comb = inputs["mixes"].double().split([streams, streams, streams**2], dim=-1)
    pre_base, post_base, comb_base = inputs["base"].double().split([streams, streams, streams**2])
    return {
        "pre_mix": (pre * scale[0] + pre_base).sigmoid() + spec.pre_eps,
        "post_mix": (post * scale[1] + post_base).sigmoid() * spec.post_mult,
        "comb_mix": (comb * scale[2] + comb_base).unflatten(-1, (streams, streams)),
    }
