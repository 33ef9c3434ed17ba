"""Compile Ascend C text with the CPU twin's drivers and launch its kernels on arrays or tensors."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def templates_dir() -> Path:
    """Include folder of the installed TileLang, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("tilelang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "src"


class TwinFailure(AssertionError):
    """A launch that the twin ended with an error; the text names block, core and instruction."""


class Twin:
    """One twin home: its compiler, linker and ACL library."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self._home = home
        self._scratch = scratch
        self._acl = ctypes.CDLL(str(home / "lib64" / "libascendcl.so"))
        self._acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self._acl.aclInit(None)
        self._acl.aclrtSetDevice(0)

    def compile(self, source: str, name: str) -> TwinKernels:
        """Both stages of the device build, then the load of the image."""
        text = self._scratch / f"{name}.asc"
        device_object, image = text.with_suffix(".o"), text.with_suffix(".image")
        text.write_text(source, encoding="utf-8")
        self._run(
            [
                self._home / "bin" / "bisheng",
                "--npu-arch=dav-3510",
                "--cce-aicore-only",
                "-O2",
                "-c",
                f"-I{templates_dir()}",
                text,
                "-o",
                device_object,
            ]
        )
        self._run(
            [
                self._home / "bin" / "ld.lld",
                "-m",
                "aicorelinux",
                "-Ttext=0",
                device_object,
                "-static",
                "-o",
                image,
            ]
        )
        content = image.read_bytes()
        handle = ctypes.c_void_p()
        self.check(self._acl.aclrtBinaryLoadFromData(content, len(content), None, ctypes.byref(handle)))
        return TwinKernels(self, self._acl, handle)

    def check(self, status: int) -> None:
        """Raises TwinFailure with the twin's own words."""
        if status != 0:
            raise TwinFailure((self._acl.aclGetRecentErrMsg() or b"").decode())

    @staticmethod
    def _run(command: Sequence[Any]) -> None:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class TwinKernels:
    """The kernels of one image."""

    def __init__(self, twin: Twin, acl: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._twin, self._acl, self._handle = twin, acl, handle

    def launch(self, entry: str, *arguments: Any, blocks: int = 1) -> None:
        """Runs the kernel to its end. Arrays and tensors go as addresses, ints as int32, floats as f32."""
        function = ctypes.c_void_p()
        self._twin.check(
            self._acl.aclrtBinaryGetFunction(self._handle, entry.encode(), ctypes.byref(function))
        )
        packed = pack(arguments)
        stream = ctypes.c_void_p()  # of its own: a failed launch leaves its stream unusable
        self._twin.check(self._acl.aclrtCreateStream(ctypes.byref(stream)))
        try:
            self._twin.check(
                self._acl.aclrtLaunchKernelWithHostArgs(
                    function,
                    blocks,
                    stream,
                    None,
                    packed,
                    ctypes.c_size_t(len(packed)),
                    None,
                    ctypes.c_size_t(0),
                )
            )
            self._twin.check(self._acl.aclrtSynchronizeStream(stream))
        finally:
            self._acl.aclrtDestroyStream(stream)


def pack(arguments: Sequence[Any]) -> bytes:
    """Arguments at natural alignment, the whole a multiple of 8 bytes."""
    packed = b""
    for argument in arguments:
        if isinstance(argument, int):
            field = np.int32(argument).tobytes()
        elif isinstance(argument, float):
            field = np.float32(argument).tobytes()
        else:
            address = argument.ctypes.data if isinstance(argument, np.ndarray) else argument.data_ptr()
            field = np.uint64(address).tobytes()
        packed += b"\0" * (-len(packed) % len(field)) + field
    return packed + b"\0" * (-len(packed) % 8)


@contextmanager
def schedule(name: str, seed: int = 0) -> Iterator[None]:
    """The twin's schedule for launches inside the block."""
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
