"""Every built-in kernel compiles for every kind of part: 8, 28, 32 and 36 cube cores."""

from __future__ import annotations

from typing import Any

import pytest
from support.twin_kernels import SOC_NAMES, kernel, lowered

from kaas.kernel_library.registry import builtin_names, family_named
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import target_named

PARTS = (8, 28, 32, 36)
ONE_BLOCK = {"paged_mqa_metadata"}
"""Families that plan the work of the others: one vector core, whatever the part has."""


def cases() -> list[Any]:
    """A family's first example on every part, its others on one each; the first on one part is everyday."""
    found = []
    for number, name in enumerate(builtin_names()):
        page = family_named(name).page
        for index, spec in enumerate(page.examples if page else ()):
            for cores in PARTS:
                turn = PARTS[(number + index) % len(PARTS)]
                everyday = index == 0 and cores == turn
                if index and cores != turn:
                    continue
                marks = [pytest.mark.xdist_group(name), *([] if everyday else [pytest.mark.slow])]
                found.append(pytest.param(spec, cores, id=f"{name}-{index}-{cores}cores", marks=marks))
    return found


@pytest.mark.parametrize(("spec", "cores"), cases())
def test_every_kernel_compiles_for_every_part(spec: KernelSpec, cores: int) -> None:
    built, target = lowered(spec, cores), target_named(SOC_NAMES[cores])
    expected = {1} if spec.family in ONE_BLOCK else {target.cube_cores, target.vector_cores}
    assert built.launch.block_count in expected
    assert built.choices["why"]["reason"]
    kernel(spec, cores)
