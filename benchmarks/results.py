"""Recorded results: results.json (summaries and verdicts), raw samples, plots and the page."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.node import ROOT
from benchmarks.outcome import Outcome, Row, least_good, row_from

RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "benchmarks"
KEPT_RUNS = 5
"""Full runs whose ratios are kept: one machine has its moods, and the next one has others."""


def load() -> dict[str, dict[str, Any]]:
    """By benchmark; empty when nothing is recorded."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def recorded_rows(name: str) -> list[Row]:
    """The rows of the last run, each ratio as the least good of the kept full runs found it."""
    kept = load()[name]
    return least_good(
        [row_from(row) for row in kept["rows"]], [run["ratios"] for run in kept.get("runs", ())]
    )


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    about = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in about if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def record(name: str, outcome: Outcome, effort: Effort) -> None:
    """Keep one benchmark's summary and samples, and draw it if matplotlib is installed."""
    kept = load()
    runs = kept.get(name, {}).get("runs", [])
    if effort.scale >= 1:
        this = {"date": time.strftime("%Y-%m-%d"), "cpu": machine()["cpu"], "ratios": outcome.ratios()}
        runs = [*runs, this][-KEPT_RUNS:]
    kept[name] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "scale": effort.scale,
        "load": round(os.getloadavg()[0], 1),
        **outcome.summary(),
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"{name}.json").write_text(json.dumps(outcome.raw(), separators=(",", ":")) + "\n")
    if importlib.util.find_spec("matplotlib") is not None:
        from benchmarks.plots import draw

        draw(name, outcome.raw(), PICTURES)


def write_page() -> None:
    """docs/benchmarks.md from what is recorded."""
    from benchmarks.page import page

    PAGE.write_text(page(load(), PICTURES))
