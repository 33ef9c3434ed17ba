"""A rollout from end to end: two builders, S3, Redis, a registry, three nodes, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonProcess
from support.real_services import (
    Service,
    black_hole,
    needs_opendal,
    needs_redis,
    needs_registry,
    needs_s3,
    running_redis,
    running_registry,
    running_s3,
)

pytestmark = [pytest.mark.slow, needs_opendal, needs_redis, needs_registry, needs_s3]

KERNELS: list[dict[str, Any]] = [
    *({"family": "gemm", "n": 64 * n, "k": 128} for n in range(1, 7)),
    {"family": "gemm", "n": 128, "k": 64, "dtype_a": "fp16", "dtype_b": "fp16", "dtype_d": "fp16"},
    {"family": "rmsnorm", "hidden": 1024},
    {"family": "rmsnorm", "hidden": 2048, "residual": True},
    {"family": "gemm", "n": 128, "k": 128, "layout": "nn"},
]
BUCKET = "kernels"
RANK = """
import sys
from pathlib import Path
import numpy as np
from kaas import get_kernel
from kaas.client.manifest import read_manifest
handles = [get_kernel(entry.spec, strict=True) for entry in read_manifest(Path(sys.argv[1]))]
assert {handle.origin for handle in handles} == {"store"}, [handle.origin for handle in handles]
rng = np.random.default_rng(7)
a, b = rng.standard_normal((33, 64), "f4").astype("f2"), rng.standard_normal((128, 64), "f4").astype("f2")
c = np.zeros((33, 128), "f2")
gemm = next(handle for handle in handles if handle.passport.spec.get("dtype_d") == "fp16")
gemm(a, b, c)
wanted = a.astype("f4") @ b.astype("f4").T
print(f"{len(handles)} kernels from the store, error {np.abs(c - wanted).max() / np.abs(wanted).max():.1e}")
"""


class Site:
    """The parts of a cluster on one machine, and a transcript of what is done with them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.transcript: list[str] = []
        self._stack = stack
        self._names: dict[str, str] = {}
        for name in ("redis", "s3", "registry"):
            (root / name).mkdir()
        self.redis: Service = stack.enter_context(running_redis(root / "redis"))
        self.s3: str = stack.enter_context(running_s3(root / "s3", BUCKET))
        self.registry: str = stack.enter_context(running_registry(root / "registry"))
        self.hole: str = stack.enter_context(black_hole())
        self.manifest = root / "release.yaml"
        self.manifest.write_text(json.dumps({"version": 2, "kernels": KERNELS}))
        self.daemons: dict[str, DaemonProcess] = {}

    def tier(self, name: str, **settings: Any) -> dict[str, Any]:
        if name == "s3":
            options = {
                "endpoint": f"http://{self.s3}",
                "region": "us-east-1",
                "access_key_id": "test",
                "secret_access_key": "env:SITE_SECRET",
            }
            place: dict[str, Any] = {"uri": f"s3://{BUCKET}/kaas", "options": options}
        else:
            host = self.redis.host if name == "redis" else self.hole
            place = {"uri": "redis://" + host, "options": {"endpoint": f"redis://{host}", "root": "/kaas"}}
        return {"name": name, **place, **settings}

    def start(self, name: str, address: str, *tiers: dict[str, Any]) -> DaemonProcess:
        daemon = DaemonProcess(
            self.root / name,
            environ={"KAAS_REMOTE_TIERS": json.dumps(tiers), "SITE_SECRET": "a secret of this site"},
            rest_address=f"{address}:0",
        )
        self.daemons[name] = self._stack.enter_context(daemon)
        self.say(
            f"# {name} starts on {address}, remote tiers: {', '.join(t['name'] for t in tiers) or 'none'}"
        )
        return daemon

    def say(self, text: str) -> None:
        self.transcript.append(text)

    def kaas(self, name: str, *arguments: str, status: int = 0) -> str:
        """Run a command on that node; what it printed."""
        return self.finish(name, self.begin(name, *arguments), *arguments, status=status)

    def begin(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        daemon = self.daemons[name]
        return subprocess.Popen(
            [sys.executable, "-m", "kaas.client.cli", *arguments],
            env={**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, name: str, process: subprocess.Popen[str], *arguments: str, status: int = 0) -> str:
        said, _ = process.communicate(timeout=300)
        shown = " ".join(["kaas", *arguments]).replace(f"{self.root}/", "")
        lines = said.rstrip().splitlines()
        self.say(f"{name}$ {shown}\n" + "\n".join([*(["..."] if len(lines) > 12 else []), *lines[-12:]]))
        assert process.returncode == status, said
        return said

    def compiles(self) -> Counter[str]:
        """Compiler starts of all nodes, by key."""
        found: Counter[str] = Counter()
        for daemon in self.daemons.values():
            found.update(re.findall(r"compiler start\b.*?key=(\w+)", daemon.log_text()))
        return found

    def rank(self, name: str) -> str:
        daemon = self.daemons[name]
        environ = {**os.environ, "KAAS_SOCKET": daemon.socket, "KAAS_STORE": str(daemon.store)}
        done = subprocess.run(
            [sys.executable, "-c", RANK, str(self.manifest)],
            env={**environ, "KAAS_STRICT": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.say(f"{name}$ KAAS_STRICT=1 python rank.py release.yaml\n{done.stdout.rstrip()}")
        return done.stdout


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, stack)
        yield made
        text = (
            "\n\n".join(made.transcript).replace(f"{tmp_path}/", "").replace(made.registry, "registry:5000")
        )
        for name, daemon in made.daemons.items():
            text = text.replace(daemon.rest_url.removeprefix("http://"), f"{name}:7990")
        print(text)
        if folder := os.environ.get("KAAS_ROLLOUT_TRANSCRIPTS"):
            (Path(folder) / f"{request.node.name}.txt").write_text(text + "\n")


def test_a_rollout_compiles_each_kernel_once_and_every_rank_starts_warm(site: Site) -> None:
    s3 = site.tier("s3")
    redis = site.tier("redis", on_error="ignore", deadline_s=0.5, write_deadline_s=0.5, open_s=600)
    hole = site.tier("hole", on_error="ignore", deadline_s=0.3, write_deadline_s=0.3, open_s=600)

    # Two shards of an indexed job; one of their tiers never answers.
    for number in (0, 1):
        site.start(f"builder-{number}", f"127.0.0.{5 + number}", redis, s3, hole)
    shards = [(f"builder-{n}", ("prewarm", str(site.manifest), "--shard", f"{n}/2")) for n in (0, 1)]
    running = [(name, site.begin(name, *arguments), arguments) for name, arguments in shards]
    for name, process, arguments in running:
        site.finish(name, process, *arguments)
    compiles = site.compiles()
    assert len(compiles) == len(KERNELS)
    assert set(compiles.values()) == {1}

    # Node 1 reads from Redis. Then Redis stops answering, and node 2 goes on to S3. Node 3 was down so far.
    site.start("node-1", "127.0.0.2", redis, s3)
    assert f"{len(KERNELS)} fetched" in site.kaas("node-1", "prewarm", str(site.manifest))
    site.redis.process.send_signal(signal.SIGSTOP)
    site.say("# Redis stops answering")
    site.start("node-2", "127.0.0.3", redis, s3)
    assert f"{len(KERNELS)} fetched" in site.kaas("node-2", "prewarm", str(site.manifest))

    # Node 3 has no remote tier, only the registry.
    bundle = site.root / "release.tar"
    site.kaas("node-1", "bundle", "create", str(bundle), "--manifest", str(site.manifest))
    place = f"{site.registry}/kaas/release:7"
    site.kaas("node-1", "bundle", "push", str(bundle), place)
    site.start("node-3", "127.0.0.4")
    nodes = ",".join(site.daemons[f"node-{n}"].rest_url.removeprefix("http://") for n in (1, 2, 3))
    waiting = ("wait", "--manifest", str(site.manifest), "--coverage", "1.0", "--nodes", nodes, "--timeout")
    site.kaas("node-3", *waiting, "0", status=5)
    pulled = site.root / "pulled.tar"
    site.kaas("node-3", "bundle", "pull", place, str(pulled))
    site.kaas("node-3", "bundle", "import", str(pulled))
    site.kaas("node-1", *waiting, "60")

    for n in (1, 2, 3):
        assert site.rank(f"node-{n}").startswith(f"{len(KERNELS)} kernels from the store")
    assert site.compiles() == compiles, "nobody compiled after the builders"
    stored = [
        {path.stem for path in daemon.store.glob("artifacts/*/*.kernel")}
        for name, daemon in site.daemons.items()
        if name.startswith("node")
    ]
    assert {len(keys) for keys in stored} == {len(KERNELS)}
    for daemon in site.daemons.values():
        assert "a secret of this site" not in daemon.log_text()


def test_a_builder_that_is_killed_and_begins_anew_compiles_only_what_is_missing(site: Site) -> None:
    tiers = (site.tier("s3"),)
    first = site.start("builder", "127.0.0.5", *tiers)
    process = site.begin("builder", "prewarm", str(site.manifest), "--json")
    assert process.stdout is not None
    done = [json.loads(process.stdout.readline()) for _ in range(3)]
    first.kill()
    process.wait(60)
    process.stdout.close()
    kept = {line["key"] for line in done if line.get("key")}
    assert kept

    # Another pod, with an empty store: what reached the tier is fetched.
    site.start("successor", "127.0.0.6", *tiers)
    said = site.kaas("successor", "prewarm", str(site.manifest), "--json")
    outcomes = {line["key"]: line["outcome"] for line in map(json.loads, said.splitlines()) if "key" in line}
    assert {outcomes[key] for key in kept} == {"fetched"}
    assert len(outcomes) == len(KERNELS)
    again = [key for key, count in site.compiles().items() if count > 1]
    assert not kept & set(again), "what was done when the builder died is not compiled again"
