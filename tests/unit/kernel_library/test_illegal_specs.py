"""Illegal specs of every family: refused while they are read, with the field and what is legal there."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
from support import illegal_specs

from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.kernel_library.registry import families, parse_spec
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import DoesNotFit, InvalidSpec

TABLES = {
    module.name: importlib.import_module(f"{illegal_specs.__name__}.{module.name}")
    for module in pkgutil.iter_modules(illegal_specs.__path__)
}
CASES = [
    pytest.param(record, field, id=f"{name}-{index}-{field}")
    for name, table in TABLES.items()
    for index, (record, field) in enumerate(table.CASES)
]
TOO_LARGE = [
    pytest.param(record, field, buffer, id=f"{name}-{index}-{buffer}")
    for name, table in TABLES.items()
    for index, (record, field, buffer) in enumerate(table.DOES_NOT_FIT)
]


@pytest.mark.parametrize(("record", "field"), CASES)
def test_an_illegal_spec_is_refused_with_its_field_and_what_is_legal(
    record: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        parse_spec(record)
    assert refusal.value.details["field"] == field
    assert refusal.value.details["legal"]
    assert field.rpartition(".")[2] in refusal.value.message


@pytest.mark.parametrize(("record", "field", "buffer"), TOO_LARGE)
def test_a_spec_that_cannot_fit_says_which_buffer_lacks_how_much(
    record: dict[str, Any], field: str, buffer: str
) -> None:
    spec = parse_spec(record)
    with pytest.raises(DoesNotFit) as refusal:
        spec.check_target(target_named("Ascend950DT_9581"))
    assert (refusal.value.details["field"], refusal.value.details["buffer"]) == (field, buffer)
    assert refusal.value.details["excess_bytes"] > 0


ONE_NUMBER = [case for case in TOO_LARGE if type(case.values[0].get(case.values[1])) is int]


@pytest.mark.parametrize(("record", "field", "buffer"), ONE_NUMBER)
def test_a_number_that_cannot_fit_is_refused_with_the_largest_that_does(
    record: dict[str, Any], field: str, buffer: str
) -> None:
    target = target_named("Ascend950DT_9581")
    with pytest.raises(DoesNotFit, match=r"\d+ bytes") as refusal:
        parse_spec(record).check_target(target)
    legal = str(refusal.value.details["legal"])
    assert legal in refusal.value.message
    fitting = int(legal.removeprefix("at most ").removesuffix(" with these options"))
    assert fitting < record[field]
    parse_spec(record | {field: fitting}).check_target(target)


@pytest.mark.parametrize("eps", [2.0**-126, 0.0])
def test_an_eps_that_fp32_holds_is_legal(eps: float) -> None:
    assert RmsNormSpec(hidden=64, eps=eps).eps == eps


def test_the_least_eps_of_sinkhorn_steps_is_legal() -> None:
    assert MhcSinkhornSpec(eps=2.0**-100).eps == 2.0**-100


def test_every_family_has_its_table() -> None:
    assert TABLES.keys() == families().keys()
