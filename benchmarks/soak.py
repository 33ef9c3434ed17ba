"""A soak: eight clients on one node, hits and misses mixed, evictions on: nothing may fail, grow or slow.

Six clients stay and get a few kernels again and again; two come anew for every slice and get others, a
few new ones in every slice, until the list begins again with kernels that were evicted meanwhile. What a
living client holds is never evicted, nor what was used within a minute, so that a soak needs three
minutes at least. Resident memory of daemon, zygote and the clients that stay, and the latency of hits,
are taken in slices; the first third is warm-up.
"""

from __future__ import annotations

import random
import time
from typing import Any

import psutil

from benchmarks import results
from benchmarks.conversation import children, serve
from benchmarks.effort import Effort
from benchmarks.node import Node, running_node
from benchmarks.outcome import Check, Outcome, Row, Series, table
from benchmarks.process_costs import resident_bytes
from benchmarks.spread import percentile

STAYING, COMING = 6, 2
STORE_FILES = 24
COMMON, SPECS, NEW = 8, 80, 4
"""Kernels that the staying clients want, all (more than the store may hold), and new ones in a slice."""

SLICE_S = 10.0
MOST_GROWTH = 1.10
MOST_SLOWER = 1.5


def main(minutes: float, record: bool) -> int:
    """Exit status 0 when it passed."""
    outcome = measure(minutes)
    for name, one in outcome.series.items():
        first, last, most = one.samples[0], one.samples[-1], max(one.samples)
        print(f"   {name}: first {first:.4g}, last {last:.4g}, most {most:.4g} {one.unit}")
    for note in outcome.notes:
        print(f"   {note}")
    print(table(outcome.rows))
    if record:
        results.record("soak", outcome, Effort(minutes / 10))
        results.write_page()
    return 0 if all(row.passed for row in outcome.rows) else 1


def measure(minutes: float) -> Outcome:
    """Slices until the time is over."""
    series = {
        "soak daemon": Series(unit="MB"),
        "soak zygote": Series(unit="MB"),
        "soak largest client": Series(unit="MB"),
        "soak p99 of a hit": Series(unit="us"),
    }
    counts = {"hits": 0, "compiled": 0, "errors": 0}
    failures: list[str] = []
    with (
        running_node(store_soft_files=str(STORE_FILES)) as node,
        children(STAYING, "soak", node.environ, lambda number: None) as staying,
    ):
        end, turn = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end:
            turn += 1
            with children(COMING, "soak", node.environ, lambda number: None) as coming:
                clients = [*staying, *coming]
                for number, client in enumerate(clients):
                    rare = 0.5 if number >= STAYING else 0.0
                    client.tell({"turn": turn, "number": number, "seconds": SLICE_S, "rare": rare})
                answers = [client.answer() for client in clients]
            for name in counts:
                counts[name] += sum(one[name] for one in answers)
            failures += [text for one in answers for text in one["failures"]]
            latencies = [value for one in answers for value in one["latencies_us"]]
            daemon = psutil.Process(node.process.pid)
            zygotes = [one for one in daemon.children() if one.is_running()]
            series["soak daemon"].samples.append(resident_bytes(daemon.pid) / 1e6)
            series["soak zygote"].samples.append(max((_resident(one.pid) for one in zygotes), default=0.0))
            largest = max(resident_bytes(one.pid) / 1e6 for one in staying)
            series["soak largest client"].samples.append(largest)
            if latencies:
                series["soak p99 of a hit"].samples.append(percentile(latencies, 0.99))
        evicted = _evictions(node)
    checks = [
        Check(what="errors", value=float(counts["errors"]), unit="", direction="==", target=0),
        Check(what="compiles", value=float(counts["compiled"]), unit="", direction=">=", target=1),
        Check(what="evictions", value=float(evicted), unit="", direction=">=", target=1),
    ]
    for what, most in (
        ("daemon", MOST_GROWTH),
        ("zygote", MOST_GROWTH),
        ("largest client", MOST_GROWTH),
        ("p99 of a hit", MOST_SLOWER),
    ):
        checks.append(
            Check(
                what=f"{what}, last third to the third before",
                value=_drift(series[f"soak {what}"].samples),
                unit="x",
                direction="<=",
                target=most,
            )
        )
    row = Row(
        number="soak",
        measured=f"{minutes:g} minutes, {STAYING + COMING} clients: "
        f"{counts['hits']} hits, {counts['compiled']} misses",
        against="its own middle third",
        checks=tuple(checks),
    )
    return Outcome(rows=[row], series=series, notes=[f"failed: {text}" for text in failures[:5]])


def _drift(samples: list[float]) -> float:
    """Median of the last third over that of the middle third; the first is warm-up."""
    third = len(samples) // 3
    if third == 0:
        return float("nan")
    middle, last = samples[third : 2 * third], samples[-third:]
    return percentile(last, 0.5) / percentile(middle, 0.5)


def _resident(pid: int) -> float:
    try:
        return resident_bytes(pid) / 1e6
    except OSError:
        return 0.0


def _evictions(node: Node) -> int:
    """As the store's audit log tells them, which is written with a second's delay."""
    time.sleep(2.5)
    files = (node.store / "audit").glob("*.jsonl")
    return sum(line.count('"event":"evicted"') for file in files for line in file.read_text().splitlines())


def _act(order: dict[str, Any]) -> dict[str, Any]:
    """In a client: a slice of gets."""
    from kaas import GemmSpec, get_kernel
    from kaas.client import api
    from kaas.proto.errors import KaasError

    chosen = random.Random(1000 * order["turn"] + order["number"])
    found: dict[str, Any] = {"hits": 0, "compiled": 0, "errors": 0, "failures": [], "latencies_us": []}
    end = time.monotonic() + order["seconds"]
    while time.monotonic() < end:
        rare = chosen.random() < order["rare"]
        new = COMMON + (NEW * order["turn"] + chosen.randrange(NEW)) % (SPECS - COMMON)
        number = new if rare else chosen.randrange(COMMON)
        spec = GemmSpec(n=256 + 16 * number, k=256, m=256)
        api._memo.clear()
        begin = time.perf_counter()
        try:
            handle = get_kernel(spec, timeout=300)
        except KaasError as error:
            found["errors"] += 1
            found["failures"].append(f"{type(error).__name__}: {error}"[:300])
            continue
        if handle.origin == "store":
            found["hits"] += 1
            found["latencies_us"].append((time.perf_counter() - begin) * 1e6)
        else:
            found["compiled"] += 1
        time.sleep(0.005)
    found["latencies_us"] = found["latencies_us"][:2000]
    return found


if __name__ == "__main__":
    serve(_act)
