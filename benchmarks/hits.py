"""Rows 2 and 3: get_kernel when the kernel exists: in this process, and in the node's store.

Row 2 is timed in batches of 1000 calls, since one call is shorter than two looks at a clock; batches of both
sides alternate. In row 3 every sample is the first get_kernel of its spec in a fresh process, and the floor
is taken on the very same file right before or after it, in turns.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.filled_store import fill, spec_number
from benchmarks.node import DAEMON_CORE, Node, child_environment, pinned_json, running_node
from benchmarks.outcome import Check, Outcome, Row, Series
from benchmarks.tilelang_side import tilelang_environment

SIZES = {"256 KiB": 256 << 10, "4 MiB": 4 << 20}
BATCH = 1000


def measure(effort: Effort) -> Outcome:
    """A node with two sets of kernels, then fresh clients."""
    each = 100
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name:
        directory = Path(name)
        with running_node(directory, core=DAEMON_CORE):
            pass
        for turn, size in enumerate(SIZES.values()):
            for _ in fill(directory / "store", each, size, first=1000 * (turn + 1)):
                pass
        with running_node(directory, core=DAEMON_CORE) as node:
            series = _first_gets(node, effort.times(20, 4), each)
            series |= _memory_hits(node, Path(name), effort.times(200, 20))
    return Outcome(rows=[_row_2(series), *_row_3(series)], series=series, notes=_notes(series))


def _first_gets(node: Node, processes: int, each: int) -> dict[str, Series]:
    series = {f"3 {side}, {size}": Series() for size in SIZES for side in ("get_kernel", "floor")}
    for turn in range(processes):
        for number, size in enumerate(SIZES):
            order = {"first": 1000 * (number + 1), "count": each, "turn": turn}
            taken = pinned_json("hits", {"what": "store", **order}, node.environ)
            for side in ("get_kernel", "floor"):
                series[f"3 {side}, {size}"].samples += taken[side]
    return series


def _memory_hits(node: Node, scratch: Path, batches: int) -> dict[str, Series]:
    environ = {**tilelang_environment(node, scratch / "tilelang"), **child_environment(), **node.environ}
    environ |= tilelang_environment(node, scratch / "tilelang")
    taken = pinned_json("hits", {"what": "memory", "batches": batches}, environ)
    return {f"2 {name}": Series(samples) for name, samples in taken.items()}


def _row_2(series: dict[str, Series]) -> Row:
    ratio = series["2 get_kernel"].median / series["2 tilelang.jit"].median
    return Row(
        number="2",
        measured="get_kernel, same spec again in the process",
        against="@tilelang.jit memory hit",
        checks=(Check(what="time", value=ratio, unit="x", direction="<=", target=1.5, ratio=True),),
    )


def _row_3(series: dict[str, Series]) -> list[Row]:
    checks = []
    for size in SIZES:
        ours, floor = series[f"3 get_kernel, {size}"].spread, series[f"3 floor, {size}"].spread
        for share, target in (("median", 3.0), ("p99", 5.0)):
            checks.append(
                Check(
                    what=f"{'p50' if share == 'median' else share} at {size}",
                    value=ours[share] / floor[share],
                    unit="x",
                    direction="<=",
                    target=target,
                    ratio=share == "median",
                )
            )
    return [
        Row(
            number="3",
            measured="get_kernel, first time in the process, in the store and verified before",
            against="open + mmap + close of the same file, two pages touched",
            checks=tuple(checks),
        )
    ]


def _notes(series: dict[str, Series]) -> list[str]:
    built = series["2 get_kernel, spec made anew"].median / series["2 tilelang.jit"].median
    return [
        f"With the spec object made anew in every call a memo hit costs {built:.2f} x the jit hit.",
        "The files of row 3 are real artifact files with made-up images, padded to size by the encoder.",
    ]


def _store_samples(first: int, count: int, turn: int) -> dict[str, list[float]]:
    """In the client: the first get_kernel of ``count`` specs, and the floor on each one's file."""
    from kaas import get_kernel
    from kaas.cache.layout import StoreLayout
    from kaas.client import api

    specs = [spec_number(first + number) for number in range(count)]
    get_kernel(spec_number(first))  # all imports, and the environment's digest
    client = api._client
    assert client is not None
    layout = StoreLayout(Path(os.environ["KAAS_STORE"]))
    paths = [os.fspath(layout.artifact_path(client.key((spec, None)))) for spec in specs]
    for path in paths:
        Path(path).read_bytes()  # both sides find the pages in memory
    del paths[0], specs[0]
    ours: list[float] = []
    floor: list[float] = []
    clock = time.perf_counter_ns
    for number, (path, spec) in enumerate(zip(paths, specs, strict=True)):
        for side in (0, 1) if (number + turn) % 2 else (1, 0):
            if side:
                begin = clock()
                handle = get_kernel(spec)
                ours.append((clock() - begin) * 1e-9)
                assert handle.origin == "store"
            else:
                begin = clock()
                open_map_close(path)
                floor.append((clock() - begin) * 1e-9)
    return {"get_kernel": ours, "floor": floor}


def open_map_close(path: str) -> None:
    """The floor of a hit: what any reader of the file must do."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    view = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    view[0]
    view[-1]
    view.close()
    os.close(descriptor)


def _memory_samples(batches: int) -> dict[str, list[float]]:
    """In the client: batches of memo hits and of jit hits in turns."""
    from benchmarks.tilelang_side import jitted_gemm
    from kaas import GemmSpec, get_kernel

    jitted = jitted_gemm()
    jitted(512, 512, 512)
    spec = GemmSpec(n=512, k=512, m=512)
    get_kernel(spec)

    def batch_of_jit() -> None:
        for _ in range(BATCH):
            jitted(512, 512, 512)

    def batch_of_memo() -> None:
        for _ in range(BATCH):
            get_kernel(spec)

    def batch_of_new_specs() -> None:
        for _ in range(BATCH):
            get_kernel(GemmSpec(n=512, k=512, m=512))

    sides = {
        "tilelang.jit": batch_of_jit,
        "get_kernel": batch_of_memo,
        "get_kernel, spec made anew": batch_of_new_specs,
    }
    samples: dict[str, list[float]] = {name: [] for name in sides}
    clock = time.perf_counter_ns
    gc.collect()
    for turn in range(batches + 3):
        for name, batch in sides.items():
            begin = clock()
            batch()
            if turn >= 3:
                samples[name].append((clock() - begin) * 1e-9 / BATCH)
    return samples


def main(order: dict[str, Any]) -> None:
    """The client process."""
    if order.pop("what") == "store":
        print(json.dumps(_store_samples(**order)))
    else:
        print(json.dumps(_memory_samples(**order)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
