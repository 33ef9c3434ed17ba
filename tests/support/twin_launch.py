"""Ascend C text compiled once on the CPU twin and launched as often as a test likes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from support import twin_toolkit

from kaas.proto.errors import DeviceError

TwinFailure = DeviceError
"""A launch that the twin ended with an error; the text names block, core and instruction."""


def templates_dir() -> Path:
    """Include folder of the installed TileLang, found without importing it."""
    spec = importlib.util.find_spec("tilelang")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "src"


class Twin:
    """A compiler of text that may include TileLang's templates."""

    def __init__(self, home: Path) -> None:
        self._toolkit = twin_toolkit.Twin(home)

    def compile(self, source: str) -> TwinKernels:
        """Both stages of the device build."""
        return TwinKernels(self._toolkit, self._toolkit.compile(source, flags=[f"-I{templates_dir()}"]))


class TwinKernels:
    """The kernels of one image."""

    def __init__(self, toolkit: twin_toolkit.Twin, image: bytes) -> None:
        self._toolkit, self._image = toolkit, image

    def launch(self, entry: str, *arguments: Any, blocks: int = 1) -> None:
        """Runs the kernel to its end; raises TwinFailure."""
        self._toolkit.run(self._image, blocks, *arguments, entry=entry)
