"""Stores filled with made-up kernels: valid, verified and marked like those that the daemon stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kaas import GemmSpec
from kaas.cache.artifact import encode_artifact, mark_verified
from kaas.cache.environment_file import read_environment
from kaas.cache.layout import StoreLayout
from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument

LAUNCH = LaunchMetadata(
    entry="made_up",
    block_count=28,
    dynamic_ub_bytes=0,
    parameters=tuple(
        Parameter(name=name, role="out" if name == "d" else "in", dtype="bf16", shape=("m", 1024))
        for name in ("a", "b", "d")
    ),
    signature=tuple(SignatureArgument(name=name, kind="pointer", dtype="bf16") for name in ("a", "b", "d")),
)


def spec_number(number: int) -> GemmSpec:
    """The spec of a made-up kernel: no two alike."""
    return GemmSpec(n=16 * (number % 1000 + 1), k=16 * (number // 1000 + 1), m=16)


def fill(store: Path, count: int, file_bytes: int, first: int = 0) -> Iterator[Path]:
    """Write ``count`` kernels whose files have about ``file_bytes`` (the image is padded); yields each path.

    The daemon must have published its environment there; it takes them into its index when it starts.
    """
    write = _writer(store, file_bytes)
    for number in range(first, first + count):
        yield write(number, False)


def fill_up(store: Path, count: int, file_bytes: int) -> None:
    """Write those of the first ``count`` kernels that are not there (any more)."""
    write = _writer(store, file_bytes)
    for number in range(count):
        write(number, True)


def _writer(store: Path, file_bytes: int) -> Callable[[int, bool], Path]:
    environment = read_environment(store)
    if environment is None:
        raise RuntimeError(f"{store} holds no environment")
    layout = StoreLayout(store)
    pattern = bytes(range(256)) * (file_bytes // 256 + 1)

    def write(number: int, only_if_absent: bool) -> Path:
        passport = environment.passport(spec_number(number).to_record())
        path = layout.artifact_path(passport.key())
        if only_if_absent and path.exists():
            return path
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        created = time.time() - 86_400
        content = encode_artifact(
            passport=passport,
            launch=LAUNCH,
            choices={"tile_m": 128, "tile_n": 256, "stages": 2},
            image=number.to_bytes(8) + pattern[: max(8, file_bytes - 8192)],
            source="// made up for a measurement\n" * 40,
            log="",
            created_unix=created,
            compile_seconds=1.0 + number % 7,
        )
        path.write_bytes(content)
        path.chmod(0o444)
        mark_verified(path, created)
        return path

    return write
