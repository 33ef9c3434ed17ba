"""Made-up gemm kernels in a running daemon's store, as if it had compiled them; by n."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from support.client_store import COPY_LAUNCH

from kaas import GemmSpec
from kaas.cache.artifact import encode_artifact
from kaas.cache.environment_file import read_environment
from kaas.cache.index import KernelIndex
from kaas.cache.layout import StoreLayout
from kaas.proto.passport import Passport
from kaas.server.catalog import summarize_passport


def gemm_passport(store: Path, n: int, k: int = 64) -> Passport:
    environment = read_environment(store)
    assert environment is not None
    return environment.passport(GemmSpec(n=n, k=k).to_record())


def store_gemm(
    store: Path, n: int, k: int = 64, *, image: bytes = b"an image", created_unix: float = 0.0
) -> str:
    """Put one there, past the daemon, whole at once; its key."""
    passport = gemm_passport(store, n, k)
    path = StoreLayout(store).artifact_path(passport.key())
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".staged")
    staged.write_bytes(
        encode_artifact(
            passport=passport,
            launch=COPY_LAUNCH,
            choices={},
            image=image,
            source="// source",
            log="",
            created_unix=created_unix or time.time(),
            compile_seconds=2.0,
        )
    )
    staged.rename(path)
    return passport.key()


def store_many(
    store: Path, sizes: Sequence[tuple[int, int]], *, created_unix: float, index: bool
) -> list[str]:
    """One for each (n, k), as a daemon that was stopped left them, with its ``index`` or without; their keys.

    No daemon may run. What all have in common is made once.
    """
    first = gemm_passport(store, *sizes[0])
    directory = str(StoreLayout(store).artifacts)
    for number in range(256):
        os.makedirs(f"{directory}/{number:02x}", exist_ok=True)  # noqa: PTH103
    rows = KernelIndex(store) if index else None
    keys = []
    for n, k in sizes:
        passport = msgspec.structs.replace(first, spec={**first.spec, "n": n, "k": k})
        facts = summarize_passport(passport)
        key = facts["key"]
        content = encode_artifact(
            passport=passport,
            launch=COPY_LAUNCH,
            choices={},
            image=b"an image",
            source="// source",
            log="",
            created_unix=created_unix,
            compile_seconds=2.0,
        )
        with open(f"{directory}/{key[:2]}/{key}.kernel", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(content)
        if rows is not None:
            times = {"created_unix": created_unix, "last_used_unix": created_unix, "compile_seconds": 2.0}
            rows.record({**facts, **times, "size_bytes": len(content)})
        keys.append(key)
    assert keys[-1] == gemm_passport(store, *sizes[-1]).key()
    if rows is not None:
        rows.close()
    return keys
