"""Compile and launch Ascend C snippets on the CPU twin through the production command lines."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kaas.client.acl import AclRuntime
from kaas.proto.errors import DeviceError

DEVICE_FLAGS = (
    "-O2",
    "-fPIC",
    "-std=c++20",
    "-mllvm",
    "-cce-aicore-dcpreload-args=false",
    "--npu-arch=dav-3510",
)


class CompileError(Exception):
    """The twin's compiler or linker refused; the text is its standard error."""


@contextmanager
def schedule(name: str, seed: int = 0) -> Iterator[None]:
    """Launches inside run in that order of pipes."""
    before = {key: os.environ.get(key) for key in ("KAAS_TWIN_SCHEDULE", "KAAS_TWIN_SEED")}
    os.environ.update(KAAS_TWIN_SCHEDULE=name, KAAS_TWIN_SEED=str(seed))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def happens_before() -> AbstractContextManager[None]:
    """Launches inside check that flags order all accesses; their images were compiled in ``REPORTING``."""
    return schedule("happens-before")


REPORTING = {"KAAS_TWIN_REPORT_ACCESSES": "1"}
"""Compiler environment of an image for ``happens_before``; such an image runs in the other schedules too."""


def bf16(values: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16 of finite numbers."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def pack(arguments: Sequence[Any]) -> bytes:
    """At natural alignment: arrays and tensors as addresses, ints as int32, floats as fp32; whole 8 bytes."""
    packed = b""
    for argument in arguments:
        if isinstance(argument, int):
            field = struct.pack("<i", argument)
        elif isinstance(argument, float):
            field = struct.pack("<f", argument)
        else:
            address = argument.ctypes.data if isinstance(argument, np.ndarray) else argument.data_ptr()
            field = struct.pack("<Q", address)
        packed += b"\0" * (-len(packed) % len(field)) + field
    return packed + b"\0" * (-len(packed) % 8)


class Twin:
    """A twin home with its runtime."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runtime = AclRuntime(home / "lib64" / "libascendcl.so")

    def compile(
        self, source: str, *, flags: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> bytes:
        """The image of a source, by the two-stage device build; raises CompileError."""
        with tempfile.TemporaryDirectory(prefix="kaas-twin-test-") as folder:
            (Path(folder) / "tl_kernel.asc").write_text(source)
            self._tool(
                folder,
                environment,
                "bisheng",
                *DEVICE_FLAGS,
                *flags,
                "--cce-aicore-only",
                "tl_kernel.asc",
                "-o",
                "rel.o",
            )
            link = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")
            self._tool(folder, environment, "ld.lld", *link, "rel.o", "-o", "image")
            return (Path(folder) / "image").read_bytes()

    def _tool(self, folder: str, environment: dict[str, str] | None, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.home / "bin" / name), *arguments],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise CompileError(done.stderr)

    def run(self, image: bytes, blocks: int, *arguments: Any, entry: str = "kernel_under_test") -> None:
        """Launch once on a stream of its own and wait; raises DeviceError."""
        binary = self.runtime.load(image)
        stream = self.runtime.create_stream()
        try:
            packed = pack(arguments)
            self.runtime.launch(self.runtime.function(binary, entry), blocks, packed, len(packed), stream)
            self.runtime.synchronize(stream)
        finally:
            self.runtime.destroy_stream(stream)
            self.runtime.unload(binary)

    def failure(self, source: str, blocks: int, *arguments: Any) -> str:
        """Text of the error that a launch of this source ends with."""
        image = self.compile(source)
        try:
            self.run(image, blocks, *arguments)
        except DeviceError as error:
            return str(error)
        raise AssertionError("the launch succeeded")
