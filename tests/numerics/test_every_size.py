"""Every built-in kernel can be lowered with all its extents fixed, at the largest ones that its spec takes.

Whatever does not fit 32 bits on the way (sizes in bits, offsets, counts) shows here, without a launch.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.twin_kernels import SOC_NAMES, lowered

from kaas.kernel_library.registry import builtin_names, family_named, parse_spec
from kaas.kernel_library.spec import DYNAMIC, KernelSpec
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import InvalidSpec

CORES = 4
LARGEST = 2**31 - 1
EVERYDAY = ("mhc_pre_apply", "mhc_sinkhorn", "topk_gate", "unique_group_indices", "rmsnorm")
"""One for each way of moving rows; the others are slow tests."""
LAYERS = {"tokens": 16384, "hidden": 7168}


def fixed_at_most(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with every dynamic extent at the largest legal value, which a refusal names."""
    tried = {name: LARGEST if value == DYNAMIC else value for name, value in fields.items()}
    for _ in tried:
        try:
            parse_spec(tried)
        except InvalidSpec as refusal:
            largest = re.match(r"an integer from 1 to (\d+)", str(refusal.details["legal"]))
            if largest is None or fields[refusal.details["field"]] != DYNAMIC:
                raise
            tried[refusal.details["field"]] = int(largest[1])
    return tried


def cases() -> list[Any]:
    """Every example of every page that has something dynamic."""
    found = []
    for name in builtin_names():
        page = family_named(name).page
        for index, spec in enumerate(page.examples if page else ()):
            fields = spec.to_record()
            if DYNAMIC in fields.values():
                marks = [] if index == 0 and name in EVERYDAY else [pytest.mark.slow]
                found.append(pytest.param(fields, id=f"{name}-{index}", marks=marks))
    return found


def layers() -> list[Any]:
    """The first example of every page about tokens, at the size of a layer of a large model."""
    found = []
    for name in builtin_names():
        page = family_named(name).page
        fields = page.examples[0].to_record() if page else {}
        if fields.get("tokens") == DYNAMIC and not name.startswith("ep_"):  # which take fewer tokens at once
            sizes = {field: value for field, value in LAYERS.items() if field in fields}
            marks = [] if name in EVERYDAY else [pytest.mark.slow]
            found.append(pytest.param(fields | sizes, id=name, marks=marks))
    return found


def lower_checked(fields: dict[str, Any]) -> None:
    spec = parse_spec(fields)
    assert isinstance(spec, KernelSpec)
    spec.check_target(target_named(SOC_NAMES[CORES]))
    assert lowered(spec, CORES).source


@pytest.mark.parametrize("fields", cases())
def test_a_kernel_is_lowered_at_its_largest_fixed_extents(fields: dict[str, Any]) -> None:
    lower_checked(fixed_at_most(fields))


@pytest.mark.parametrize("fields", layers())
def test_a_kernel_is_lowered_for_a_layer_with_fixed_tokens(fields: dict[str, Any]) -> None:
    lower_checked(fields)
