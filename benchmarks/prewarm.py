"""Row 7: pre-warming 200 mixed kernels with two compile workers against one, and who suffers meanwhile.

Every round starts a daemon on an empty store. The list is the library's examples in a drawn order, filled up
with GEMMs and norms. A rank on the same node gets kernels that the store has, before and during the pre-warm;
it is pinned to a core, daemon and workers are not, so that they compete with it as they would on a busy node.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from benchmarks.conversation import children
from benchmarks.effort import Effort
from benchmarks.filled_store import fill
from benchmarks.foreground import KERNELS
from benchmarks.library_specs import mixed
from benchmarks.node import CLIENT_CORE, Node, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

SPECS = 200


def measure(effort: Effort) -> Outcome:
    """One and two workers in turns, each on the same list."""
    count = effort.times(SPECS, 8)
    specs = [spec.canonical() for spec in mixed(count, effort.seed)]
    series = {f"7 wall, {workers} worker{'s' * (workers > 1)}": Series() for workers in (1, 2)}
    kinds = ("hit", "memo")
    series |= {f"7 {kind}, {when}": Series() for kind in kinds for when in ("idle", "during pre-warm")}
    for turn in range(1 if count > 50 else 2):
        for workers in (1, 2) if turn % 2 == 0 else (2, 1):
            wall, idle, busy = _round(workers, specs, idle_s=max(5.0, 20 * effort.scale))
            series[f"7 wall, {workers} worker{'s' * (workers > 1)}"].samples.append(wall)
            for kind in kinds:
                series[f"7 {kind}, idle"].samples += idle[kind]
                if workers == 2:
                    series[f"7 {kind}, during pre-warm"].samples += busy[kind]
    ratio = series["7 wall, 1 worker"].median / series["7 wall, 2 workers"].median
    checks = [Check(what="times faster", value=ratio, unit="x", direction=">=", target=1.7, ratio=True)]
    for kind in kinds:
        busy_p99, idle_p99 = (
            series[f"7 {kind}, {when}"].spread["p99"] for when in ("during pre-warm", "idle")
        )
        checks.append(
            Check(
                what=f"p99 of a {'store hit' if kind == 'hit' else 'memo hit'} during it, to idle",
                value=busy_p99 / idle_p99,
                unit="x",
                direction="<=",
                target=1.5,
            )
        )
    row = Row(
        number="7",
        measured=f"pre-warm of {count} mixed specs, 2 workers",
        against="1 worker, same list",
        checks=tuple(checks),
    )
    return Outcome(rows=[row], series=series)


def _round(
    workers: int, specs: list[bytes], idle_s: float
) -> tuple[float, dict[str, list[float]], dict[str, list[float]]]:
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        with running_node(directory, warm=False):
            pass
        for _ in fill(directory / "store", KERNELS, 64 << 10, first=500):
            pass
        for _ in fill(directory / "store", KERNELS, 64 << 10):
            pass
        with (
            running_node(directory, workers=str(workers)) as node,
            children(1, "foreground", node.environ, lambda number: CLIENT_CORE) as (rank,),
        ):
            rank.ask(1.0)
            time.sleep(1)
            idle = rank.ask(idle_s)
            walls: list[float] = []
            thread = threading.Thread(target=lambda: walls.append(_prewarm(node, specs)))
            thread.start()
            time.sleep(1)
            busy: dict[str, list[float]] = {"hit": [], "memo": []}
            while thread.is_alive():
                slice_ = rank.ask(2.0)
                if thread.is_alive():
                    for kind, samples in slice_.items():
                        busy[kind] += samples
            thread.join()
            if not walls:
                raise RuntimeError("the pre-warm failed")
    return walls[0], idle, busy


def _prewarm(node: Node, specs: list[bytes]) -> float:
    from kaas.client.daemon_link import DaemonLink

    link = DaemonLink(node.socket)
    begin = time.monotonic()
    last = None
    for event in link.prewarm([(spec, "") for spec in specs], "benchmark"):
        last = event
    wall = time.monotonic() - begin
    link.close()
    if last is None or last.failed or last.ready != last.total:
        raise RuntimeError(f"not all kernels of the pre-warm are ready: {last}")
    return wall
