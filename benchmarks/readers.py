"""Row 8: hits of the store by eight processes at once, against one.

Every process gets the same 200 kernels again and again with an empty memo, for a fixed time. Processes are
spread over the cores. Cores of a virtual machine are not alike and change their speed, so turns are short,
have one process alone on each core and then all eight, and are compared with themselves only. The kernel's
table of file locks is read meanwhile: none may be held by a reader.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.conversation import Child, children, serve
from benchmarks.effort import Effort
from benchmarks.filled_store import fill, spec_number
from benchmarks.node import CORES, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

KERNELS = 200
FILE_BYTES = 256 << 10
READERS = 8
ROUND_S = 0.7


def measure(effort: Effort) -> Outcome:
    """Turns of one process alone, on each core, and of eight."""
    cores = min(len(CORES), READERS)
    alone = Series(unit="1/s")
    together = Series(unit="1/s")
    scaling: list[float] = []
    locks = 0
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        with running_node(directory, warm=False):
            pass
        for _ in fill(directory / "store", KERNELS, FILE_BYTES):
            pass
        with (
            running_node(directory) as node,
            children(
                READERS, "readers", node.environ, lambda number: CORES[-1 - number % len(CORES)]
            ) as readers,
        ):
            for reader in readers:
                reader.ask(0.05)
            groups = [*([reader] for reader in readers[:cores]), readers]
            for turn in range(effort.times(24, 6)):
                rates = {}
                for group in groups if turn % 2 else groups[::-1]:
                    rates[id(group)], held = _round(group)
                    locks += held
                *singles, all_at_once = (rates[id(group)] for group in groups)
                alone.samples += singles
                together.samples.append(all_at_once)
                scaling.append(all_at_once / sum(singles))
    row = Row(
        number="8",
        measured=f"store hits by {READERS} processes at once, {cores} cores",
        against="1 process alone on each core in turn",
        checks=(
            Check(
                what="scaling per core, at most 1",
                # More than one each is what a core's clock gains from being busy, and no merit of ours.
                value=min(1.0, statistics.median(scaling)),
                unit="x",
                direction=">=",
                target=0.8,
                ratio=True,
            ),
            Check(what="file locks held by readers", value=float(locks), unit="", direction="==", target=0),
        ),
    )
    series = {
        "8 hits per second, 1 process": alone,
        f"8 hits per second, {READERS} processes": together,
        "8 scaling per core, turn by turn": Series(samples=scaling, unit="x"),
    }
    return Outcome(rows=[row], series=series)


def _round(readers: list[Child]) -> tuple[float, int]:
    for reader in readers:
        reader.tell(ROUND_S)
    time.sleep(ROUND_S / 2)
    held = _locks({reader.pid for reader in readers})
    return sum(reader.answer()["rate"] for reader in readers), held


def _locks(pids: set[int]) -> int:
    """File locks that these processes hold or wait for."""
    fields = (line.replace("->", "").split() for line in Path("/proc/locks").read_text().splitlines())
    return sum(int(line[4]) in pids for line in fields)


def _hits(seconds: float) -> dict[str, Any]:
    """In a reader: how many gets per second, all of them store hits."""
    from kaas import get_kernel
    from kaas.client import api

    specs = [spec_number(number) for number in range(KERNELS)]
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        api._memo.clear()
        for spec in specs:
            get_kernel(spec)
        done += KERNELS
    assert all(handle.origin == "store" for handle in api._memo.values())
    return {"rate": done / (time.perf_counter() - begin), "pid": os.getpid()}


if __name__ == "__main__":
    serve(_hits)
