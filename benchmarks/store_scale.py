"""Row 9: hits and listings in a store of 100,000 kernels, against one of 1,000.

Two daemons, one for each store. A client gets random kernels from both in turns, so that neither order nor
warmth differs, and lists a page of 50 through each daemon. The files hold 2 KiB images; contents do not
matter here, the number of files does.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.filled_store import fill, spec_number
from benchmarks.node import DAEMON_CORE, Node, child_environment, pinned_json, running_node
from benchmarks.outcome import Check, Outcome, Row, Series

SMALL, LARGE = 1_000, 100_000
FILE_BYTES = 10 << 10
PAGE = 50


def measure(effort: Effort) -> Outcome:
    """Fill, start both daemons, ask both in turns."""
    large = max(5_000, round(LARGE * min(1.0, effort.scale * 4)))
    with tempfile.TemporaryDirectory(prefix="kaas-bench-") as name, contextlib.ExitStack() as closing:
        nodes: dict[str, Node] = {}
        for size, count in (("small", SMALL), ("large", large)):
            directory = Path(name) / size
            directory.mkdir()
            with running_node(directory, warm=False):
                pass
            for _ in fill(directory / "store", count, FILE_BYTES):
                pass
            nodes[size] = closing.enter_context(
                running_node(directory, core=DAEMON_CORE, store_soft_bytes="0", store_soft_files="0")
            )
        wait_until_indexed(nodes["large"], large)
        order = {
            "stores": {size: [str(node.store), str(node.socket)] for size, node in nodes.items()},
            "counts": {"small": SMALL, "large": large},
            "hits": effort.times(4000, 500),
            "lists": effort.times(400, 50),
            "seed": effort.seed,
        }
        taken = pinned_json("store_scale", order, child_environment())
    sizes = {"small": f"{SMALL:,} kernels", "large": f"{large:,} kernels"}
    series = {
        f"9 {what}, {sizes[size]}": Series(taken[f"{what} {size}"])
        for what in ("hit", "list")
        for size in sizes
    }
    checks = tuple(
        Check(
            what=what,
            value=series[f"9 {what}, {sizes['large']}"].median / series[f"9 {what}, {sizes['small']}"].median,
            unit="x",
            direction="<=",
            target=1.2,
            ratio=True,
        )
        for what in ("hit", "list")
    )
    row = Row(
        number="9",
        measured=f"store hit, and a page of {PAGE} listed, with {large:,} kernels",
        against=f"the same with {SMALL:,}",
        checks=checks,
    )
    return Outcome(rows=[row], series=series)


def wait_until_indexed(node: Node, count: int) -> None:
    """Return when a running daemon lists so many kernels and is done with its start."""
    from kaas.client.daemon_link import DaemonLink

    link = DaemonLink(node.socket)
    deadline = time.monotonic() + 300
    while link.list_kernels(page_size=1).total < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon did not index its store within 300 s")
        time.sleep(0.2)
    link.close()
    time.sleep(2)  # what the daemon does behind a start is done


def _samples(
    stores: dict[str, list[str]], counts: dict[str, int], hits: int, lists: int, seed: int
) -> dict[str, list[float]]:
    """In the client: the two stores in turns."""
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.kernel_client import KernelClient

    chosen = random.Random(seed)
    clients = {size: KernelClient(Path(store), Path(socket)) for size, (store, socket) in stores.items()}
    links = {size: DaemonLink(Path(socket)) for size, (_, socket) in stores.items()}
    samples: dict[str, list[float]] = {f"{what} {size}": [] for what in ("hit", "list") for size in stores}
    clock = time.perf_counter_ns
    sizes = list(stores)
    for turn in range(hits + 20):
        for size in sizes if turn % 2 else sizes[::-1]:
            spec = spec_number(chosen.randrange(counts[size]))
            path = clients[size].artifact_path(clients[size].key((spec, None)))
            path.read_bytes()  # from memory, not from the disk, on both sides
            clients[size].memo.clear()
            begin = clock()
            handle = clients[size].find((spec, None), True)
            taken = (clock() - begin) * 1e-9
            assert handle is not None
            if turn >= 20:
                samples[f"hit {size}"].append(taken)
    for turn in range(lists + 5):
        for size in sizes if turn % 2 else sizes[::-1]:
            begin = clock()
            found = links[size].list_kernels(page_size=PAGE)
            taken = (clock() - begin) * 1e-9
            assert len(found.kernels) == PAGE
            if turn >= 5:
                samples[f"list {size}"].append(taken)
    return samples


if __name__ == "__main__":
    print(json.dumps(_samples(**json.loads(sys.argv[1]))))
