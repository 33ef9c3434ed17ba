"""Row 5: a cold compile of a small GEMM in the daemon, against the same compile elsewhere.

Three sides, on kernels that nobody compiled before: the daemon, asked by a connected client; a fresh process
which imports TileLang, lowers and runs the toolchain; and a process which has TileLang warm and does the same
in itself. All compile on the same core with the same toolkit. Worker and warm process are to be equal within
a few per cent, by which a processor's clock may change from second to second: their first quartiles are
compared, since what disturbs a compile only adds to it. Each begins after a rest; the daemon is asked for
another kernel at once after the first, too.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.conversation import Child, children, serve
from benchmarks.effort import Effort
from benchmarks.node import DAEMON_CORE, SOC, Node, pinned_run, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

IN_PROCESS = "in process, TileLang warm"
AT_ONCE = "right after another compile: "
PAIRS = 18
PAIRS_TO_A_FRESH = 3
REST_S = 2.0


def measure(effort: Effort) -> Outcome:
    """Alternate the sides."""
    series: dict[str, Series] = {}
    with (
        running_node(core=DAEMON_CORE) as node,
        children(1, "cold_compile", node.environ, lambda number: DAEMON_CORE) as (warm,),
    ):
        from kaas.client.daemon_link import DaemonLink

        link = DaemonLink(node.socket)
        n = 256
        warm.ask(_order(node, n))
        _daemon_side(node, link, n)
        for turn in range(effort.times(PAIRS, 4)):
            n += 32
            found = _pair(node, link, warm, n, daemon_first=bool(turn % 2))
            if turn % PAIRS_TO_A_FRESH == 0:
                found["fresh process"] = _fresh_side(node, n)
            for name, value in found.items():
                series.setdefault(f"5 {name}", Series()).samples.append(value)
        link.close()
    return Outcome(rows=[_row(series)], series=series)


def _pair(node: Node, link: Any, warm: Child, n: int, *, daemon_first: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for side in ("daemon", "warm") if daemon_first else ("warm", "daemon"):
        time.sleep(REST_S)
        if side == "daemon":
            found |= _daemon_side(node, link, n)
            at_once = _daemon_side(node, link, n + 16)
        else:
            found[IN_PROCESS] = warm.ask(_order(node, n))["seconds"]
    for name in ("worker", "request until the worker runs"):
        found[AT_ONCE + name] = at_once[name]
    return found


def _spec(n: int) -> dict[str, Any]:
    return {"family": "gemm", "n": n, "k": 512, "m": 512}


def _order(node: Node, n: int) -> dict[str, Any]:
    from kaas.cache.environment_file import read_environment

    environment = read_environment(node.store)
    assert environment is not None
    return {
        "spec": _spec(n),
        "toolkit": environment.locality.toolkit_home,
        "options": list(environment.options),
    }


def _daemon_side(node: Node, link: Any, n: int) -> dict[str, float]:
    asked, begin = time.time(), time.monotonic()
    reply = link.get_kernel(json.dumps(_spec(n)).encode(), timeout=300)
    wall = time.monotonic() - begin
    return {
        "daemon, request to artifact": wall,
        "worker": node.events("worker ended")[-1]["own_seconds"],
        "worker, fork to the end of its last process": reply.compile_seconds,
        "request until the worker runs": node.events("worker started")[-1]["began"] - asked,
        "all outside the worker": wall - reply.compile_seconds,
    }


def _fresh_side(node: Node, n: int) -> float:
    begin = time.clock_gettime(time.CLOCK_MONOTONIC)
    printed = pinned_run(
        ["-m", "benchmarks.cold_compile", json.dumps(_order(node, n))], node.environ, core=DAEMON_CORE
    )
    return float(json.loads(printed.splitlines()[-1])["ready"]) - begin


def _compile(order: dict[str, Any]) -> dict[str, float]:
    """In a client: lower and build, as a rank without a daemon would."""
    import tempfile

    from kaas.compiler.device_build import build_device_binary
    from kaas.compiler.job import CompileLimits
    from kaas.compiler.lowering import lower
    from kaas.compiler.toolkit import read_toolkit
    from kaas.kernel_library.registry import parse_spec
    from kaas.kernel_library.targets import target_named

    toolkit = read_toolkit(Path(order["toolkit"]))
    with tempfile.TemporaryDirectory() as work:
        begin = time.monotonic()
        lowered = lower(parse_spec(order["spec"]), target_named(SOC))
        limits = CompileLimits(wall_s=300, memory_bytes=8 << 30)
        built = build_device_binary(lowered.source, toolkit, order["options"], limits, Path(work))
        seconds = time.monotonic() - begin
    assert built.image
    return {"seconds": seconds, "ready": time.clock_gettime(time.CLOCK_MONOTONIC)}


def _row(series: dict[str, Series]) -> Row:
    middle = {name.removeprefix("5 "): one.median for name, one in series.items()}
    start = "request until the worker runs"
    return Row(
        number="5",
        measured="cold compile of a small GEMM in the daemon, request to artifact",
        against="the same compile in a fresh process",
        checks=(
            Check(
                what="times faster",
                value=middle["fresh process"] / middle["daemon, request to artifact"],
                unit="x",
                direction=">=",
                target=4,
                ratio=True,
            ),
            Check(
                what="worker's time to in-process lower + toolchain",
                value=series["5 worker"].spread["p25"] / series[f"5 {IN_PROCESS}"].spread["p25"],
                unit="x",
                direction="<=",
                target=1.05,
                ratio=True,
            ),
            Check(what=start, value=middle[start], unit="s", direction="<=", target=0.020),
            Check(
                what=AT_ONCE + start, value=middle[AT_ONCE + start], unit="s", direction="<=", target=0.020
            ),
        ),
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_compile(json.loads(sys.argv[1]))))
    else:
        serve(_compile)
