"""A store of many kernels above its limit: looked up like a small one, served first, cleaned up meanwhile."""

from __future__ import annotations

import random
import statistics
import time
from math import ceil
from pathlib import Path

import msgspec
import pytest
from support.daemon import DaemonProcess
from support.fake_toolkit import FakeToolkit
from support.stored_kernels import store_many

from kaas import GemmSpec
from kaas.cache.environment_file import publish_environment, read_environment
from kaas.cache.limits import LOW_WATER
from kaas.client.daemon_link import DaemonLink
from kaas.client.store_reader import StoreReader

SMALL = 1_000
LOOK_UP_RATIO = 1.3


def started(
    directory: Path, toolkit: FakeToolkit, store: Path, **options: str
) -> tuple[DaemonProcess, float]:
    began = time.monotonic()
    daemon = DaemonProcess(
        directory, toolkit_home=str(toolkit.home), store=str(store), rest_address="off", **options
    ).start()
    return daemon, time.monotonic() - began


def closed(daemon: DaemonProcess) -> None:
    try:
        daemon.stop()
    finally:
        daemon.discard()


def look_up_ratio(large: tuple[Path, list[str]], small: tuple[Path, list[str]]) -> float:
    """What a client's verified look-up costs in one store against another: medians, taken in turns."""
    chosen = random.Random(3510)
    stores = (large, small)
    readers = [StoreReader(root) for root, _ in stores]
    ratios = []
    for _ in range(9):
        medians = []
        for reader, (_, keys) in zip(readers, stores, strict=True):
            times = []
            for key in chosen.choices(keys, k=300):
                began = time.perf_counter_ns()
                artifact = reader.find(key)
                times.append(time.perf_counter_ns() - began)
                assert artifact is not None
                artifact.close()
            medians.append(statistics.median(times))
        ratios.append(medians[0] / medians[1])
    return statistics.median(ratios)


@pytest.mark.parametrize(
    ("count", "index"),
    [
        pytest.param(3_000, False, id="3000-without-index"),
        pytest.param(100_000, True, id="100000", marks=pytest.mark.slow),
    ],
)
def test_a_store_above_its_limit_starts_like_an_empty_one_and_answers_while_it_shrinks(
    tmp_path: Path, count: int, index: bool
) -> None:
    toolkit = FakeToolkit(tmp_path / "toolkit")
    full, empty = tmp_path / "full", tmp_path / "empty"
    for store in (full, empty):
        closed(started(tmp_path, toolkit, store)[0])
    a_day_ago = time.time() - 86_400
    sizes = [(16 * (number % 1000 + 1), 16 * (number // 1000 + 1)) for number in range(count)]
    keys = store_many(full, sizes, created_unix=a_day_ago, index=index)
    limit = count // 2
    small = tmp_path / "small"
    environment = read_environment(full)
    assert environment is not None
    small.mkdir()
    publish_environment(small, environment)
    few = store_many(small, sizes[:SMALL], created_unix=a_day_ago, index=False)
    assert look_up_ratio((full, keys), (small, few)) <= LOOK_UP_RATIO

    times: dict[str, list[float]] = {"empty": [], "full": []}
    daemon, seconds = started(tmp_path, toolkit, empty)
    times["empty"].append(seconds)
    closed(daemon)
    daemon, seconds = started(tmp_path, toolkit, full, store_soft_files=str(limit))
    times["full"].append(seconds)
    try:
        link = DaemonLink(Path(daemon.socket))
        # It listens before it has cleaned up, not after.
        assert link.usage()["evicted"] == 0
        spec = GemmSpec(n=16, k=16)
        answers = during = 0
        while (usage := link.usage())["used"]["files"] > ceil(LOW_WATER * limit) or not usage["evicted"]:
            assert link.get_kernel(spec.canonical()).key == keys[0]
            answers += 1
            during += bool(usage["evicted"])
            time.sleep(0.02)  # asking without a pause would take the shrinking's time on a small machine
        assert during >= 5, (answers, during)
        left = sum(1 for _ in full.glob("artifacts/*/*.kernel"))
        assert left == usage["used"]["files"] <= limit
        assert link.get_kernel(spec.canonical()).key == keys[0]
        link.close()
    finally:
        closed(daemon)
    assert min(times["full"]) <= 2 * min(times["empty"])
    reasons = {
        record["reason"]
        for path in (full / "audit").iterdir()
        for record in map(msgspec.json.decode, path.read_bytes().splitlines())
        if record["event"] == "evicted"
    }
    assert len(reasons) == 1
