"""Rows 1a and 1b: a rank's first kernel from a warm node, against TileLang's own disk cache.

1a: a fresh interpreter has loaded torch (a rank has it anyway), asks for a GEMM and says when it was
callable, imports of kaas or TileLang included. 1b: a fresh interpreter has imported torch, TileLang and kaas
and has got another kernel from both, so that what either imports late is loaded; then the first kernel is
timed on both sides, in turns. Either side starts from the spec: TileLang traces the program before it can
look it up.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.node import CLIENT_CORE, DAEMON_CORE, pinned_run, running_node
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.tilelang_side import tilelang_environment

_CLOCK = """
import json, os, time
def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
import torch
"""
_SAY = "\nprint(json.dumps([now() - loaded, resident() - before]))"
_KAAS = """
before, loaded = resident(), now()
from kaas import GemmSpec, get_kernel
kernel = get_kernel(GemmSpec(n=1024, k=1024, m=1024))
assert callable(kernel)
"""
_FOUND = '\nassert kernel.origin == "store"'
_TILELANG = """
before, loaded = resident(), now()
import tilelang
from tvm.target import Target
from kaas.kernel_library.families.gemm import GemmSpec, build
from kaas.kernel_library.targets import target_named
with Target({"kind": "ascend"}):
    built = build(GemmSpec(n=1024, k=1024, m=1024), target_named("Ascend950PR_9579"))
    kernel = tilelang.compile(built.prim_func, target="ascend", pass_configs=built.pass_configs)
assert callable(kernel)
"""
_BOTH = """
import sys
import tilelang
from tvm.target import Target
from kaas import GemmSpec, get_kernel
from kaas.kernel_library.families.gemm import build
from kaas.kernel_library.targets import target_named
target = target_named("Ascend950PR_9579")
traced = 0.0
def with_tilelang(spec):
    global traced
    begin = now()
    with Target({"kind": "ascend"}):
        built = build(spec, target)
        traced = now() - begin
        return tilelang.compile(built.prim_func, target="ascend", pass_configs=built.pass_configs)
other, spec = GemmSpec(n=512, k=1024, m=1024), GemmSpec(n=1024, k=1024, m=1024)
with_tilelang(other), get_kernel(other)
found = {}
for side in SIDES:
    begin = now()
    kernel = get_kernel(spec) if side == "kaas" else with_tilelang(spec)
    found[side] = now() - begin
    assert callable(kernel)
found["trace"] = traced
found["origin"] = get_kernel(spec).origin
print(json.dumps(found))
"""


def measure(effort: Effort) -> Outcome:
    """Interleaved starts of all sides, pinned to one core."""
    series = {
        name: Series()
        for name in ("1a kaas", "1a tilelang", "1b kaas", "1b tilelang", "1b tilelang, tracing alone")
    } | {"1a memory above torch": Series(unit="MB")}
    with (
        running_node(core=DAEMON_CORE) as node,
        tempfile.TemporaryDirectory(prefix="kaas-bench-tilelang-") as cache,
    ):
        environ = {**node.environ, **tilelang_environment(node, Path(cache))}

        def start(body: str) -> str:
            return pinned_run(["-c", _CLOCK + body], environ, core=CLIENT_CORE).splitlines()[-1]

        # Fill both caches, and load every compiled module once.
        start(_BOTH.replace("SIDES", "('kaas', 'tilelang')"))
        kaas = _KAAS + _SAY + _FOUND
        for body in (kaas, _TILELANG + _SAY):
            start(body)
        for turn in range(effort.times(9, 3)):
            for _ in range(2):
                seconds, memory = json.loads(start(kaas))
                series["1a kaas"].samples.append(seconds)
                series["1a memory above torch"].samples.append(memory / 1e6)
            series["1a tilelang"].samples.append(json.loads(start(_TILELANG + _SAY))[0])
            sides = ("kaas", "tilelang") if turn % 2 else ("tilelang", "kaas")
            both = json.loads(start(_BOTH.replace("SIDES", repr(sides))))
            assert both["origin"] == "store"
            series["1b kaas"].samples.append(both["kaas"])
            series["1b tilelang"].samples.append(both["tilelang"])
            series["1b tilelang, tracing alone"].samples.append(both["trace"])
    return Outcome(rows=_rows(series), series=series, notes=_notes(series))


def _rows(series: dict[str, Series]) -> list[Row]:
    a, b = (series[f"{row} tilelang"].median / series[f"{row} kaas"].median for row in ("1a", "1b"))
    return [
        Row(
            number="1a",
            measured="rank with torch loaded: imports and first get_kernel to callable handle, warm store",
            against="the same through TileLang's disk cache",
            checks=(
                Check(what="times faster", value=a, unit="x", direction=">=", target=100, ratio=True),
                Check(
                    what="added time", value=series["1a kaas"].median, unit="s", direction="<=", target=0.060
                ),
                Check(
                    what="added memory",
                    value=series["1a memory above torch"].median,
                    unit="MB",
                    direction="<=",
                    target=20,
                ),
            ),
        ),
        Row(
            number="1b",
            measured="the same with both already imported",
            against="TileLang's disk hit",
            checks=(Check(what="times faster", value=b, unit="x", direction=">=", target=20, ratio=True),),
        ),
    ]


def _notes(series: dict[str, Series]) -> list[str]:
    tracing = series["1b tilelang, tracing alone"].median
    without = (series["1b tilelang"].median - tracing) / series["1b kaas"].median
    return [
        f"Of TileLang's time in row 1b, {1000 * tracing:.1f} ms trace the program; "
        f"its look-up and load alone take {without:.0f} x kaas's time."
    ]
