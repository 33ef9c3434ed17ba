"""The library's example specs: what its pages show, one list for all benchmarks that need many kernels."""

from __future__ import annotations

import random

from kaas.kernel_library.registry import families
from kaas.kernel_library.spec import KernelSpec


def examples() -> list[tuple[str, KernelSpec]]:
    """(family, spec) of every example on the kernel pages, in the families' order, no spec twice."""
    found: dict[KernelSpec, str] = {}
    for name, family in sorted(families().items()):
        for spec in family.page.examples:
            found.setdefault(spec, name)
    return [(name, spec) for spec, name in found.items()]


def mixed(count: int, seed: int) -> list[KernelSpec]:
    """``count`` different specs: the examples in drawn order, then GEMMs and norms of many shapes."""
    from kaas import GemmSpec, RmsNormSpec

    specs = [spec for _, spec in examples()]
    random.Random(seed).shuffle(specs)
    number = 0
    while len(specs) < count:
        number += 1
        specs.append(
            GemmSpec(n=256 + 32 * number, k=512, m=512)
            if number % 2
            else RmsNormSpec(hidden=512 + 64 * number)
        )
    return specs[:count]
