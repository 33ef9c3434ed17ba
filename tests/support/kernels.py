"""Made-up passports and artifacts: for everything that stores or compares kernels and needs no compiler."""

from __future__ import annotations

from typing import Any

import msgspec

from kaas.cache.artifact import Artifact, encode_artifact
from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument
from kaas.proto.passport import Generator, Passport
from kaas.proto.target import Target
from kaas.proto.toolchain import Toolchain

LAUNCH = LaunchMetadata(
    entry="main",
    block_count=28,
    dynamic_ub_bytes=1024,
    parameters=(Parameter(name="x", role="inout", dtype="bf16", shape=("m", 64)),),
    signature=(
        SignatureArgument(name="x", kind="pointer", dtype="bf16"),
        SignatureArgument(name="m", kind="symbol", dtype="int32"),
    ),
)


def passport(n: int = 64, **changes: Any) -> Passport:
    """A gemm passport; ``changes`` replace top-level fields."""
    plain = Passport(
        schema_version=1,
        spec={
            "family": "gemm",
            "m": "dynamic",
            "n": n,
            "k": 64,
            "dtype_a": "bf16",
            "dtype_d": "fp32",
            "alpha": False,
            "tile": None,
        },
        target=Target(
            soc_name="Ascend950PR_9579",
            npu_arch="dav-3510",
            cube_cores=28,
            vector_cores=56,
            l0a_bytes=1 << 16,
            l0b_bytes=1 << 16,
            l0c_bytes=1 << 18,
            l1_bytes=1 << 19,
            ub_bytes=248 << 10,
            l2_bytes=1 << 27,
        ),
        toolchain=Toolchain(
            kind="twin",
            cann_version="9.1.0",
            compiler_version="made-up compiler 1",
            bisheng_digest="a" * 64,
            linker_digest="b" * 64,
            headers_digest="c" * 64,
            host_arch="x86_64",
        ),
        generator=Generator(
            tilelang_version="0.1.15",
            tilelang_native_digest="d" * 64,
            templates_digest="e" * 64,
            lowering_digest="f" * 64,
            family_digest="0" * 64,
        ),
        options=("-O2", "--cce-aicore-only"),
    )
    return msgspec.structs.replace(plain, **changes)


def encoded(of: Passport, **changes: Any) -> bytes:
    """An artifact file for a passport, of a few kilobytes, with a compressed source."""
    contents: dict[str, Any] = {
        "launch": LAUNCH,
        "choices": {"block_m": 128, "stages": 3},
        "image": bytes(range(256)) * 9 + of.key().encode(),
        "source": "".join(f"  line {number};\n" for number in range(600)),
        "log": "warning: none\n",
        "created_unix": 1_790_000_000.25,
        "compile_seconds": 0.75,
    }
    return encode_artifact(passport=of, **(contents | changes))


def summary(artifact: Artifact) -> dict[str, Any]:
    """The index row of an artifact, as the daemon would make it."""
    return row(
        artifact.passport,
        size_bytes=artifact.size_bytes,
        created_unix=artifact.created_unix,
        compile_seconds=artifact.compile_seconds,
    )


def row(of: Passport, **facts: Any) -> dict[str, Any]:
    """An index row for a passport."""
    return {
        "key": of.key(),
        "family": of.spec["family"],
        "spec": of.spec,
        "soc_name": of.target.soc_name,
        "cann_version": of.toolchain.cann_version,
        "toolchain_kind": of.toolchain.kind,
        "dtype": of.spec["dtype_a"],
        "size_bytes": 1,
        "created_unix": 1.0,
        "compile_seconds": 1.0,
        **facts,
    }
