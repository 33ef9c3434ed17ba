"""A store under every file operation that can fail: run as ``python -m support.file_faults.store_scenarios``.

The process has the shim preloaded. Each scenario is run once to count its file operations, then once for each
of them and each fault. After every run the faults stop and the store must tell the truth; what it must hold
to is in :func:`lies`. One JSON object on standard output: how often each fault was injected, and every lie.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.file_faults import DEATH, FAULTS, Controls, Fault
from support.kernels import encoded, passport, summary

from kaas.cache.artifact import open_artifact
from kaas.cache.index import KernelIndex
from kaas.cache.store import Store
from kaas.proto.errors import ArtifactDamaged, KaasError

OLD, NEW = passport(64), passport(128)
BYTES = {of.key(): encoded(of) for of in (OLD, NEW)}


@dataclass(frozen=True)
class Scenario:
    """``prepare`` leaves a store behind; ``act`` is what is disturbed."""

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], Any]
    keeps_old: bool = True
    """Whether the old kernel must still be there afterwards."""


def with_old(root: Path) -> None:
    with Store.open(root) as store:
        store.publish(OLD.key(), BYTES[OLD.key()])


def with_damage(root: Path) -> None:
    with_old(root)
    with Store.open(root) as store:
        path = store.publish(NEW.key(), BYTES[NEW.key()])
    damaged = bytearray(BYTES[NEW.key()])
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def with_leftovers(root: Path) -> None:
    with_old(root)
    with Store.open(root) as store, Indexed(root, store):
        staging = store.layout.staging
        (staging / "half.123.abc").write_bytes(BYTES[NEW.key()][:100])
        (staging / "directory").mkdir()
        (staging / "directory" / "file").write_bytes(b"x")


class Indexed:
    """A store's index, brought in line and closed."""

    def __init__(self, root: Path, store: Store) -> None:
        self.index = KernelIndex(root)
        self.index.rebuild(store, summary)

    def __enter__(self) -> KernelIndex:
        return self.index

    def __exit__(self, *_: object) -> None:
        self.index.close()


def publish(root: Path) -> str:
    with Store.open(root) as store:
        return str(store.publish(NEW.key(), BYTES[NEW.key()]))


def load_old(root: Path) -> bytes | None:
    with Store.open(root) as store:
        artifact = store.load(OLD.key())
        return None if artifact is None else bytes(artifact.image)


def load_damaged(root: Path) -> Any:
    with Store.open(root) as store:
        assert store.load(NEW.key()) is None, "damaged bytes were served"
        assert store.load(NEW.key()) is None, "damaged bytes were served"


def remove(root: Path) -> None:
    with Store.open(root) as store:
        store.remove(OLD.key())


def quarantine(root: Path) -> None:
    with Store.open(root) as store:
        store.quarantine(OLD.key(), "a test")
        store.quarantined()


def start(root: Path) -> None:
    with Store.open(root) as store, Indexed(root, store) as index:
        index.record(summary(open_artifact(store.layout.artifact_path(OLD.key()))))
        index.touch(OLD.key())
        index.list({}, 10, "")


def nothing(root: Path) -> None:
    root.mkdir()


SCENARIOS = (
    Scenario("create", nothing, publish, keeps_old=False),
    Scenario("publish", with_old, publish),
    Scenario("publish over damage", with_damage, publish),
    Scenario("load", with_old, load_old),
    Scenario("load damage", with_damage, load_damaged),
    Scenario("evict", with_old, remove, keeps_old=False),
    Scenario("quarantine", with_old, quarantine, keeps_old=False),
    Scenario("start", with_leftovers, start),
)


def lies(scenario: Scenario, root: Path, outcome: Any) -> list[str]:
    """What the store said or did that is not so, after the faults have stopped."""
    found = []
    if isinstance(outcome, BaseException) and not isinstance(outcome, KaasError):
        found.append("".join(traceback.format_exception(outcome)).strip()[-600:])
    if isinstance(outcome, str):  # publishing said that the kernel is there
        try:
            open_artifact(outcome, NEW.key()).close()
        except (OSError, KaasError) as error:
            found.append(f"published, yet {type(error).__name__}: {error}")
    if isinstance(outcome, bytes) and OLD.key().encode() not in outcome:
        found.append("other bytes were loaded")
    with Store.open(root) as store:
        if left := list(store.layout.staging.iterdir()):
            found.append(f"left in staging: {[path.name for path in left]}")
        for of in (OLD, NEW):
            key = of.key()
            artifact = store.load(key)
            if artifact is not None and bytes(artifact.image) != open_image(key):
                found.append(f"{key[:12]} has other bytes")
            if artifact is None and of is OLD and scenario.keeps_old:
                found.append("the old kernel is lost")
            store.publish(key, BYTES[key])
            again = store.load(key)
            if again is None or bytes(again.image) != open_image(key):
                found.append(f"{key[:12]} cannot be published any more")
        with Indexed(root, store) as index:
            rows, _, total = index.list({}, 10, "")
            if total != 2 or {row["key"] for row in rows} != set(BYTES):
                found.append(f"the index lists {total} of 2 kernels")
    return found


def open_image(key: str) -> bytes:
    return bytes(range(256)) * 9 + key.encode()


def run(scenario: Scenario, root: Path, controls: Controls, nth: int, fault: Fault) -> tuple[Any, int, str]:
    """Prepare and act with one fault armed: outcome, number of operations, and which one failed."""
    shutil.rmtree(root, ignore_errors=True)
    scenario.prepare(root)
    controls.arm(root, nth, fault)
    try:
        outcome = scenario.act(root)
    except (Exception, ArtifactDamaged) as error:
        outcome = error
    return outcome, controls.disarm(), controls.fired()


def run_and_die(scenario: Scenario, root: Path, controls: Controls, nth: int) -> bool:
    """The same in a child that is killed at the operation; whether it was."""
    shutil.rmtree(root, ignore_errors=True)
    scenario.prepare(root)
    child = os.fork()
    if child == 0:
        controls.arm(root, nth, DEATH)
        try:
            scenario.act(root)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main(directory: str, stride: int) -> None:
    """Every ``stride``-th operation of every scenario, under every fault."""
    logging.disable(logging.CRITICAL)
    controls = Controls()
    injected: collections.Counter[str] = collections.Counter()
    operations: collections.Counter[str] = collections.Counter()
    told: list[str] = []
    root = Path(directory) / "store"
    for scenario in SCENARIOS:
        outcome, total, _ = run(scenario, root, controls, 0, FAULTS[0])
        told += [f"{scenario.name}, undisturbed: {lie}" for lie in lies(scenario, root, outcome)]
        for nth in range(1, total + 1, stride):
            for fault in FAULTS:
                outcome, _, fired = run(scenario, root, controls, nth, fault)
                if not fired:
                    continue
                injected[fault.name] += 1
                operations[fired] += 1
                where = f"{scenario.name}, {fault.name} at operation {nth} ({fired})"
                told += [f"{where}: {lie}" for lie in lies(scenario, root, outcome)]
            if run_and_die(scenario, root, controls, nth):
                injected[DEATH.name] += 1
                where = f"{scenario.name}, killed at operation {nth}"
                told += [f"{where}: {lie}" for lie in lies(scenario, root, None)]
    print(json.dumps({"injected": injected, "operations": operations, "lies": told}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
