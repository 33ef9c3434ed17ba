"""The store under kills and on full disks: what is served is whole, and nothing unfinished stays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernels import encoded, passport, summary

from kaas.cache.environment_file import read_environment
from kaas.cache.index import KernelIndex
from kaas.cache.layout import StoreLayout
from kaas.cache.store import Store
from kaas.proto.errors import StoreFull, StoreUnavailable

SUPPORT = Path(__file__).parents[1] / "support"
SEED = 3510


def publisher(root: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "publish_forever.py"), str(root), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed_after(process: subprocess.Popen[str], seconds: float) -> list[str]:
    """Keys that the publisher had announced when it was killed, ``seconds`` after it opened the store."""
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return [line for line in output.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_while_publishing_leave_whole_artifacts_and_nothing_else(tmp_path: Path, rounds: int) -> None:
    root = tmp_path / "store"
    moments = random.Random(SEED)
    announced: set[str] = set()
    number = 1
    for _ in range(rounds):
        fresh = killed_after(publisher(root, number), moments.uniform(0.0, 0.12))
        announced |= {line.strip() for line in fresh}
        with Store.open(root) as store:
            assert list(store.layout.staging.iterdir()) == []
            found = list(store.keys())
            for key in found:
                kernel = store.load(key)
                assert kernel is not None, "a published artifact is damaged"
                n = kernel.passport.spec["n"]
                assert bytes(kernel.image[:8]) == int(n).to_bytes(8, "big")
            assert announced <= set(found)
            assert len(found) <= len(announced) + rounds, "more than one unannounced artifact a kill"
            assert store.quarantined() == []
            index = KernelIndex(root)
            index.rebuild(store, summary)
            assert len(index) == len(found)
            index.close()
            assert read_environment(root) is not None
        number += len(fresh) + 1
    assert len(announced) > rounds, "the kills came before anything was published"


def test_a_dead_daemon_frees_its_store_at_once_and_a_live_one_never(tmp_path: Path) -> None:
    root = tmp_path / "store"
    process = publisher(root, 1)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreUnavailable, match=f"process {process.pid} "):
            Store.open(root)
    finally:
        process.kill()
        process.communicate(timeout=60)
    Store.open(root).close()


def test_children_started_by_the_owner_do_not_inherit_the_lock(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        store.close()
        Store.open(tmp_path / "store").close()
        child.communicate(b"\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = tmp_path / "disk"
    mounted.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", str(mounted)]
    outcome = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if outcome.returncode:
        pytest.skip(f"cannot mount a small file system: {outcome.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def publish_until_full(store: Store) -> list[str]:
    stored: list[str] = []
    for n in range(1, 1000):
        kernel = passport(n)
        try:
            store.publish(kernel.key(), encoded(kernel, image=os.urandom(40_000)))
        except StoreFull:
            return stored
        stored.append(kernel.key())
    raise AssertionError("the disk never filled")


def fill_to_the_last_byte(path: Path) -> None:
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_a_disk_filled_to_the_last_byte_serves_and_recovers_without_a_restart(small_disk: Path) -> None:
    root = small_disk / "store"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 300_000)
    with contextlib.ExitStack() as closing:
        store = closing.enter_context(Store.open(root))
        index = KernelIndex(root)
        stored = publish_until_full(store)
        assert len(stored) > 5
        fill_to_the_last_byte(filler)
        assert os.statvfs(small_disk).f_bavail == 0

        for key in stored:
            kernel = store.load(key)
            assert kernel is not None
            index.record(summary(kernel))
        index.flush()
        assert index.trouble is not None
        assert len(index) == len(stored)
        late = passport(5000)
        for _ in range(3):
            with pytest.raises(StoreFull):
                store.publish(late.key(), encoded(late))
        assert list(store.layout.staging.iterdir()) == []

        with store.layout.artifact_path(stored[0]).open("r+b") as file:
            file.seek(500)
            file.write(b"\xff\x00\xff")
        assert store.load(stored[0]) is None, "a full disk must not keep damage in service"
        assert store.load(stored[1]) is not None

        store.close()
        store = closing.enter_context(Store.open(root))
        assert store.load(stored[1]) is not None, "a daemon must start and serve on a full disk"

        filler.unlink()
        store.publish(late.key(), encoded(late))
        assert store.load(late.key()) is not None
        index.flush()
        assert index.trouble is None


LIMITED = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from support.kernels import encoded, passport
from kaas.cache.store import Store
from kaas.proto.errors import StoreFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[2])
kernel, small = passport(1), passport(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    store.publish(kernel.key(), encoded(kernel, image=b"x" * 50_000))
except StoreFull as error:
    print(error.details["errno"])
store.publish(small.key(), encoded(small, image=b"x"))
"""


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    command = [sys.executable, "-c", LIMITED, str(SUPPORT.parent), str(root)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "27\n"
    layout = StoreLayout(root)
    assert list(layout.staging.iterdir()) == []
    with Store.open(root) as store:
        assert list(store.keys()) == [passport(2).key()]
        assert store.load(passport(2).key()) is not None
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_another_user_can_read_and_cannot_write(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_mode & 0o005 != 0o005:
            directory.chmod(0o755)
    root = tmp_path / "store"
    kernel = passport(1)
    with Store.open(root) as store:
        path = store.publish(kernel.key(), encoded(kernel))
        script = (
            "import json, os, sys\n"
            "from pathlib import Path\n"
            "from kaas.cache.artifact import open_artifact\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "path = Path(sys.argv[1])\n"
            "refused = []\n"
            "for attempt in (path.unlink, lambda: path.write_bytes(b''),\n"
            "                lambda: (path.parent / 'x').touch(),\n"
            "                lambda: list((path.parents[2] / 'staging').iterdir())):\n"
            "    try:\n        attempt()\n"
            "    except PermissionError:\n        refused.append(True)\n"
            "print(json.dumps([open_artifact(path).key, refused]))\n"
        )
        output = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        ).stdout
        assert json.loads(output) == [kernel.key(), [True] * 4]
        assert store.load(kernel.key()) is not None
