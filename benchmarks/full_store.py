"""Rows 9a and 9b: a daemon on 100,000 kernels: its start when half of them are above the limit, its memory.

A start is measured until the daemon listens, until a client got its first hit from it, and until its compile
workers are warm; starts on the full store and on an empty one alternate. What a start evicted is stored again
before the next one. Memory is the daemon's resident set with the whole index, at each tenth of many hits that
two clients ask for at once: one in ten by gRPC with the bytes, one in ten by HTTP, the others plainly.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.filled_store import fill, fill_up, spec_number
from benchmarks.node import Node, running_node
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.process_costs import resident_bytes
from benchmarks.store_scale import wait_until_indexed

KERNELS = 100_000
REQUESTS = 100_000
FEWEST = 2_000
FILE_BYTES = 8 << 10
TENTHS = 10
CLIENTS = 2
MIB = 1 << 20


def measure(effort: Effort) -> Outcome:
    """Fill one store past its daemon, ask, then start."""
    count = min(KERNELS, effort.times(KERNELS, FEWEST))
    requests = effort.times(REQUESTS, FEWEST)
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directories = {size: Path(name) / size for size in ("full", "empty")}
        for directory in directories.values():
            directory.mkdir()
            with running_node(directory, warm=False):
                pass
        for _ in fill(directories["full"] / "store", count, FILE_BYTES):
            pass
        memory = _memory(directories["full"], count, requests)  # which also writes the index
        starts = _starts(directories, count, effort.times(7, 2))
    size = f"{count:,} kernels"
    series = {
        **{
            f"9a {moment}, {store}": starts[f"{moment} {where}"]
            for moment in ("listens", "first hit", "ready")
            for where, store in (("full", f"{size}, half over the limit"), ("empty", "empty store"))
        },
        f"9b resident memory, {size}": memory,
    }
    start_row = Row(
        number="9a",
        measured=f"start on {size}, half of them above the limit",
        against="an empty store",
        checks=(
            *(
                Check(
                    what=f"until {what}",
                    value=starts[f"{moment} full"].median / starts[f"{moment} empty"].median,
                    unit="x",
                    direction="<=",
                    target=1.3,
                    ratio=True,
                )
                for moment, what in (("listens", "it listens"), ("ready", "its compile workers are warm"))
            ),
            Check(
                what="the slowest until it listens",
                value=max(starts["listens full"].samples),
                unit="s",
                direction="<=",
                target=2.0,
            ),
        ),
    )
    memory_row = Row(
        number="9b",
        measured=f"daemon's memory after {requests:,} requests, {size} indexed",
        against="after a tenth of them",
        checks=(
            Check(
                what="resident memory",
                value=memory.samples[-1] / memory.samples[1],
                unit="x",
                direction="<=",
                target=1.05,
                ratio=True,
            ),
        ),
    )
    told = ", ".join(f"{sample:.1f}" for sample in memory.samples)
    note = f"9b: MiB before the first request and at each tenth of {requests:,}: {told}"
    return Outcome(rows=[start_row, memory_row], series=series, notes=[note])


def _starts(directories: dict[str, Path], count: int, rounds: int) -> dict[str, Series]:
    from kaas.client.daemon_link import READINESS, DaemonLink

    moments = ("listens", "first hit", "ready")
    series = {f"{moment} {where}": Series() for moment in moments for where in directories}
    for number in range(rounds):
        fill_up(directories["full"] / "store", count, FILE_BYTES)
        for where in sorted(directories, reverse=bool(number % 2)):
            limit = str(count // 2) if where == "full" else "0"
            began = time.monotonic()
            with running_node(directories[where], warm=False, store_soft_files=limit) as node:
                listens = node.listening_s
                link = DaemonLink(node.socket)
                if where == "full":  # one of the dearest, which are evicted last
                    link.get_kernel(spec_number(6).canonical(), timeout=120)
                else:
                    link.environment()
                first = time.monotonic() - began
                while not link.health(READINESS):
                    time.sleep(0.01)
                ready = time.monotonic() - began
                link.close()
            for moment, seconds in zip(moments, (listens, first, ready), strict=True):
                series[f"{moment} {where}"].samples.append(seconds)
    return series


def _memory(directory: Path, count: int, requests: int) -> Series:
    """MiB before the first request, then at each tenth."""
    rest = directory / "rest.sock"
    series = Series(unit="MiB")
    with running_node(
        directory, store_soft_files="0", store_soft_bytes="0", rest_address=f"unix:{rest}"
    ) as node:
        wait_until_indexed(node, count)
        series.samples.append(resident_bytes(node.process.pid) / MIB)
        for _ in range(TENTHS):
            with ThreadPoolExecutor(CLIENTS) as threads:
                share = requests // TENTHS // CLIENTS
                list(threads.map(lambda _, share=share: _ask(node, rest, share), range(CLIENTS)))
            series.samples.append(resident_bytes(node.process.pid) / MIB)
    return series


def _ask(node: Node, rest: Path, count: int) -> None:
    import httpx

    from kaas.client.daemon_link import DaemonLink

    spec = spec_number(0)
    canonical, record = spec.canonical(), {"spec": spec.to_record()}
    link = DaemonLink(node.socket)
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(rest)), base_url="http://kaas", timeout=60
    ) as http:
        for number in range(count):
            if number % 10 == 0:
                http.post("/v1/kernels", json=record).raise_for_status()
            else:
                link.get_kernel(canonical, inline_artifact=number % 10 == 5, timeout=60)
    link.close()
