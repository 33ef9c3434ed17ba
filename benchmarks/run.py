"""Run every benchmark on this machine and write docs/benchmarks.md and benchmarks/results.json.

python benchmarks/run.py            # all
python benchmarks/run.py hot_path   # some; the others keep their last results
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BENCHMARKS = {
    "rank_start": "Cold start of a rank",
    "hot_path": "get_kernel when the kernel exists",
    "stampede": "Many ranks, one cold kernel",
    "model_layers": "A whole layer, cold and warm",
    "store_scale": "A store of 100,000 kernels",
}


def _machine() -> dict[str, Any]:
    about = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in about if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _page(results: dict[str, Any]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Both sides of every row are measured in one run on one machine, interleaved; medians, quartiles",
        "in brackets. Nothing is skipped to win: every hit is verified. Kernels are built by the CPU twin's",
        "compiler on both sides: these are figures about getting a kernel, not about its speed on an NPU.",
        "",
        "Do it again: `.venv/bin/python benchmarks/run.py` (raw data: `benchmarks/results.json`).",
        "",
    ]
    for name, title in BENCHMARKS.items():
        if name not in results:
            continue
        machine = results[name]["machine"]
        module = importlib.import_module(name)
        lines += [
            f"## {title}",
            "",
            "{date}, {cpu}, {cores} cores, Python {python}.".format(date=results[name]["date"], **machine),
            "",
            "| what | kaas | against | ratio |",
            "|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in module.rows(results[name]["result"])),
            "",
        ]
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Run the named benchmarks (all without a name) and write the page."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or list(BENCHMARKS):
        print(f"{name} ...", flush=True)
        results[name] = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": _machine(),
            "result": importlib.import_module(name).measure(),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(_page(results))
    print(f"wrote {PAGE.name} and {RESULTS.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
