"""A simulation: how long clusters of 32 to 32,000 nodes take to be warm, and what their origin sends.

Four ways to bring a release's kernels to every node: each node compiles; a shared file system that builders
filled; kaas with a registry (or object store); the same behind a peer-to-peer layer such as Dragonfly. What a
kernel costs to compile, what it weighs and what its arrival costs a node are measured here, on one node, and
networks are assumed (:class:`Assumed`). Nodes come up one after another, and share what is shared evenly.

``python -m benchmarks.rollout_sim`` measures, simulates, draws, and prints the table of docs/rollout.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.library_specs import mixed
from benchmarks.node import running_node
from benchmarks.results import PICTURES, machine

NODES = (32, 100, 320, 1_000, 3_200, 10_000, 32_000)
SAMPLE_SPECS = 24
SEED = 7
GIGABIT = 1e9 / 8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one kernel on the machine that this runs on: means over a mixed sample of the library."""

    compile_s: float
    artifact_bytes: float
    import_s: float
    workers_gain: float = 1.89
    """How much faster two compile workers are than one (row 7 of the benchmarks)."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What no machine here can tell. Rates are in bytes per second."""

    kernels: int = 200
    start_spread_s: float = 30.0
    """Nodes come up evenly over this time."""
    node_workers: int = 16
    """Compiles at once on a node."""
    builders: int = 16
    node_rate: float = 25 * GIGABIT
    registry_rate: float = 100 * GIGABIT
    registry_requests_per_s: float = 5_000.0
    files_rate: float = 200 * GIGABIT
    files_operations_per_s: float = 50_000.0
    operations_per_file: int = 3
    """Look-up, open, attributes."""
    piece_bytes: float = 4 << 20
    seeds: int = 3
    """Peers that fetch from the registry for all others."""
    slots: int = 1
    """Pieces that a peer uploads in the time in which it downloads one: links are symmetric."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """``warm_s``: from the start until the last node holds everything; half of them do at ``half_s``."""

    warm_s: float
    half_s: float
    origin_bytes: float
    compile_cpu_s: float


def starts(nodes: int, assumed: Assumed) -> np.ndarray:
    """When each node comes up."""
    return np.linspace(0.0, assumed.start_spread_s, nodes)


def shared(begin: np.ndarray, demand: float, capacity: float, limit: float) -> np.ndarray:
    """When each of those that begin at the sorted times has its ``demand``.

    All that are at it share ``capacity`` evenly, none gets more than ``limit``. As demands are equal, who
    comes first is done first.
    """
    finished = np.empty(len(begin))
    now = served = 0.0  # ``served``: what somebody who was there from the start would have by now
    due: list[float] = []
    came = left = 0
    while left < len(begin):
        active = came - left
        rate = min(limit, capacity / active) if active else 0.0
        next_come = begin[came] if came < len(begin) else math.inf
        next_done = now + (due[left] - served) / rate if active else math.inf
        at = min(next_come, next_done)
        served += rate * (at - now)
        now = at
        if next_done <= next_come:
            finished[left] = now
            left += 1
        else:
            due.append(served + demand)
            came += 1
    return finished


def swarm(begin: np.ndarray, pieces: int, assumed: Assumed, rng: np.random.Generator) -> np.ndarray:
    """When each node has all pieces, if those who have one pass it on, in rounds of one piece's time.

    Seeds hold everything from the start. In a round a node asks one holder, drawn by lot, for the piece that
    fewest of the others have; holders give ``slots`` pieces each, and who is not served asks again.
    """
    round_s = assumed.piece_bytes / assumed.node_rate
    nodes = len(begin)
    has = np.zeros((nodes + assumed.seeds, pieces), dtype=bool)
    has[nodes:] = True
    finished = np.full(nodes, math.inf)
    at = 0
    while np.isinf(finished).any():
        now = at * round_s
        wants = np.flatnonzero((begin <= now) & np.isinf(finished))
        if len(wants):
            rarity = has.sum(axis=0) + rng.random((len(wants), pieces)) * (1 + has.sum() / pieces / 4)
            rarity[has[wants]] = math.inf
            piece = rarity.argmin(axis=1)
            got_by, got_piece = [], []
            load = np.zeros(nodes + assumed.seeds, dtype=int)
            for one in rng.permutation(pieces):
                askers = wants[piece == one]
                holders = np.flatnonzero(has[:, one] & (load < assumed.slots))
                count = min(len(askers), len(holders))
                chosen = rng.permutation(holders)[:count]
                load[chosen] += 1
                got_by.append(rng.permutation(askers)[:count])
                got_piece.append(np.full(count, one))
            has[np.concatenate(got_by), np.concatenate(got_piece)] = True
            done = wants[has[wants].all(axis=1)]
            finished[done] = now + round_s
        elif len(waiting := begin[np.isinf(finished)]):
            at = max(at, math.ceil(waiting.min() / round_s) - 1)
        at += 1
    return finished


def compile_everywhere(nodes: int, measured: Measured, assumed: Assumed) -> Rollout:
    """Each node compiles everything once; without a node's cache every rank would."""
    cpu = assumed.kernels * measured.compile_s
    ready = starts(nodes, assumed) + cpu / _speed(assumed.node_workers, measured)
    return _rollout(ready, 0.0, nodes * cpu)


