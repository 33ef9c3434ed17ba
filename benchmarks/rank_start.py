"""A rank's cold start: process start to callable kernel, warm caches, kaas against TileLang alone.

Both sides start a fresh interpreter which loads torch (a rank has it anyway), asks for the same GEMM and
prints when the kernel was callable. kaas reads the node's store; TileLang reads its own disk
cache with the same toolkit as compiler. The two are interleaved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from node import Node, running_node
from statistics_of import human_seconds, summary

from kaas.cache.environment_file import read_environment

CLOCK = """
import resource, time
def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)
"""
REPORT = 'print("CALLABLE", now(), loaded, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)'
SPEC = "GemmSpec(n=1024, k=1024, m=1024)"
KAAS = f"""
from kaas import GemmSpec, get_kernel
kernel = get_kernel({SPEC})
assert callable(kernel)
"""
TILELANG = f"""
import tilelang
from tvm.target import Target
from kaas.kernel_library.families.gemm import GemmSpec, build
from kaas.kernel_library.targets import target_named
with Target({{"kind": "ascend"}}):
    built = build({SPEC}, target_named("Ascend950PR_9579"))
    kernel = tilelang.compile(built.prim_func, target="ascend", pass_configs=built.pass_configs)
assert callable(kernel)
"""


def _start(body: str, environ: dict[str, str], *, with_torch: bool) -> dict[str, float]:
    """Run one rank: seconds from process start and from the end of torch's import, and peak RSS (KiB)."""
    code = "\n".join((CLOCK, "import torch" if with_torch else "", "loaded = now()", body, REPORT))
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    line = next((text for text in finished.stdout.splitlines() if text.startswith("CALLABLE")), None)
    if finished.returncode or line is None:
        raise RuntimeError(f"a rank failed:\n{finished.stdout}\n{finished.stderr}")
    _, ready, loaded, rss = line.split()
    return {
        "total": float(ready) - before,
        "after_torch": float(ready) - float(loaded),
        "rss_kib": float(rss),
    }


def measure(rounds: int = 9) -> dict[str, Any]:
    """Interleaved cold starts of both sides."""
    with (
        running_node(soc_name="Ascend950PR_9579") as node,
        tempfile.TemporaryDirectory(prefix="tilelang-") as cache,
    ):
        tilelang_environ = _tilelang_environment(node, Path(cache))
        sides = {"kaas": (KAAS, node.environ), "tilelang": (TILELANG, tilelang_environ)}
        for body, environ in sides.values():
            _start(body, environ, with_torch=True)  # fill the caches
        samples: dict[str, list[dict[str, float]]] = {
            "kaas": [],
            "tilelang": [],
            "kaas_without_torch": [],
            "torch_only": [],
        }
        for _ in range(rounds):
            for name, (body, environ) in sides.items():
                samples[name].append(_start(body, environ, with_torch=True))
            samples["kaas_without_torch"].append(_start(KAAS, node.environ, with_torch=False))
            samples["torch_only"].append(_start("", node.environ, with_torch=True))
    result: dict[str, Any] = {
        name: {field: summary([sample[field] for sample in rows]) for field in rows[0]}
        for name, rows in samples.items()
    }
    result["ratio_after_torch"] = (
        result["tilelang"]["after_torch"]["median"] / result["kaas"]["after_torch"]["median"]
    )
    result["ratio_total"] = result["tilelang"]["total"]["median"] / result["kaas"]["total"]["median"]
    result["kaas_extra_rss_mib"] = (
        result["kaas"]["rss_kib"]["median"] - result["torch_only"]["rss_kib"]["median"]
    ) / 1024
    return result


def _tilelang_environment(node: Node, cache: Path) -> dict[str, str]:
    environment = read_environment(node.store)
    assert environment is not None
    home = environment.locality.toolkit_home
    return {**os.environ, "BISHENG_HOME": home, "TILELANG_CACHE_DIR": str(cache)}


def rows(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Table rows: what, kaas, against, ratio."""

    def cell(side: str, field: str) -> str:
        values = result[side][field]
        spread = " to ".join(human_seconds(values[quartile]) for quartile in ("p25", "p75"))
        return f"{human_seconds(values['median'])} ({spread})"

    return [
        (
            "rank with torch loaded: imports + first `get_kernel` to callable handle, warm store",
            cell("kaas", "after_torch"),
            "TileLang's disk cache: " + cell("tilelang", "after_torch"),
            f"{result['ratio_after_torch']:.0f} x faster",
        ),
        (
            "whole process, torch's own import included",
            cell("kaas", "total"),
            "TileLang: " + cell("tilelang", "total"),
            f"{result['ratio_total']:.1f} x faster",
        ),
    ]
