"""A real daemon whose device compiler is a fake toolkit and which knows the staged family; clients for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from support.daemon import DaemonProcess
from support.fake_toolkit import FakeToolkit, families_path, python_path

from kaas.client.daemon_link import DaemonLink
from kaas.proto.errors import KaasError

ELEMENTS = 512 * 56
"""A legal ``length`` of the staged family is a multiple of it: 512 per vector core of the test's part."""


class StagedNode:
    """``with StagedNode(tmp_path, workers="4") as node: ...``; a second one in the same folder continues."""

    def __init__(self, folder: Path, behaviour: str = "compile", **options: str) -> None:
        self.toolkit = (
            FakeToolkit.existing(folder / "cann")
            if (folder / "cann").exists()
            else FakeToolkit(folder / "cann", behaviour)
        )
        families = folder / "families"
        self.environ = {"PYTHONPATH": python_path(families if families.exists() else families_path(families))}
        self.daemon = DaemonProcess(
            folder / "node", environ=self.environ, toolkit_home=str(self.toolkit.home), **options
        )

    def __enter__(self) -> StagedNode:
        self.daemon.__enter__()
        try:
            self.daemon.wait_ready()
        except BaseException:
            self.daemon.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self.daemon.__exit__(*exception)

    def link(self) -> DaemonLink:
        """A client's connection of its own."""
        return DaemonLink(Path(self.daemon.socket))

    def ask(self, *numbers: int, priority: str = "user", timeout: float = 300) -> list[Any]:
        """Ask for the kernels of these numbers, all at once, each from a thread; replies or errors."""
        link = self.link()

        def one(number: int) -> Any:
            try:
                return link.get_kernel(staged_spec(number), priority=priority, timeout=timeout)
            except KaasError as error:
                return error

        with ThreadPoolExecutor(max(1, len(numbers))) as threads:
            return list(threads.map(one, numbers))

    def states(self) -> list[Any]:
        """What a listing says of every kernel."""
        return list(self.link().list_kernels(page_size=500).kernels)

    def key(self, number: int) -> str:
        """The key of a kernel here."""
        key: str = self.link().explain(staged_spec(number)).key
        return key

    def compiler_starts(self) -> Sequence[str]:
        """First digits of the keys that were compiled, in order."""
        return re.findall(r"compiler start.*?key=([0-9a-f]{12})", self.daemon.log_text())


def staged_spec(number: int, **fields: Any) -> bytes:
    """One of many different kernels of the staged family, in JSON."""
    return msgspec.json.encode({"family": "staged", "length": ELEMENTS * number, **fields})
