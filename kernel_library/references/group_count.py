"""Reference of group_count: a histogram by torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kaas.kernel_library.families.group_count import GroupCountSpec


def reference(spec: GroupCountSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``counts`` in int32."""
    indices = inputs["group_idx"].long().flatten()
    known = indices[(indices >= 0) & (indices < spec.groups)]
    return {"counts": torch.bincount(known, minlength=spec.groups).int()}