def shared_files(nodes: int, measured: Measured, assumed: Assumed) -> Rollout:
    """Builders write to a file system that all nodes mount; each node reads each file."""
    built, cpu = _built(measured, assumed)
    begin = built + starts(nodes, assumed)
    content = assumed.kernels * measured.artifact_bytes
    read = shared(begin, content, assumed.files_rate, assumed.node_rate)
    operations = assumed.kernels * assumed.operations_per_file
    opened = shared(begin, operations, assumed.files_operations_per_s, assumed.files_operations_per_s)
    return _rollout(np.maximum(read, opened) + _arrival(measured, assumed), nodes * content, cpu)


def registry(nodes: int, measured: Measured, assumed: Assumed) -> Rollout:
    """Builders push; each node pulls the bundle, a layer for each kernel, and imports it."""
    built, cpu = _built(measured, assumed)
    content = assumed.kernels * measured.artifact_bytes
    begin = built + content / assumed.node_rate + starts(nodes, assumed)
    pulled = shared(begin, content, assumed.registry_rate, assumed.node_rate)
    layers = assumed.kernels + 2.0
    asked = shared(begin, layers, assumed.registry_requests_per_s, assumed.registry_requests_per_s)
    return _rollout(np.maximum(pulled, asked) + _arrival(measured, assumed), nodes * content, cpu)


def peer_to_peer(nodes: int, measured: Measured, assumed: Assumed) -> Rollout:
    """The same with peers that pass on what they have; only the seeds ask the registry."""
    built, cpu = _built(measured, assumed)
    content = assumed.kernels * measured.artifact_bytes
    pieces = max(1, math.ceil(content / assumed.piece_bytes))
    pushed = built + 2 * content / assumed.node_rate  # by the builders, then to the seeds
    finished = swarm(starts(nodes, assumed), pieces, assumed, np.random.default_rng(SEED))
    return _rollout(pushed + finished + _arrival(measured, assumed), assumed.seeds * content, cpu)


WAYS: dict[str, Callable[[int, Measured, Assumed], Rollout]] = {
    "compile everywhere": compile_everywhere,
    "shared file system": shared_files,
    "kaas, registry": registry,
    "kaas, registry behind peers": peer_to_peer,
}


def simulate(
    measured: Measured, assumed: Assumed, sizes: Sequence[int] = NODES
) -> dict[str, dict[int, Rollout]]:
    """Every way for every size."""
    return {name: {nodes: way(nodes, measured, assumed) for nodes in sizes} for name, way in WAYS.items()}


