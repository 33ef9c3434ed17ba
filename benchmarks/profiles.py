"""Flame graphs, sampled by py-spy: the hot path, a rank's first kernel, and a cold compile in a worker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.filled_store import fill, spec_number
from benchmarks.flame_graph import flame_graph
from benchmarks.node import CLIENT_CORE, Node, on_core, running_node
from benchmarks.results import PICTURES

KERNELS = 200
SECONDS = 12


def write() -> None:
    """docs/benchmarks/flame-*.svg."""
    if shutil.which("py-spy") is None:
        raise SystemExit("py-spy is needed: pip install 'ascend-kaas[bench]'")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        with running_node(directory, warm=False):
            pass
        for _ in fill(directory / "store", KERNELS, 256 << 10):
            pass
        with running_node(directory) as node:
            hot = _sampled(node, [sys.executable, "-m", "benchmarks.profiles", "hit"], directory, native=True)
            _draw("flame-hit", "get_kernel, first time in the process: where a store hit's time goes", hot)
            cold = _sampled_compiles(node, directory)
            _draw("flame-compile", "Cold compiles of small GEMMs: where a worker's time goes", cold)


def _draw(name: str, title: str, folded: dict[tuple[str, ...], int]) -> None:
    (PICTURES / f"{name}.svg").write_text(flame_graph(folded, title))


def _sampled(node: Node, command: list[str], directory: Path, *, native: bool) -> dict[tuple[str, ...], int]:
    raw = directory / "stacks.txt"
    options = ["--rate", "500", "--format", "raw", "--output", str(raw), *(["--native"] if native else [])]
    subprocess.run(
        ["py-spy", "record", *options, "--", *command],
        env=node.environ,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=on_core(CLIENT_CORE),
    )
    return _below(raw, "_store_hits")


def _sampled_compiles(node: Node, directory: Path) -> dict[tuple[str, ...], int]:
    """The daemon's process tree while it compiles; waiting counts, since workers wait for the toolchain."""
    from kaas.client.daemon_link import DaemonLink

    raw = directory / "compiles.txt"
    options = ["--rate", "100", "--format", "raw", "--output", str(raw), "--subprocesses", "--idle"]
    profiler = subprocess.Popen(
        ["py-spy", "record", *options, "--pid", str(node.process.pid), "--duration", "30"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2)
    link = DaemonLink(node.socket)
    n = 4096
    while profiler.poll() is None:
        n += 16
        link.get_kernel(json.dumps({"family": "gemm", "n": n, "k": 512, "m": 512}).encode(), timeout=300)
    link.close()
    return _below(raw, "compile_job")


def _below(raw: Path, function: str) -> dict[tuple[str, ...], int]:
    """Stacks that pass through ``function``, from there on, with their counts."""
    found: dict[tuple[str, ...], int] = {}
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_without_line(frame) for frame in stack.split(";")]
        start = next((at for at, frame in enumerate(frames) if frame.startswith(function + " ")), None)
        if start is not None:
            key = tuple(frames[start:])
            found[key] = found.get(key, 0) + int(count)
    if not found:
        raise RuntimeError(f"no sample of {function} was taken")
    return found


def _without_line(frame: str) -> str:
    """``name (file.py:12)`` without the line and the folders."""
    name, _, place = frame.partition(" (")
    file = place.rstrip(")").rpartition(":")[0] or place.rstrip(")")
    return f"{name} ({file.rpartition('/')[2]})" if file else name


def _store_hits(specs: list[Any], seconds: float) -> int:
    """What the first flame graph shows: gets of specs that the process does not have."""
    from kaas import get_kernel
    from kaas.client import api

    hits, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        api._memo.clear()
        for spec in specs:
            get_kernel(spec)
        hits += len(specs)
    return hits


if __name__ == "__main__":
    _store_hits([spec_number(number) for number in range(KERNELS)], SECONDS)
