"""Eight ranks that want the same cold kernel at once, against one: compiler starts, CPU seconds, wall."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import psutil
from node import Node, running_node
from statistics_of import human_seconds, summary

RANK = """
import sys, time
from kaas import GemmSpec, get_kernel
get_kernel(GemmSpec(m=512, n=int(sys.argv[1]), k=512), timeout=300)
print(time.clock_gettime(time.CLOCK_MONOTONIC))
"""


def _cold_round(node: Node, n: int, ranks: int) -> dict[str, float]:
    before = _counters(node)
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(n)], env=node.environ, stdout=subprocess.PIPE, text=True
        )
        for _ in range(ranks)
    ]
    finished = [process.communicate(timeout=300)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank failed")
    after = _counters(node)
    return {
        "wall": max(float(text) for text in finished) - start,
        "starts": after["starts"] - before["starts"],
        "cpu": after["cpu"] - before["cpu"],
    }


def _counters(node: Node) -> dict[str, float]:
    """Compiler starts, and CPU seconds of the daemon with all its descendants, living and reaped."""
    process = psutil.Process(node.process.pid)
    cpu = 0.0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
    return {"starts": float(node.log.read_text().count("compiler start")), "cpu": cpu}


def measure(rounds: int = 7) -> dict[str, Any]:
    """Alternate rounds of one and of eight ranks, each on a spec that nobody compiled before."""
    samples: dict[int, list[dict[str, float]]] = {1: [], 8: []}
    with running_node(soc_name="Ascend950PR_9579") as node:
        n = 256
        _cold_round(node, n, 1)
        for _ in range(rounds):
            for ranks in samples:
                n += 16
                samples[ranks].append(_cold_round(node, n, ranks))
    result: dict[str, Any] = {
        str(ranks): {field: summary([row[field] for row in rows_]) for field in rows_[0]}
        for ranks, rows_ in samples.items()
    }
    result["ratio"] = {
        field: result["8"][field]["median"] / result["1"][field]["median"]
        for field in ("wall", "cpu", "starts")
    }
    return result


def rows(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Table rows: what, kaas, against, ratio."""

    def cell(ranks: str) -> str:
        values = result[ranks]
        return (
            f"{values['starts']['median']:.0f} compile, {human_seconds(values['wall']['median'])} wall "
            f"({human_seconds(values['wall']['p25'])} to {human_seconds(values['wall']['p75'])}), "
            f"{human_seconds(values['cpu']['median'])} CPU"
        )

    ratio = result["ratio"]
    return [
        (
            "8 ranks, same cold key at once",
            cell("8"),
            "1 rank: " + cell("1"),
            f"{ratio['starts']:.0f} x compiles, {ratio['wall']:.2f} x wall, {ratio['cpu']:.2f} x CPU",
        )
    ]
