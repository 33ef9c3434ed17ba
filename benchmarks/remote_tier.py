"""Row 13: a remote tier that takes every call and never answers, against a node without remote tiers.

Both nodes run side by side and take turns. A rank asks for kernels that its node's store has, by itself and
through the daemon, while four others ask for kernels that nobody has: strictly, so that their look into the
tier is all that they cost. Then small GEMMs that nobody has are compiled on both. The breaker is kept from
opening, so that every miss meets the tier.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.conversation import Child, children, serve
from benchmarks.effort import Effort
from benchmarks.filled_store import fill, spec_number
from benchmarks.foreground import KERNELS
from benchmarks.node import CLIENT_CORE, Node, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

DEADLINE_S = 0.3
SLICE_S = 3.0
ASKERS = 4
COMPILES = 3
"""In each turn, on both nodes."""
MOST_SLOWER = 1.25
"""Of a p99 that is the same on both sides, as far as one run tells."""


def measure(effort: Effort) -> Outcome:
    """Alternate both nodes."""
    names = ("no tier", "black hole")
    series = {
        f"13 {what}, {name}": Series()
        for what in ("store hit", "daemon's hit", "compile on a miss")
        for name in names
    }
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as root, contextlib.ExitStack() as closing:
        hole = closing.enter_context(_black_hole())
        nodes: dict[str, Node] = {}
        ranks: dict[str, Child] = {}
        askers: dict[str, Child] = {}
        for name in names:
            directory = Path(root) / name.replace(" ", "-")
            directory.mkdir()
            with running_node(directory, warm=False):
                pass
            for _ in fill(directory / "store", KERNELS, 64 << 10):
                pass
            settings = {"remote_tiers": _tiers(hole)} if name == "black hole" else {}
            node = nodes[name] = closing.enter_context(running_node(directory, **settings))
            (ranks[name],) = closing.enter_context(
                children(1, "foreground", node.environ, lambda number: CLIENT_CORE)
            )
            (askers[name],) = closing.enter_context(
                children(1, "remote_tier", node.environ, lambda number: CLIENT_CORE)
            )
            ranks[name].ask(0.5)
        for turn in range(effort.times(6, 2)):
            for name in names if turn % 2 == 0 else names[::-1]:
                with _misses(nodes[name], turn):
                    series[f"13 store hit, {name}"].samples += ranks[name].ask(SLICE_S)["hit"]
                    series[f"13 daemon's hit, {name}"].samples += askers[name].ask(SLICE_S)["hit"]
            for number in range(COMPILES * turn, COMPILES * (turn + 1)):
                for name in names if number % 2 == 0 else names[::-1]:
                    series[f"13 compile on a miss, {name}"].samples.append(_compile(nodes[name], number))
    return Outcome(rows=[_row(series)], series=series)


@contextlib.contextmanager
def _black_hole() -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def _tiers(hole: str) -> str:
    tier = {
        "name": "hole",
        "uri": f"redis://{hole}",
        "options": {"endpoint": f"redis://{hole}"},
        "mode": "read",
        "deadline_s": DEADLINE_S,
        "open_after": 1000,
    }
    return json.dumps([tier])


@contextlib.contextmanager
def _misses(node: Node, turn: int) -> Iterator[None]:
    """Strict questions for kernels that nobody has, until the block ends."""
    from kaas.client.daemon_link import DaemonLink
    from kaas.proto.errors import StrictMiss

    done = threading.Event()

    def ask(number: int) -> None:
        link = DaemonLink(node.socket)
        k = 4096 + 16 * (ASKERS * turn + number)
        while not done.is_set():
            began = time.monotonic()
            with contextlib.suppress(StrictMiss):
                link.get_kernel(json.dumps({"family": "gemm", "n": 64, "k": k}).encode(), strict=True)
            # At one pace on both sides, also where the answer comes at once.
            done.wait(max(0.01, DEADLINE_S - (time.monotonic() - began)))
        link.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(ASKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _compile(node: Node, number: int) -> float:
    from kaas.client.daemon_link import DaemonLink

    link = DaemonLink(node.socket)
    begin = time.monotonic()
    link.get_kernel(
        json.dumps({"family": "gemm", "n": 256 + 16 * number, "k": 512, "m": 512}).encode(), timeout=300
    )
    wall = time.monotonic() - begin
    link.close()
    return wall


def _daemon_hits(seconds: float) -> dict[str, Any]:
    """In a child: kernels that the daemon has, asked for through it."""
    import os

    from kaas.client.daemon_link import DaemonLink

    link = DaemonLink(Path(os.environ["KAAS_SOCKET"]))
    specs = [spec_number(number).canonical() for number in range(KERNELS)]
    hits: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter_ns()
        link.get_kernel(specs[len(hits) % KERNELS])
        hits.append((time.perf_counter_ns() - begin) * 1e-9)
        time.sleep(0.002)
    link.close()
    return {"hit": hits}


def _row(series: dict[str, Series]) -> Row:
    checks = []
    for what in ("store hit", "daemon's hit"):
        ours, theirs = (series[f"13 {what}, {name}"].spread["p99"] for name in ("black hole", "no tier"))
        checks.append(
            Check(
                what=f"p99 of a {what}" if what != "daemon's hit" else "p99 of a hit through the daemon",
                value=ours / theirs,
                unit="x",
                direction="<=",
                target=MOST_SLOWER,
            )
        )
    with_tier, without = (
        series[f"13 compile on a miss, {name}"].samples for name in ("black hole", "no tier")
    )
    # Pair by pair: the machine's speed changes over minutes, and little within the seconds of a pair.
    extra = statistics.median(one - other for one, other in zip(with_tier, without, strict=True))
    checks.append(
        Check(
            what="what the tier adds to a miss, in its deadlines",
            value=extra / DEADLINE_S,
            unit="x",
            direction="<=",
            target=1.2,
        )
    )
    return Row(
        number="13",
        measured="hits and misses with a remote tier that never answers",
        against="a node without remote tiers",
        checks=tuple(checks),
    )


if __name__ == "__main__":
    serve(_daemon_hits)
