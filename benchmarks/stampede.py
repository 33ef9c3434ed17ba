"""Row 6: eight ranks that want the same cold kernel at once, against one.

The ranks are up: they have imported kaas and got another kernel from the daemon, and wait for the word. Every
round is a kernel that nobody compiled before. Ranks run on one core, the daemon and its compilers on another.
"""

from __future__ import annotations

import time

from benchmarks.conversation import Child, children
from benchmarks.effort import Effort
from benchmarks.node import CLIENT_CORE, DAEMON_CORE, Node, running_node
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.process_costs import tree_cpu_s

RANKS = 8


def measure(effort: Effort) -> Outcome:
    """Rounds of one and of eight ranks in turns."""
    series = {
        f"6 {what}, {ranks} rank{'s' if ranks > 1 else ''}": Series(unit=unit)
        for what, unit in (("wall", "s"), ("CPU", "s"), ("compiler starts", ""))
        for ranks in (1, RANKS)
    }
    with (
        running_node(core=DAEMON_CORE) as node,
        children(RANKS, "rank_process", node.environ, lambda number: CLIENT_CORE) as ranks,
    ):
        n = 256
        for child in ranks:  # each has spoken to the daemon: a spec that is already compiled, then a new one
            n += 16
            child.ask(_spec(n))
        for turn in range(effort.times(11, 3)):
            for count in (1, RANKS) if turn % 2 else (RANKS, 1):
                n += 16
                taken = _round(node, ranks[:count], n)
                for what, value in taken.items():
                    series[f"6 {what}, {count} rank{'s' if count > 1 else ''}"].samples.append(value)
    return Outcome(rows=[_row(series)], series=series)


def _spec(n: int) -> dict[str, int]:
    return {"n": n, "k": 512, "m": 512}


def _round(node: Node, ranks: list[Child], n: int) -> dict[str, float]:
    started, cpu = len(node.events("compiler start")), tree_cpu_s(node.process.pid)
    for child in ranks:
        child.tell(_spec(n))
    answers = [child.answer() for child in ranks]
    time.sleep(0.1)  # workers are reaped
    return {
        "wall": max(one["end"] for one in answers) - min(one["begin"] for one in answers),
        "CPU": tree_cpu_s(node.process.pid) - cpu + sum(one["cpu"] for one in answers),
        "compiler starts": float(len(node.events("compiler start")) - started),
    }


def _row(series: dict[str, Series]) -> Row:
    many, one = f"{RANKS} ranks", "1 rank"
    ratio = {
        what: series[f"6 {what}, {many}"].median / series[f"6 {what}, {one}"].median
        for what in ("wall", "CPU")
    }
    most = max(series[f"6 compiler starts, {many}"].samples)
    return Row(
        number="6",
        measured=f"{RANKS} ranks at once, same cold key",
        against="1 rank (without a daemon: 8 compiler starts)",
        checks=(
            Check(what="compiler starts", value=most, unit="", direction="==", target=1, ratio=True),
            Check(what="CPU", value=ratio["CPU"], unit="x", direction="<=", target=1.2, ratio=True),
            Check(what="wall", value=ratio["wall"], unit="x", direction="<=", target=1.2, ratio=True),
        ),
    )
