"""A store of 100,000 kernels against one of 1,000: look-up, start-up (over its limit), the daemon's memory.

Look-ups alternate between the two stores, and so do starts between a full and an empty one.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from statistics_of import human_seconds, summary

from kaas import GemmSpec
from kaas.cache.artifact import encode_artifact
from kaas.cache.environment_file import read_environment
from kaas.cache.layout import StoreLayout
from kaas.client.daemon_link import DaemonLink
from kaas.client.store_reader import StoreReader
from kaas.proto.launch import LaunchMetadata

SMALL, LARGE = 1_000, 100_000
LIMIT = 90_000
"""Kernels that the large store may hold when it is started over its limit."""

READY_WITHIN_S = 2.0
"""What a start may take, whatever the store holds."""

IMAGE_BYTES = 2048
SEED = 3510


def _fill(store: Path, count: int) -> list[str]:
    """``count`` made-up kernels of this node's environment, last used a day ago; their keys."""
    environment = read_environment(store)
    assert environment is not None
    layout = StoreLayout(store)
    launch = LaunchMetadata(entry="k", block_count=28, dynamic_ub_bytes=0, parameters=(), signature=())
    keys = []
    for number in range(count):
        passport = environment.passport(
            GemmSpec(n=16 * (number % 1000 + 1), k=16 * (number // 1000 + 1)).to_record()
        )
        key = passport.key()
        path = layout.artifact_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            encode_artifact(
                passport=passport,
                launch=launch,
                choices={},
                image=number.to_bytes(8) * (IMAGE_BYTES // 8),
                source="// made up",
                log="",
                created_unix=time.time() - 86_400,
                compile_seconds=1.0 + number % 7,
            )
        )
        keys.append(key)
    return keys


@dataclass(frozen=True)
class _Daemon:
    """A running one; its log follows from the directory."""

    process: subprocess.Popen[str]
    start_seconds: float
    rest_url: str


@contextlib.contextmanager
def _daemon(directory: Path, store: Path, **settings: str) -> Iterator[_Daemon]:
    """A daemon on that store and how long it took until it listened; always stopped."""
    environ = {
        **os.environ,
        "KAAS_SOCKET": str(directory / "kaas.sock"),
        "KAAS_STORE": str(store),
        "KAAS_REST_ADDRESS": "off",
        **{f"KAAS_{field.upper()}": value for field, value in settings.items()},
    }
    began = time.perf_counter()
    with (directory / "daemon.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kaas.server"], env=environ, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        banner = process.stdout.readline()
        assert banner, (directory / "daemon.log").read_text()[-2000:]
        seconds = time.perf_counter() - began
        url = re.search(r"REST on (http://\S+?),", banner)
        yield _Daemon(process, seconds, url.group(1) if url else "")
    finally:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


def _lookups(stores: dict[str, tuple[Path, list[str]]], rounds: int, count: int) -> dict[str, Any]:
    """Verified look-ups of random keys by a client's reader, alternating between stores."""
    chosen = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in stores}
    readers = {name: StoreReader(store) for name, (store, _) in stores.items()}
    clock = time.perf_counter_ns
    for _ in range(rounds):
        for name, (_, keys) in stores.items():
            for key in chosen.choices(keys, k=count):
                start = clock()
                artifact = readers[name].find(key)
                samples[name].append((clock() - start) * 1e-9)
                assert artifact is not None
    return {name: summary(values) for name, values in samples.items()}


def _rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _ask(socket: Path, rest_url: str, count: int) -> None:
    """So many hits, one in ten of them over HTTP."""
    spec = GemmSpec(n=16, k=16)
    canonical, record = spec.canonical(), {"spec": spec.to_record()}
    link = DaemonLink(socket)
    with httpx.Client(base_url=rest_url, timeout=60) as rest:
        for number in range(count):
            if number % 10:
                link.get_kernel(canonical)
            else:
                rest.post("/v1/kernels", json=record).raise_for_status()
    link.close()


def _memory(directory: Path, store: Path, requests: int) -> dict[str, Any]:
    """The daemon's resident bytes with the whole index, at each tenth of many requests by two threads."""
    socket = directory / "kaas.sock"
    with _daemon(
        directory, store, store_soft_files="0", store_soft_bytes="0", rest_address="127.0.0.1:0"
    ) as daemon:
        link = DaemonLink(socket)
        while link.list_kernels(page_size=1).total < LARGE:
            time.sleep(0.2)
        resident = [_rss_bytes(daemon.process.pid)]
        for _ in range(10):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda _: _ask(socket, daemon.rest_url, requests // 20), range(2)))
            resident.append(_rss_bytes(daemon.process.pid))
        told = link.usage()["daemon_resident_bytes"]
        link.close()
    return {"requests": requests, "resident_bytes": resident, "told_bytes": told}


def _starts(directory: Path, full: Path, empty: Path, rounds: int) -> dict[str, Any]:
    samples: dict[str, list[float]] = {"full": [], "empty": []}
    first_hit: list[float] = []
    spec = GemmSpec(n=16, k=16).canonical()
    for _ in range(rounds):
        with _daemon(directory, empty) as daemon:
            samples["empty"].append(daemon.start_seconds)
        with _daemon(directory, full, store_soft_files=str(LIMIT)) as daemon:
            samples["full"].append(daemon.start_seconds)
            link = DaemonLink(directory / "kaas.sock")
            began = time.perf_counter()
            link.get_kernel(spec, timeout=120)
            first_hit.append(time.perf_counter() - began)
            link.close()
    return {
        **{name: summary(values) for name, values in samples.items()},
        "first_hit": summary(first_hit),
    }


def measure(lookup_rounds: int = 20, start_rounds: int = 5, requests: int = 100_000) -> dict[str, Any]:
    """Fill three stores past their daemon, then look up, start and ask."""
    with tempfile.TemporaryDirectory(prefix="kaas-scale-") as name:
        directory = Path(name)
        stores = {size: directory / size for size in ("empty", "small", "large")}
        keys: dict[str, list[str]] = {}
        for size, store in stores.items():
            with _daemon(directory, store):
                pass
            keys[size] = _fill(store, {"empty": 0, "small": SMALL, "large": LARGE}[size])
        looked = _lookups(
            {size: (stores[size], keys[size]) for size in ("small", "large")}, lookup_rounds, 500
        )
        memory = _memory(directory, stores["large"], requests)  # which also writes the index
        starts = _starts(directory, stores["large"], stores["empty"], start_rounds)
    return {"lookup": looked, "start": starts, "memory": memory}


def rows(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Table rows: what, kaas, against, ratio."""
    look, start, memory = result["lookup"], result["start"], result["memory"]
    resident = memory["resident_bytes"]

    def cell(one: dict[str, Any]) -> str:
        spread = f"{human_seconds(one['p25'])} to {human_seconds(one['p75'])}"
        return f"p50 {human_seconds(one['median'])} ({spread}), p99 {human_seconds(one['p99'])}"

    def mib(size: int) -> str:
        return f"{size / 2**20:.1f} MiB"

    return [
        (
            f"verified look-up in a store of {LARGE:,} kernels",
            cell(look["large"]),
            f"the same at {SMALL:,}: " + cell(look["small"]),
            f"{look['large']['median'] / look['small']['median']:.3g} x (p50)",
        ),
        (
            f"start until it listens, {LARGE:,} kernels of which {LIMIT:,} may stay",
            cell(start["full"]),
            "an empty store: " + cell(start["empty"]),
            f"{start['full']['median'] / start['empty']['median']:.3g} x; "
            f"the slowest took {start['full']['max'] / READY_WITHIN_S:.2g} of {READY_WITHIN_S:g} s",
        ),
        (
            "first hit through that daemon, right after it listens",
            cell(start["first_hit"]),
            "",
            "",
        ),
        (
            f"the daemon's resident memory after {memory['requests']:,} requests (gRPC and HTTP), "
            f"{LARGE:,} kernels indexed",
            mib(resident[-1]),
            f"after a tenth: {mib(resident[1])} (before: {mib(resident[0])}, most: {mib(max(resident))})",
            f"{resident[-1] / resident[1]:.3g} x",
        ),
    ]


if __name__ == "__main__":
    print(rows(measure(2, 1, 4000)))
