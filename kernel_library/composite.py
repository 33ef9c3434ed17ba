"""Composite specs: one question whose answer is several kernels, launched one after another."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kaas.kernel_library.spec import KernelSpec, Spec


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of a composite.

    ``arguments`` gives each of the kernel's parameters the name of the composite's argument that it takes;
    stages that name the same argument share it. ``constants`` are the values of the other parameters,
    which are scalars.
    """

    name: str
    spec: KernelSpec
    arguments: Mapping[str, str]
    constants: Mapping[str, int | float] = msgspec.field(default_factory=dict)


class CompositeSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of composite specs. Nothing is compiled for the composite itself: its stages are the kernels."""

    def stages(self) -> tuple[Stage, ...]:
        """The kernels in the order of their launches."""
        raise NotImplementedError


class Composite(msgspec.Struct, frozen=True, kw_only=True):
    """A registered composite; ``arguments`` says what each of its arguments is and how it lies in memory."""

    name: str
    summary: str
    spec_type: type[CompositeSpec]
    computes: str
    arguments: Mapping[str, str]
    examples: tuple[CompositeSpec, ...]
