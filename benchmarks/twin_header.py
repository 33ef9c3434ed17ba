"""Row 11: the twin's compile of the library's kernels, with and without its precompiled header.

One example of every family is lowered once; each source is then compiled with the header and without (its
folder is set to a place that cannot be made), in turns, on one core. The ratio is of the sums of the medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.node import DAEMON_CORE, SOC, child_environment, pinned_json
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.spread import spread


def measure(effort: Effort) -> Outcome:
    """In a child on one core."""
    order = {"families": effort.times(60, 6), "rounds": effort.times(2)}
    taken = pinned_json("twin_header", order, child_environment(), core=DAEMON_CORE, timeout=3600)
    series = {"11 with the header": Series(), "11 without it": Series()}
    sums = {"with": 0.0, "without": 0.0}
    for one in taken["kernels"].values():
        series["11 with the header"].samples += one["with"]
        series["11 without it"].samples += one["without"]
        for side in sums:
            sums[side] += spread(one[side])["median"]
    row = Row(
        number="11",
        measured=f"twin compile of {len(taken['kernels'])} of the library's kernels",
        against="without its precompiled header",
        checks=(
            Check(
                what="times faster",
                value=sums["without"] / sums["with"],
                unit="x",
                direction=">=",
                target=2,
                ratio=True,
            ),
        ),
    )
    slow = sorted(taken["kernels"].items(), key=lambda item: spread(item[1]["with"])["median"])[-5:]
    notes = [
        "Slowest with it: " + ", ".join(f"{k} {spread(v['with'])['median']:.2f} s" for k, v in slow) + "."
    ]
    return Outcome(rows=[row], series=series, notes=notes)


def _samples(families: int, rounds: int) -> dict[str, Any]:
    """In the child."""
    from benchmarks.library_specs import examples
    from kaas.compiler.compile_options import split_options
    from kaas.compiler.environment import describe_environment
    from kaas.compiler.generator import templates_root
    from kaas.compiler.lowering import lower
    from kaas.compiler.toolkit import find_toolkit
    from kaas.kernel_library.targets import target_named

    toolkit = find_toolkit(os.environ)
    target = target_named(SOC)
    environment = describe_environment(toolkit, target, "configured", generation=1, socket="")
    options, _ = split_options(environment.options, templates_root())
    first: dict[str, Any] = {}
    for name, spec in examples():
        first.setdefault(name, spec)
    chosen = list(first)[:: max(1, len(first) // families)][:families]
    kernels: dict[str, dict[str, list[float]]] = {name: {"with": [], "without": []} for name in chosen}
    with tempfile.TemporaryDirectory() as work:
        blocker = Path(work, "file")
        blocker.write_text("")
        sides = {"with": {}, "without": {"KAAS_TWIN_PCH_DIR": str(blocker / "none")}}
        sources = {name: lower(first[name], target).source for name in chosen}
        for turn in range(rounds + 1):
            for name, source in sources.items():
                Path(work, "kernel.asc").write_text(source)
                for side in ("with", "without") if turn % 2 else ("without", "with"):
                    begin = time.monotonic()
                    subprocess.run(
                        [str(toolkit.bisheng), *options, "kernel.asc", "-o", "kernel.rel.o"],
                        cwd=work,
                        env={**os.environ, **sides[side]},
                        check=True,
                        capture_output=True,
                    )
                    if turn:
                        kernels[name][side].append(time.monotonic() - begin)
                if turn == 0 and name == chosen[min(2, len(chosen) - 1)]:
                    break  # the warm-up needs a few compiles only
    return {"kernels": kernels}


if __name__ == "__main__":
    print(json.dumps(_samples(**json.loads(sys.argv[1]))))
