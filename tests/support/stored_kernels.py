"""Made-up gemm kernels in a running daemon's store, as if it had compiled them; by n."""

from __future__ import annotations

import time
from pathlib import Path

from support.client_store import COPY_LAUNCH

from kaas import GemmSpec
from kaas.cache.artifact import encode_artifact
from kaas.cache.environment_file import read_environment
from kaas.cache.layout import StoreLayout
from kaas.proto.passport import Passport


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
