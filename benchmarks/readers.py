"""Row 8: hits of the store by eight processes at once, against one.

Every process gets the same 200 kernels again and again with an empty memo, for a fixed time. Processes are
spread over the cores; the single one has a core to itself. The kernel's table of file locks is read
meanwhile: none may be held by a reader.
"""

from __future__ import annotations

import os
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


def measure(effort: Effort) -> Outcome:
    """Rounds of one and of eight readers in turns."""
    series = {f"8 hits per second, {count} processes": Series(unit="1/s") for count in (1, READERS)}
    seconds = 1.0 if effort.scale < 0.5 else 2.0
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
            for turn in range(effort.times(12, 4)):
                for count in (1, READERS) if turn % 2 else (READERS, 1):
                    rate, held = _round(readers[:count], seconds)
                    series[f"8 hits per second, {count} processes"].samples.append(rate)
                    locks += held
    many, one = (series[f"8 hits per second, {count} processes"].median for count in (READERS, 1))
    cores = min(len(CORES), READERS)
    row = Row(
        number="8",
        measured=f"store hits by {READERS} processes at once, {cores} cores",
        against="1 process",
        checks=(
            Check(
                what="scaling per core",
                value=many / one / cores,
                unit="x",
                direction=">=",
                target=0.8,
                ratio=True,
            ),
            Check(what="file locks held by readers", value=float(locks), unit="", direction="==", target=0),
        ),
    )
    return Outcome(rows=[row], series=series)


def _round(readers: list[Child], seconds: float) -> tuple[float, int]:
    for reader in readers:
        reader.tell(seconds)
    time.sleep(seconds / 2)
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
