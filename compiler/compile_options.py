"""The options of the two-stage device build, spelt without any path of this node.

They are what TileLang 0.1.15 passes for an image that ``aclrtBinaryLoadFromData`` can load: bisheng makes a
relocatable device object, ``ld.lld`` turns it into an executable one. The same tuple is in the passport.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kaas.proto.target import Target

TEMPLATES_TOKEN = "<tilelang-templates>"
"""Stands for the folder that holds TileLang's device templates, wherever TileLang is installed."""

LINK_TOKEN = "<link>"
"""What follows is for the linker."""


def effective_options(target: Target, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Options for ``target``: bisheng's, :data:`LINK_TOKEN`, the linker's. ``extra`` goes to bisheng last."""
    return (
        "-O2",
        "-fPIC",
        "-std=c++20",
        "-mllvm",
        "-cce-aicore-dcpreload-args=false",
        f"--npu-arch={target.npu_arch}",
        f"-I{TEMPLATES_TOKEN}",
        *extra,
        "--cce-aicore-only",
        LINK_TOKEN,
        "-m",
        "aicorelinux",
        "-Ttext",
        "0",
        "--no-mmap-output-file",
    )


def split_options(options: Sequence[str], templates: Path) -> tuple[list[str], list[str]]:
    """(bisheng's, the linker's) options with the templates' folder filled in.

    Raises ``ValueError`` when the linker's part is missing.
    """
    at = list(options).index(LINK_TOKEN)
    compile_options = [option.replace(TEMPLATES_TOKEN, str(templates)) for option in options[:at]]
    return compile_options, list(options[at + 1 :])


def extra_options(options: Sequence[str]) -> tuple[str, ...]:
    """The ``extra`` of what :func:`effective_options` returned; empty for options of another make."""
    words = list(options)
    include = f"-I{TEMPLATES_TOKEN}"
    if include not in words or "--cce-aicore-only" not in words:
        return ()
    return tuple(words[words.index(include) + 1 : words.index("--cce-aicore-only")])
