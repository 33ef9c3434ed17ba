"""Passport and key: alike wherever they are computed, different whenever anything that matters differs."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import passport

from kaas.proto.canonical import canonical_json
from kaas.proto.passport import FieldDifference, Passport, differences


def leaf_fields(
    struct: type[msgspec.Struct], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf field, also of structs inside, found by looking, so that new fields are covered."""
    for field in msgspec.structs.fields(struct):
        here = (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from leaf_fields(field.type, here)
        else:
            yield here, field.type


LEAVES = dict(leaf_fields(Passport))
SPEC_FIELDS = tuple(passport().spec)


def value_at(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        record = record[name]
    return record


def replaced(of: Passport, path: tuple[str, ...], value: Any) -> Passport:
    record = msgspec.to_builtins(of)
    value_at(record, path[:-1])[path[-1]] = value
    return msgspec.convert(record, Passport)


def other_values(kind: Any, current: Any) -> st.SearchStrategy[Any]:
    """Values that a field of that type may take, other than its current one."""
    if kind is int:
        values: st.SearchStrategy[Any] = st.integers(-(2**53), 2**53)
    elif kind is str:
        values = st.text(max_size=80)
    elif typing.get_origin(kind) is typing.Literal:
        values = st.sampled_from(typing.get_args(kind))
    elif typing.get_origin(kind) is tuple:
        values = st.lists(st.text(max_size=10), max_size=4).map(tuple)
    elif typing.get_origin(kind) is dict:
        values = st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 9) | st.none(), max_size=4)
    else:
        raise AssertionError(f"no strategy for {kind}: extend this test")
    return values.filter(lambda value: canonical_json(value) != canonical_json(current))


def test_the_leaves_found_are_all_there_are() -> None:
    record = msgspec.to_builtins(passport())
    for path in LEAVES:
        assert value_at(record, path) is not None
    assert {path[0] for path in LEAVES} == set(record)
    assert len(LEAVES) >= 25


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
@given(data=st.data())
def test_changing_any_one_field_changes_the_key_and_is_named(
    path: tuple[str, ...], data: st.DataObject
) -> None:
    ours = passport()
    current = value_at(msgspec.to_builtins(ours), path)
    theirs = replaced(ours, path, data.draw(other_values(LEAVES[path], current)))
    assert theirs.key() != ours.key()
    found = differences(ours, theirs)
    assert found
    if path == ("spec",):
        assert all(difference.path.startswith("spec") for difference in found)
    else:
        assert [difference.path for difference in found] == [".".join(path)]


@pytest.mark.parametrize("name", SPEC_FIELDS)
@given(value=st.integers() | st.text(max_size=5) | st.none() | st.booleans() | st.just({"block_m": 16}))
def test_changing_any_one_field_of_the_spec_is_named_exactly(name: str, value: Any) -> None:
    ours = passport()
    before = ours.spec[name]
    theirs = msgspec.structs.replace(ours, spec=ours.spec | {name: value})
    if canonical_json(value) == canonical_json(before):
        assert theirs.key() == ours.key()
        assert differences(ours, theirs) == []
    else:
        assert theirs.key() != ours.key()
        assert differences(ours, theirs) == [FieldDifference(path=f"spec.{name}", ours=before, theirs=value)]


@pytest.mark.parametrize("extra", [None, {}, [], 0, False, ""])
def test_a_field_that_one_side_lacks_is_named_even_when_it_is_empty(extra: Any) -> None:
    ours = passport()
    theirs = msgspec.structs.replace(ours, spec=ours.spec | {"later_field": extra})
    assert theirs.key() != ours.key()
    assert [difference.path for difference in differences(ours, theirs)] == ["spec.later_field"]


def test_nested_fields_are_named_to_the_leaf() -> None:
    tile = {"block_m": 16, "block_n": 32}
    ours = passport(spec={"family": "gemm", "tile": tile})
    theirs = passport(spec={"family": "gemm", "tile": tile | {"block_n": 64}})
    assert differences(ours, theirs) == [FieldDifference(path="spec.tile.block_n", ours=32, theirs=64)]


def test_differences_come_sorted_and_only_where_they_are() -> None:
    ours = passport()
    theirs = msgspec.structs.replace(
        ours,
        options=("-O3",),
        toolchain=msgspec.structs.replace(ours.toolchain, cann_version="9.2.0", bisheng_digest="9" * 64),
    )
    assert [(d.path, d.ours, d.theirs) for d in differences(ours, theirs)] == [
        ("options", ("-O2", "--cce-aicore-only"), ("-O3",)),
        ("toolchain.bisheng_digest", "a" * 64, "9" * 64),
        ("toolchain.cann_version", "9.1.0", "9.2.0"),
    ]


def test_the_order_of_the_spec_does_not_matter() -> None:
    ours = passport()
    theirs = msgspec.structs.replace(ours, spec=dict(reversed(ours.spec.items())))
    assert theirs.key() == ours.key()


def test_a_passport_survives_json_with_its_key() -> None:
    ours = passport(spec={"family": "rmsnorm", "eps": 1e-6, "hidden": 7168})
    theirs = msgspec.json.decode(canonical_json(ours), type=Passport)
    assert theirs == ours
    assert theirs.key() == ours.key()


def test_the_key_of_a_known_passport_never_changes() -> None:
    """A golden value: when it must change, SCHEMA_VERSION must grow with it."""
    assert passport().key() == "535576d54a3a2ae0e055d3b16f4c306fc1c38cc8c9629b1b5f43b24fe43eccf9"
