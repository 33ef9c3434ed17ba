"""Which CANN version a toolkit home holds, from its own version files.

Install-info files first, then ``compiler/version.info``, then ``version.cfg``; suffixes such as ``-beta.2``
or ``.RC1`` are kept. A version is cut out at separators, never put together from glued digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]*")


def version_files(home: Path, arch: str) -> tuple[Path, ...]:
    """The files that may name the version, best first. ``arch`` is ``x86_64`` or ``aarch64``."""
    return (
        home / f"{arch}-linux" / "ascend_toolkit_install.info",
        home / f"{arch}-linux" / "ascend_ops_install.info",
        home / "compiler" / "version.info",
        home / "version.cfg",
    )


def read_cann_version(home: Path, arch: str) -> str | None:
    """The version that the first usable file names, or ``None``."""
    for path in version_files(home, arch):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for candidate in _candidates(text):
            if _VERSION.fullmatch(candidate):
                return candidate
    return None


def _candidates(text: str) -> Iterator[str]:
    """``version=9.2.0``, ``Version=9.2.0``, or the public label in
    ``x_running_version=[7.7.0.1:8.2.RC1]``."""
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        name, value = name.strip(), value.strip().strip('"')
        if not separator:
            continue
        if name.casefold() == "version":
            yield value
        elif name.endswith("_running_version"):
            yield value.strip("[]").rpartition(":")[2].strip().removeprefix("CANN-")
