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


def gemm_passport(store: Path, n: int) -> Passport:
    environment = read_environment(store)
    assert environment is not None
    return environment.passport(GemmSpec(n=n, k=64).to_record())


def store_gemm(store: Path, n: int, *, image: bytes = b"an image", compile_seconds: float = 2.0) -> str:
    """Put one there, past the daemon, whole at once; its key."""
    passport = gemm_passport(store, n)
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
            created_unix=time.time(),
            compile_seconds=compile_seconds,
        )
    )
    staged.rename(path)
    return passport.key()