def measure(count: int = SAMPLE_SPECS) -> Measured:
    """Compile a sample on one worker, then import its kernels, as a bundle, into an empty store."""
    from kaas.cache.bundle import Bundle
    from kaas.cache.signatures import SignaturePolicy
    from kaas.client.bundle_contents import create_bundle
    from kaas.client.bundle_import import import_bundle
    from kaas.client.daemon_link import DaemonLink

    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        root = Path(name)
        (root / "node").mkdir()
        with running_node(root / "node", workers="1") as node:
            link = DaemonLink(node.socket)
            specs = [(spec.canonical(), "") for spec in mixed(count, SEED)]
            begin = time.monotonic()
            for _ in link.prewarm(specs, "simulation"):
                pass
            compile_s = (time.monotonic() - begin) / count
            link.close()
        artifacts = sorted((root / "node" / "store").glob("artifacts/*/*.kernel"))
        sizes = [path.stat().st_size for path in artifacts]
        bundle = root / "bundle.tar"
        create_bundle(bundle, root / "node" / "store", {path.stem: "simulation" for path in artifacts})
        times = []
        for number in range(5):
            with Bundle.open(bundle) as opened:
                begin = time.monotonic()
                import_bundle(opened, root / f"store-{number}", root / "nobody.sock", SignaturePolicy())
                times.append((time.monotonic() - begin) / len(artifacts))
    return Measured(
        compile_s=compile_s, artifact_bytes=statistics.mean(sizes), import_s=statistics.median(times)
    )


def _speed(workers: int, measured: Measured) -> float:
    """How much faster that many workers are than one; each further pair gains what the first did."""
    return workers * measured.workers_gain / 2 if workers > 1 else 1.0


def _built(measured: Measured, assumed: Assumed) -> tuple[float, float]:
    cpu = assumed.kernels * measured.compile_s
    return cpu / (assumed.builders * _speed(assumed.node_workers, measured)), cpu


def _arrival(measured: Measured, assumed: Assumed) -> float:
    return assumed.kernels * measured.import_s


def _rollout(ready: np.ndarray, origin_bytes: float, cpu: float) -> Rollout:
    return Rollout(
        warm_s=float(ready.max()),
        half_s=float(np.median(ready)),
        origin_bytes=origin_bytes,
        compile_cpu_s=cpu,
    )


def draw(found: dict[str, dict[int, Rollout]], folder: Path) -> None:
    """rollout_sim.png and .svg: time until the last node is warm, and what the origin sends."""
    from benchmarks.plots import plt

    figure, (times, traffic) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, by_size in found.items():
        sizes = list(by_size)
        times.loglog(sizes, [one.warm_s for one in by_size.values()], "o-", label=name, markersize=4)
        sent = [one.origin_bytes / 1e9 for one in by_size.values()]
        if any(sent):
            traffic.loglog(sizes, sent, "o-", label=name, markersize=4)
        else:
            traffic.plot([], [], "o-")  # keeps the colours of both sides the same
    times.set_ylabel("seconds until the last node is warm")
    traffic.set_ylabel("GB that the origin sends")
    for axis in (times, traffic):
        axis.set_xlabel("nodes")
        axis.grid(alpha=0.3, which="both")
    times.legend(fontsize=8)
    figure.suptitle("Simulation, not a measurement", fontsize=10)
    figure.savefig(folder / "rollout_sim.png", dpi=110)
    figure.savefig(folder / "rollout_sim.svg", metadata={"Date": None})
    plt.close(figure)


def table(found: dict[str, dict[int, Rollout]]) -> str:
    """Markdown: a line for each way, seconds until the last node is warm and GB from the origin."""
    sizes = list(next(iter(found.values())))
    lines = ["| | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name, by_size in found.items():
        cells = (f"{one.warm_s:.0f} s, {one.origin_bytes / 1e9:,.1f} GB" for one in by_size.values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure (or take what ``--measured`` has), simulate, draw, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout_sim", description=__doc__)
    parser.add_argument("--measured", type=Path, help="take this record's measured values")
    parser.add_argument("--no-record", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    assumed = Assumed()
    kept = json.loads(given.measured.read_text())["measured"] if given.measured else None
    measured = Measured(**kept) if kept else measure()
    found = simulate(measured, assumed)
    record: dict[str, Any] = {
        "simulation": True,
        "machine": machine(),
        "measured": asdict(measured),
        "assumed": asdict(assumed),
        "rollouts": {
            name: {str(size): asdict(one) for size, one in sizes.items()} for name, sizes in found.items()
        },
    }
    if not given.no_record:
        (PICTURES / "rollout_sim.json").write_text(json.dumps(record, indent=1) + "\n")
        draw(found, PICTURES)
    print(json.dumps(record["measured"]))
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
