"""All kernels of one model layer: compiled on a cold node, then got again by a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from node import Node, running_node
from statistics_of import human_seconds, summary

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
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


def _cold(node: Node, manifest: Path) -> dict[str, float]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "kaas.client.cli", "prewarm", str(manifest), "--json"]
    done = subprocess.run(
        command, env=node.environ, stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    wall = time.perf_counter() - start
    last = json.loads(done.stdout.splitlines()[-1])
    return {"wall": wall, "kernels": float(last["total"]), "ready": float(last["ready"])}


def _warm(node: Node, manifest: Path) -> float:
    command = [sys.executable, "-c", FRESH_RANK, str(manifest)]
    done = subprocess.run(
        command, env=node.environ, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return float(done.stdout)


def measure(rounds: int = 3, warm_rounds: int = 7) -> dict[str, Any]:
    """Every round is a node with an empty store; the warm side are fresh processes on the same node."""
    result: dict[str, Any] = {}
    for model, name in LAYERS.items():
        manifest = EXAMPLES / name
        cold, warm, kernels = [], [], 0.0
        for _ in range(rounds):
            with running_node(soc_name="Ascend950PR_9579") as node:
                one = _cold(node, manifest)
                if one["ready"] != one["kernels"]:
                    raise RuntimeError(f"{one['kernels'] - one['ready']:.0f} kernels of {model} failed")
                cold.append(one["wall"])
                kernels = one["kernels"]
                warm += [_warm(node, manifest) for _ in range(warm_rounds)]
        result[model] = {"kernels": kernels, "cold": summary(cold), "warm": summary(warm)}
    return result


def rows(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Table rows: what, warm, against cold, ratio."""

    def cell(values: dict[str, float]) -> str:
        median, low, high = (human_seconds(values[name]) for name in ("median", "p25", "p75"))
        return f"{median} ({low} to {high})"

    return [
        (
            f"all {one['kernels']:.0f} kernels of a {model} layer, in a fresh process",
            f"warm store: {cell(one['warm'])}",
            f"cold node, compiled by two workers: {cell(one['cold'])}",
            f"{one['cold']['median'] / one['warm']['median']:.0f} x faster",
        )
        for model, one in result.items()
    ]
