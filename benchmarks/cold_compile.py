"""Row 5: a cold compile of a small GEMM in the daemon, against the same compile elsewhere.

Three sides take turns, on kernels that nobody compiled before: the daemon, asked by a connected client; a
fresh process which imports TileLang, lowers and runs the toolchain; and a process which has TileLang warm and
does the same in itself. All compile on the same core with the same toolkit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.conversation import children, serve
from benchmarks.effort import Effort
from benchmarks.node import DAEMON_CORE, SOC, Node, pinned_run, running_node
from benchmarks.outcome import Check, Outcome, Row, Series


def measure(effort: Effort) -> Outcome:
    """Alternate the three sides."""
    names = (
        "daemon, request to artifact",
        "fresh process",
        "worker",
        "worker, fork to the end of its last process",
        "in process, TileLang warm",
        "request until the worker runs",
        "all outside the worker",
    )
    series = {f"5 {name}": Series() for name in names}
    with (
        running_node(core=DAEMON_CORE) as node,
        children(1, "cold_compile", node.environ, lambda number: DAEMON_CORE) as (warm,),
    ):
        from kaas.client.daemon_link import DaemonLink

        link = DaemonLink(node.socket)
        n = 256
        warm.ask(_order(node, n))
        _daemon_side(node, link, n)
        for turn in range(effort.times(11, 2)):
            n += 16
            sides = ["daemon", "warm", "fresh"]
            for side in sides[turn % 3 :] + sides[: turn % 3]:
                if side == "daemon":
                    for name, value in _daemon_side(node, link, n).items():
                        series[f"5 {name}"].samples.append(value)
                elif side == "warm":
                    series["5 in process, TileLang warm"].samples.append(warm.ask(_order(node, n))["seconds"])
                else:
                    series["5 fresh process"].samples.append(_fresh_side(node, n))
        link.close()
    return Outcome(rows=[_row(series)], series=series)


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
                value=middle["worker"] / middle["in process, TileLang warm"],
                unit="x",
                direction="<=",
                target=1.05,
                ratio=True,
            ),
            Check(
                what="request until the worker runs",
                value=middle["request until the worker runs"],
                unit="s",
                direction="<=",
                target=0.020,
            ),
        ),
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_compile(json.loads(sys.argv[1]))))
    else:
        serve(_compile)
