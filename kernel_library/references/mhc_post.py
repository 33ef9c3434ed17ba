"""Reference of mhc_post in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.kernel_library.families.mhc_post import MhcPostSpec


def reference(spec: MhcPostSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``y`` in float64."""
    x, residual, post, comb = (inputs[name].double() for name in ("x", "residual", "post_mix", "comb_mix"))
    return {"y": x.unsqueeze(1) * post.unsqueeze(-1) + comb.transpose(1, 2) @ residual}
