"""Family: one kind of kernel, from its spec class to its builder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kaas.kernel_library.spec import KernelSpec
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """What a family's builder returns: the TileLang program and how to call it.

    ``parameters`` are in call order and carry the prim_func's own buffer and symbol names. ``choices`` are
    JSON-able decisions worth showing (tile sizes, stages). ``pass_configs`` are TileLang pass settings.
    """

    prim_func: Any
    parameters: tuple[Parameter, ...]
    choices: dict[str, Any] = field(default_factory=dict)
    pass_configs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A registered family.

    ``build(spec, target)`` imports TileLang inside and runs in a compile worker only. ``sources`` names the
    modules whose bytes decide what ``build`` generates: the family's own module is always included, so that
    an edit can never hit an old binary.
    """

    name: str
    summary: str
    spec_type: type[KernelSpec]
    build: Callable[[Any, Target], BuiltKernel]
    module: str
    sources: tuple[str, ...] = ()
