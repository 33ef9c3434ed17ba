"""All kernels of one model layer: compiled on a cold node, then got again by a fresh process.

They are no row of the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.node import ROOT, Node, pinned_run, running_node
from benchmarks.outcome import Outcome, Series

EXAMPLES = ROOT / "examples"
LAYERS = {"DeepSeek-V3": "deepseek_v3_layer.yaml", "Qwen3-MoE": "qwen3_moe_layer.yaml"}
FRESH_RANK = """
import sys, time
from pathlib import Path
from kaas import get_kernel
from kaas.client.manifest import read_manifest
specs = [entry.spec for entry in read_manifest(Path(sys.argv[1]))]
start = time.perf_counter()
for spec in specs:
    get_kernel(spec, strict=True)
print(time.perf_counter() - start)
"""


def measure(effort: Effort) -> Outcome:
    """Every round is a node with an empty store; the warm side are fresh processes on the same node."""
    series: dict[str, Series] = {}
    notes = []
    for model, name in LAYERS.items():
        cold, warm = (
            series.setdefault(f"layers {model}, {side}", Series())
            for side in ("cold node", "fresh process, warm store")
        )
        kernels = 0
        for _ in range(effort.times(3)):
            with running_node() as node:
                seconds, kernels = _cold(node, EXAMPLES / name)
                cold.samples.append(seconds)
                for _ in range(effort.times(7, 2)):
                    printed = pinned_run(["-c", FRESH_RANK, str(EXAMPLES / name)], node.environ)
                    warm.samples.append(float(printed))
        notes.append(
            f"All {kernels} kernels of a {model} layer: "
            f"{cold.median / warm.median:.0f} times faster from a warm store."
        )
    return Outcome(rows=[], series=series, notes=notes)


def _cold(node: Node, manifest: Path) -> tuple[float, int]:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "kaas.client.cli", "prewarm", str(manifest), "--json"]
    done = subprocess.run(
        command, env=node.environ, stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    wall = time.perf_counter() - begin
    last = json.loads(done.stdout.splitlines()[-1])
    if last["ready"] != last["total"]:
        raise RuntimeError(f"{last['total'] - last['ready']} kernels failed")
    return wall, int(last["total"])
