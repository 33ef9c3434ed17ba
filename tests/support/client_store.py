"""A store as a daemon would have left it, with made-up kernels: for the client's read side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from kaas.cache.artifact import encode_artifact
from kaas.cache.environment_file import publish_environment
from kaas.cache.layout import StoreLayout
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import target_named
from kaas.proto.environment import Environment, Locality
from kaas.proto.launch import LaunchMetadata, Parameter, SignatureArgument
from kaas.proto.toolchain import Toolchain

COPY_LAUNCH = LaunchMetadata(
    entry="copy",
    block_count=7,
    dynamic_ub_bytes=512,
    parameters=(
        Parameter(name="x", role="in", dtype="fp32", shape=("n",)),
        Parameter(name="y", role="out", dtype="fp32", shape=("n",)),
    ),
    signature=(
        SignatureArgument(name="x", kind="pointer", dtype="fp32"),
        SignatureArgument(name="y", kind="pointer", dtype="fp32"),
        SignatureArgument(name="n", kind="symbol", dtype="int32"),
    ),
)


def environment(**changes: Any) -> Environment:
    """A node of 28 cube cores with the twin's toolchain."""
    return msgspec.structs.replace(
        Environment(
            schema_version=1,
            generation=1,
            kaas_version="0.1.0",
            target=target_named("Ascend950PR_9579"),
            target_source="configured",
            toolchain=Toolchain(
                kind="twin",
                cann_version="9.2.0",
                compiler_version="test compiler",
                bisheng_digest="1" * 64,
                linker_digest="2" * 64,
                headers_digest="3" * 64,
                host_arch=os.uname().machine,
            ),
            tilelang_version="0.1.15",
            tilelang_native_digest="4" * 64,
            templates_digest="5" * 64,
            lowering_digest="6" * 64,
            family_digests={"gemm": "7" * 64, "rmsnorm": "8" * 64},
            options=("-O2",),
            locality=Locality(
                acl_library="/nowhere/libascendcl.so", toolkit_home="/nowhere", socket="/nowhere"
            ),
        ),
        **changes,
    )


class PublishedStore:
    """A store directory with an environment and whatever :meth:`add` put there."""

    def __init__(self, root: Path, environment_: Environment | None = None) -> None:
        self.root = root
        self.layout = StoreLayout(root)
        self.environment = environment_ or environment()
        root.mkdir(parents=True, exist_ok=True)
        publish_environment(root, self.environment)

    def add(
        self, spec: KernelSpec, soc_name: str | None = None, launch: LaunchMetadata = COPY_LAUNCH
    ) -> Path:
        """A kernel for ``spec``; its image is ``image of <key>``."""
        target = target_named(soc_name) if soc_name else None
        passport = self.environment.passport(spec.to_record(), target)
        path = self.layout.artifact_path(passport.key())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            encode_artifact(
                passport=passport,
                launch=launch,
                choices={"tile": 1},
                image=f"image of {passport.key()}".encode(),
                source="// source",
                log="fine",
                created_unix=1.0,
                compile_seconds=2.0,
            )
        )
        return path


class RecordingRuntime:
    """Stands where the ACL runtime stands, and remembers what it was asked for."""

    def __init__(
        self, soc_name: str = "Ascend950PR_9579", cube_cores: int = 28, is_twin: bool = True
    ) -> None:
        self.is_twin = is_twin
        self.soc_name = soc_name
        self.device_info = _Info(cube_cores, 2 * cube_cores)
        self.loaded: list[bytes] = []
        self.launches: list[tuple[Any, ...]] = []
        self.synchronized: list[Any] = []

    def configure_twin(self, soc: str, cube_cores: int, vector_cores: int) -> None:
        self.soc_name, self.device_info = soc, _Info(cube_cores, vector_cores)

    def load(self, image: Any) -> int:
        self.loaded.append(bytes(image))
        return len(self.loaded)

    def function(self, binary: int, entry: str) -> int:
        return 1000 + binary

    def launch(
        self, function: int, blocks: int, block: Any, size: int, stream: Any = None, dynamic_ub_bytes: int = 0
    ) -> None:
        self.launches.append((function, blocks, block.raw[:size], stream, dynamic_ub_bytes))

    def synchronize(self, stream: Any = None) -> None:
        self.synchronized.append(stream)


class _Info(msgspec.Struct, frozen=True):
    cube_cores: int | None
    vector_cores: int | None
    npu_arch: int | None = None
