"""Family: one kind of kernel, from its spec class to its builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kaas.kernel_library.spec import KernelSpec
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class BuiltKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What a family's builder returns: the TileLang program, whose arguments carry the parameters' names.

    ``choices`` are JSON-able decisions worth showing: what was chosen as plain names and numbers, and under
    ``why`` a report of :mod:`kaas.kernel_library.choice`. ``pass_configs`` are TileLang pass settings.
    """

    prim_func: Any
    choices: dict[str, Any] = msgspec.field(default_factory=dict)
    pass_configs: dict[str, Any] = msgspec.field(default_factory=dict)


class KernelPage(msgspec.Struct, frozen=True, kw_only=True):
    """What people read about a family: the text of its page in docs/kernels.

    ``computes`` is the maths, in Markdown. ``arguments`` says for each parameter what it is and how it lies
    in memory. ``tolerance`` is what the numeric tests hold the kernel to, against the reference of the same
    name in ``kaas.kernel_library.references``. ``facts`` names public sources of layouts and rules.
    ``serves`` are the upstream functions that a spec of this family stands for. ``examples[0]`` is typical.
    """

    computes: str
    arguments: Mapping[str, str]
    tolerance: str
    facts: tuple[str, ...]
    serves: tuple[str, ...]
    examples: tuple[KernelSpec, ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A registered family.

    ``parameters(spec)`` is what a call takes, in call order. ``build(spec, target)`` imports TileLang inside
    and runs in a compile worker only. ``sources`` names the modules whose bytes decide what ``build``
    generates: the family's own module is always included, so that an edit can never hit an old binary.
    """

    name: str
    summary: str
    spec_type: type[KernelSpec]
    parameters: Callable[[Any], tuple[Parameter, ...]]
    build: Callable[[Any, Target], BuiltKernel]
    module: str
    sources: tuple[str, ...] = ()
    page: KernelPage | None = None
