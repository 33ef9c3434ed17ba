"""A store under every file operation that can fail: run as ``python -m support.file_faults.store_scenarios``.

The process has the shim preloaded. Each scenario is run once to count its file operations, then once for each
of them and each fault, in a child of its own that dies of the fault or ends without closing anything. Then
this process, which never had that store open, asks it for the truth: what it holds to is in :func:`lies`. One
JSON object on standard output: how often each fault was injected, into which operations, and every lie.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.file_faults import DEATH, FAULTS, Controls, Fault
from support.kernels import encoded, passport, summary

from kaas.cache.artifact import open_artifact
from kaas.cache.audit_log import AuditLog
from kaas.cache.eviction import Eviction
from kaas.cache.index import KernelIndex
from kaas.cache.limits import StoreLimits
from kaas.cache.pins import Pins
from kaas.cache.store import Store
from kaas.client.store_reader import StoreReader
from kaas.proto.errors import KaasError

OLD, NEW = passport(64), passport(128)
BYTES = {of.key(): encoded(of) for of in (OLD, NEW)}
IMAGES = {of.key(): bytes(range(256)) * 9 + of.key().encode() for of in (OLD, NEW)}


@dataclass(frozen=True)
class Scenario:
    """``prepare`` leaves a store behind; ``act`` is what is disturbed."""

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    keeps_old: bool = True
    """Whether the old kernel must still be there afterwards."""
    damaged: int = 0
    """How many artifacts are damaged beforehand: at most so many may be in quarantine afterwards."""
    survives: bool = False
    """Whether a fault that passes at once must not even make it raise."""
    adds_new: bool = False
    """Whether the new kernel must be there when nothing was raised."""


def nothing(root: Path) -> None:
    root.mkdir()


def with_old(root: Path) -> None:
    with Store.open(root) as store:
        store.publish(OLD.key(), BYTES[OLD.key()])


def with_damage(root: Path) -> None:
    with_old(root)
    with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
        path = store.publish(NEW.key(), BYTES[NEW.key()])
        index.rebuild(store, summary)
    damaged = bytearray(BYTES[NEW.key()])
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def with_leftovers(root: Path) -> None:
    with_old(root)
    with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
        index.rebuild(store, summary)
        staging = store.layout.staging
        (staging / "half.123.abc").write_bytes(BYTES[NEW.key()][:100])
        (staging / "directory").mkdir()
        (staging / "directory" / "file").write_bytes(b"x")


def publish(root: Path) -> None:
    with Store.open(root) as store:
        store.publish(NEW.key(), BYTES[NEW.key()])


def load(root: Path) -> None:
    with Store.open(root) as store:
        artifact = store.load(OLD.key())
        assert artifact is None or bytes(artifact.image) == IMAGES[OLD.key()], "other bytes were loaded"


def load_damage(root: Path) -> None:
    with Store.open(root) as store:
        assert store.load(NEW.key()) is None, "damaged bytes were served"
        assert store.load(NEW.key()) is None, "damaged bytes were served"


def read_as_client(root: Path) -> None:
    reader = StoreReader(root)
    reader.environment()
    for key in (OLD.key(), NEW.key()):
        artifact = reader.find(key)
        assert artifact is None or (key == OLD.key() and bytes(artifact.image) == IMAGES[key])


def evict(root: Path) -> None:
    limits = StoreLimits(soft_files=1)
    with Store.open(root, limits) as store, contextlib.closing(KernelIndex(root)) as index:
        index.rebuild(store, summary)
        for _ in store.measure():
            pass
        eviction = Eviction(store, index, limits, lambda key: key == OLD.key(), lambda: 2e9)
        for _ in range(100):
            evicted, has_more = eviction.step()
            assert OLD.key() not in [one.key for one in evicted], "a protected kernel was evicted"
            if not has_more:
                return
        raise AssertionError("eviction never ends")


def two_kernels(root: Path) -> None:
    with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
        for key, content in BYTES.items():
            store.publish(key, content)
        index.rebuild(store, summary)


def remove(root: Path) -> None:
    with Store.open(root) as store:
        store.remove(OLD.key())


def quarantine(root: Path) -> None:
    with Store.open(root) as store:
        store.quarantine(OLD.key(), "a test")
        store.quarantined()


def start(root: Path) -> None:
    with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
        Pins(store.layout)
        index.rebuild(store, summary)
        with contextlib.suppress(OSError, KaasError):
            index.record(summary(open_artifact(store.layout.artifact_path(OLD.key()))))
        index.touch(OLD.key())
        rows, _, total = index.list({}, 10, "")
        assert len(rows) == total <= 2


def keep_books(root: Path) -> None:
    with Store.open(root) as store:
        log = AuditLog(store.layout, 400)
        for number in range(4):
            log.append([b'{"number":%d,"pad":"%s"}' % (number, b"x" * 90)])
        records = list(log.records())
        assert [record["number"] for record in records] == sorted(record["number"] for record in records)
        Pins(store.layout).pin([OLD.key()], "a test")
        assert Pins(store.layout).is_pinned(OLD.key()) or os.environ["KAAS_FAULT"] != "none"


SCENARIOS = (
    Scenario("create", nothing, publish, keeps_old=False, adds_new=True),
    Scenario("publish", with_old, publish, adds_new=True),
    Scenario("publish over damage", with_damage, publish, damaged=1, adds_new=True),
    Scenario("load", with_old, load, survives=True),
    Scenario("load damage", with_damage, load_damage, damaged=1, survives=True),
    Scenario("read as client", with_damage, read_as_client, damaged=1),
    Scenario("evict", two_kernels, evict, survives=True),
    Scenario("remove", with_old, remove, keeps_old=False),
    Scenario("quarantine", with_old, quarantine, keeps_old=False, damaged=1),
    Scenario("start", with_leftovers, start, survives=True),
    Scenario("pins and audit", with_old, keep_books),
)


def lies(scenario: Scenario, root: Path, is_done: bool) -> list[str]:
    """What the store says or holds that is not so, after the faults have stopped."""
    found = []
    with Store.open(root) as store, contextlib.closing(KernelIndex(root)) as index:
        layout = store.layout
        if left := [path.name for path in layout.staging.iterdir()]:
            found.append(f"left in staging: {left}")
        if layout.artifacts.stat().st_mode & 0o005 != 0o005:
            found.append("others may not read the artifacts")
        index.rebuild(store, summary)
        listed = {row["key"] for row in index.list({}, 10, "")[0]}
        for of in (OLD, NEW):
            key = of.key()
            artifact = store.load(key)
            if artifact is not None and bytes(artifact.image) != IMAGES[key]:
                found.append(f"{key[:12]} has other bytes")
            if artifact is None and of is OLD and scenario.keeps_old:
                found.append("the old kernel is lost")
            if artifact is None and of is NEW and scenario.adds_new and is_done:
                found.append("published, and yet not there")
            if artifact is None and key in listed and scenario.damaged == 0:
                found.append(f"{key[:12]} is listed and not there")
            if artifact is not None and key not in listed:
                found.append(f"{key[:12]} is there and not listed")
            index.record(summary(open_artifact(store.publish(key, BYTES[key]), key)))
            again = store.load(key)
            if again is None or bytes(again.image) != IMAGES[key]:
                found.append(f"{key[:12]} cannot be published any more")
            if layout.artifact_path(key).parent.stat().st_mode & 0o005 != 0o005:
                found.append("others may not read the artifacts")
        rows, _, total = index.list({}, 10, "")
        if total != 2 or {row["key"] for row in rows} != set(BYTES):
            found.append(f"the index lists {total} of 2 kernels")
        put_away = [path.name for path in layout.quarantine.iterdir() if path.suffix != ".json"]
        if len(put_away) > scenario.damaged or len(store.quarantined()) > len(put_away):
            found.append(f"in quarantine: {put_away}")
        Pins(layout).pin([OLD.key()], "a test")
        log = AuditLog(layout, 1000)
        log.append([b'{"number":9}'])
        if not (log.lost_lines == 0 and list(log.records())[-1] == {"number": 9}):
            found.append("the audit has lost its last line")
    return found


class Harness:
    """Runs scenarios below one directory and keeps count."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._controls = Controls()
        self.injected: collections.Counter[str] = collections.Counter()
        self.operations: collections.Counter[str] = collections.Counter()
        self.lies: list[str] = []

    def run(self, scenario: Scenario, first: int, stride: int) -> None:
        """One scenario with each fault at every ``stride``-th of its operations, counted from ``first``.

        Each fault begins elsewhere, so that between them they meet every operation.
        """
        prepared, root = self._directory / "prepared", self._directory / "store"
        shutil.rmtree(prepared, ignore_errors=True)
        scenario.prepare(prepared)
        total = self._once(scenario, prepared, root, 0, FAULTS[0])
        for number, fault in enumerate((*FAULTS, DEATH), start=first):
            for nth in range(1 + number % stride, total + 1, stride):
                self._once(scenario, prepared, root, nth, fault)

    def _once(self, scenario: Scenario, prepared: Path, root: Path, nth: int, fault: Fault) -> int:
        """How many operations there were."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(prepared, root, symlinks=True)
        said = self._disturbed(scenario, root, nth, fault)
        where = (
            f"{scenario.name}, {fault.name} at operation {nth}" if nth else f"{scenario.name}, undisturbed"
        )
        if nth and not said["fired"]:
            return int(said["total"])
        if nth:
            self.injected[fault.name] += 1
            self.operations[said["fired"]] += 1
            where += f" ({said['fired']})"
        is_allowed = said["typed"] and nth and (fault.repeat or not scenario.survives)
        if said["trouble"] and not is_allowed:
            self.lies.append(f"{where}: {said['trouble']}")
        try:
            self.lies += [f"{where}: {lie}" for lie in lies(scenario, root, said["is_done"])]
        except Exception:
            self.lies.append(f"{where}: afterwards {traceback.format_exc()[-600:]}")
        return int(said["total"])

    def _disturbed(self, scenario: Scenario, root: Path, nth: int, fault: Fault) -> dict[str, Any]:
        """What the child says of its run: operations, the one that failed, what was raised and if typed."""
        mouth, ear = os.pipe()[::-1]
        child = os.fork()
        if child == 0:
            os.close(ear)
            os.environ["KAAS_FAULT"] = fault.name if nth else "none"
            trouble, is_typed = "", True
            self._controls.arm(root, nth, fault)
            try:
                scenario.act(root)
            except BaseException as error:
                trouble, is_typed = traceback.format_exc()[-600:], isinstance(error, KaasError)
            total, fired = self._controls.disarm(), self._controls.fired()
            said = {"total": total, "fired": fired, "trouble": trouble, "typed": is_typed}
            said["is_done"] = not trouble
            os.write(mouth, json.dumps(said).encode())
            os._exit(0)
        os.close(mouth)
        with open(ear, "rb") as reading:  # noqa: PTH123 (a descriptor)
            text = reading.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            is_ours = fault is DEATH and os.WTERMSIG(status) == signal.SIGKILL
            trouble = "" if is_ours else f"died of signal {os.WTERMSIG(status)}"
            return {"total": 0, "fired": "killed", "trouble": trouble, "typed": False, "is_done": False}
        said = json.loads(text)
        assert isinstance(said, dict)
        return said


def main(directory: str, stride: int) -> None:
    """Every ``stride``-th operation of every scenario, under every fault."""
    logging.disable(logging.CRITICAL)
    harness = Harness(Path(directory))
    for number, scenario in enumerate(SCENARIOS):
        # Each scenario begins elsewhere: all of them begin alike, by opening the store.
        harness.run(scenario, number, stride)
    told = {"injected": harness.injected, "operations": harness.operations, "lies": harness.lies}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
