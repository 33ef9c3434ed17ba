"""Plots of the samples: a panel for each row and unit; a dot for a sample, a box for quartiles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "kaas"
mpl.rcParams["svg.fonttype"] = "none"

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)

from benchmarks.spread import human, spread  # noqa: E402

OURS, THEIRS = "#1f6f8b", "#c8553d"
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def draw(name: str, raw: dict[str, Any], directory: Path) -> None:
    """Write ``<name>.png`` and ``<name>.svg``: a panel for each row of the table and unit."""
    panels: dict[tuple[str, str], dict[str, list[float]]] = {}
    for series, one in raw.items():
        row, _, what = series.partition(" ")
        if one["samples"]:
            panels.setdefault((row, one["unit"]), {})[what] = one["samples"]
    if not panels:
        return
    heights = [0.9 + 0.55 * len(one) for one in panels.values()]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(9, sum(heights) + 0.4),
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for axis, ((row, unit), sides) in zip(axes[:, 0], panels.items(), strict=True):
        _panel(axis, row, unit, sides)
    figure.savefig(directory / f"{name}.png", dpi=110)
    figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def _panel(axis: Any, row: str, unit: str, sides: dict[str, list[float]]) -> None:
    everything = [value for samples in sides.values() for value in samples]
    factor, label = _scale(unit, everything)
    draw_order = random.Random(7)
    positive = min(everything) > 0
    logarithmic = positive and max(everything) / min(everything) > 20
    for place, samples in enumerate(sides.values()):
        color = OURS if place % 2 == 0 else THEIRS
        values = [value / factor for value in samples]
        heights = [place + draw_order.uniform(-0.16, 0.16) for _ in values]
        axis.plot(values, heights, ".", color=color, alpha=0.25, markersize=3, rasterized=True)
        axis.boxplot(
            [values],
            positions=[place],
            vert=False,
            widths=0.5,
            whis=(1, 99),
            showfliers=False,
            medianprops={"color": "black", "linewidth": 2},
            manage_ticks=False,
        )
        found = spread(samples)
        axis.annotate(
            f"median {human(found['median'], unit)}",
            (found["median"] / factor, place + 0.29),
            ha="center",
            va="bottom",
            fontsize=8,
        )
    axis.set_yticks(range(len(sides)), list(sides), fontsize=9)
    axis.set_ylim(len(sides) - 0.4, -0.65)
    axis.invert_yaxis()
    axis.set_ylim(-0.5, len(sides) - 0.25)
    if logarithmic:
        axis.set_xscale("log")
    elif positive:
        axis.set_xlim(left=0)
    axis.set_xlabel(f"{label}{' (logarithmic)' if logarithmic else ''}", fontsize=9)
    axis.set_title(f"row {row}: box: quartiles, whiskers: 1 % and 99 %", fontsize=9, loc="left")
    axis.grid(axis="x", alpha=0.3)


def _scale(unit: str, values: list[float]) -> tuple[float, str]:
    if unit != "s":
        return 1.0, unit
    middle = sorted(abs(value) for value in values)[len(values) // 2]
    return next(((factor, name) for factor, name in _SCALES if middle >= factor), _SCALES[-1])
