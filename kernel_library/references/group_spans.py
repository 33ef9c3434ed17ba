"""Spans of groups along a shared axis, from their ends, as the references read them."""

from __future__ import annotations

from torch import Tensor

ALIGNMENT = 256
"""A group starts at the end of the one before, rounded up to a multiple of this."""


def spans_of(layout: Tensor, extent: int) -> list[tuple[int, int]]:
    """Start and end of each group on an axis of ``extent`` elements; an empty group has end = start."""
    spans, end = [], 0
    for stated in layout.tolist():
        start = min(-(-end // ALIGNMENT) * ALIGNMENT, extent)
        end = max(start, min(stated, extent))
        spans.append((start, end))
    return spans
