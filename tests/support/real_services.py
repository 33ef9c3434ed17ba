"""Real services on loopback: an OCI registry, Redis, an S3 endpoint, and one that never answers."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

REGISTRY = shutil.which("docker-registry")
REDIS = shutil.which("redis-server")
needs_registry = pytest.mark.skipif(REGISTRY is None, reason="docker-registry is not installed")
needs_redis = pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
needs_s3 = pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="moto is not installed")
needs_opendal = pytest.mark.skipif(
    importlib.util.find_spec("opendal") is None, reason="opendal is not installed"
)

PASSWORD_OF_KAAS = "kaas:$2b$04$LC3AUq4sye8B4z3UxRuDdeN7eOxkHAuqVUuPgSp/UvYHJCRDoAmba\n"
START_LIMIT_S = 60.0


class Service(NamedTuple):
    """Where it listens, ``host:port``, and its process."""

    host: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_registry(folder: Path, *, with_password: bool = False) -> Iterator[str]:
    """An OCI registry; gives its host. With a password it is ``secret``, of the user ``kaas``."""
    host = _free_address()
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": host},
    }
    if with_password:
        (folder / "users").write_text(PASSWORD_OF_KAAS)
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "users")}}
    (folder / "config.yml").write_text(json.dumps(settings))
    with _running([str(REGISTRY), "serve", str(folder / "config.yml")], host, folder):
        yield host


@contextmanager
def running_redis(folder: Path) -> Iterator[Service]:
    """Redis, without persistence."""
    host = _free_address()
    options = {"bind": "127.0.0.1", "port": host.rpartition(":")[2], "dir": str(folder), "appendonly": "no"}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    with _running([str(REDIS), "--save", "", *flags], host, folder) as service:
        yield service


@contextmanager
def running_s3(folder: Path, bucket: str) -> Iterator[str]:
    """An S3 endpoint with one bucket; gives its host. Any access key will do."""
    import urllib.request

    host = _free_address()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", host.rpartition(":")[2]]
    with _running(command, host, folder):
        request = urllib.request.Request(f"http://{host}/{bucket}", method="PUT")
        request.add_header("Authorization", _ANY_KEY)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        yield host


_ANY_KEY = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)


@contextmanager
def black_hole() -> Iterator[str]:
    """A host that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def _running(command: Sequence[str], host: str, folder: Path) -> Iterator[Service]:
    said = folder / "service.log"
    with said.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        give_up = time.monotonic() + START_LIMIT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(host.rpartition(":")[2]))) == 0:
                    break
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < give_up, said.read_text()
            time.sleep(0.02)
        yield Service(host, process)
    finally:
        process.kill()  # also one that was stopped; none of them has anything to save
        process.wait(30)
