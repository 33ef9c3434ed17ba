"""Summaries of samples: the median with its quartiles, the 99th percentile, how many there were."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = dict[str, float]


def percentile(samples: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest samples."""
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(samples: Sequence[float]) -> Spread:
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


def thinned(samples: Sequence[float], most: int = 1000) -> list[float]:
    """At most ``most`` of the samples, evenly over their order in time, to six digits."""
    step = max(1, -(-len(samples) // most))
    return [float(f"{sample:.6g}") for sample in samples[::step]]


def human_seconds(value: float) -> str:
    """Seconds in the unit a person would use."""
    sign, size = ("-", -value) if value < 0 else ("", value)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= scale:
            return f"{sign}{size / scale:.3g} {unit}"
    return f"{sign}{size / 1e-9:.3g} ns"


def human(value: float, unit: str) -> str:
    """A number with its unit: seconds scaled, ratios as ``x``, anything else as it is."""
    if unit == "s":
        return human_seconds(value)
    return f"{value:.3g} {unit}".rstrip()
