"""Medians, spreads and ratios of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the samples lie, by linear interpolation."""
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Count, median, quartiles, p99, extremes; in the samples' unit."""
    return {
        "count": len(samples),
        "median": statistics.median(samples),
        "p25": percentile(samples, 0.25),
        "p75": percentile(samples, 0.75),
        "p99": percentile(samples, 0.99),
        "min": min(samples),
        "max": max(samples),
    }


def human_seconds(value: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
