"""What a worker has imported against what a job expects: equal, or refused by the names of the fields."""

from __future__ import annotations

import dataclasses
import sys

import msgspec
import pytest

from kaas.compiler.generator import GeneratorIdentity, templates_digest
from kaas.compiler.loaded_generator import LoadedGenerator, differing_fields
from kaas.kernel_library.registry import families, family_digest
from kaas.proto.errors import CompileFailed
from kaas.proto.passport import Generator

EXPECTED = Generator(
    tilelang_version="0.1.15",
    tilelang_native_digest="1" * 64,
    templates_digest="2" * 64,
    lowering_digest="3" * 64,
    family_digest="4" * 64,
)
LOADED = LoadedGenerator(
    identity=GeneratorIdentity(
        tilelang_version="0.1.15",
        native_digest="1" * 64,
        templates_digest="2" * 64,
        lowering_digest="3" * 64,
    ),
    family_digests={"gemm": "4" * 64, "rmsnorm": "5" * 64},
)


@pytest.fixture
def loaded() -> LoadedGenerator:
    """As in a zygote: all families are imported before the modules are noted."""
    families()
    return dataclasses.replace(LOADED, modules=frozenset(sys.modules))


def on_disk(**changes: str) -> Generator:
    """``EXPECTED`` with what counts as it is on disk."""
    now = {"templates_digest": templates_digest(), "family_digest": family_digest(families()["gemm"])}
    return msgspec.structs.replace(EXPECTED, **{**now, **changes})


def test_the_same_generator_differs_in_nothing():
    assert differing_fields(EXPECTED, LOADED, "gemm") == []


@pytest.mark.parametrize("field", Generator.__struct_fields__)
def test_every_field_counts_and_is_named(field):
    other = msgspec.structs.replace(EXPECTED, **{field: "other"})

    assert differing_fields(other, LOADED, "gemm") == [f"generator.{field}"]


@pytest.mark.parametrize("family", ["rmsnorm", "gone"])
def test_the_digest_is_that_of_the_jobs_own_family(family):
    assert differing_fields(EXPECTED, LOADED, family) == ["generator.family_digest"]


def test_a_refusal_names_fields_and_remedy_and_is_no_property_of_the_spec(loaded):
    with pytest.raises(CompileFailed, match=r"sources of gemm .*: generator\.lowering_digest ") as caught:
        loaded.refuse_unless(on_disk(lowering_digest="other"), "gemm")

    assert "restart the daemon" in caught.value.hint
    assert caught.value.details == {
        "stage": "generator",
        "deterministic": False,
        "fields": ["generator.lowering_digest"],
    }


@pytest.mark.parametrize("field", ["templates_digest", "family_digest"])
def test_templates_and_the_familys_source_count_as_they_are_on_disk(loaded, field):
    with pytest.raises(CompileFailed) as caught:
        loaded.refuse_unless(on_disk(**{field: getattr(EXPECTED, field)}), "gemm")
    assert caught.value.details["fields"] == [f"generator.{field}"]

    loaded.refuse_unless(on_disk(), "gemm")


def test_a_part_of_tilelang_imported_since_has_everything_looked_at_again(loaded, monkeypatch):
    monkeypatch.setitem(sys.modules, "tilelang.imported_by_a_builder", sys)

    with pytest.raises(CompileFailed) as caught:
        loaded.refuse_unless(on_disk(), "gemm")

    assert "generator.tilelang_native_digest" in caught.value.details["fields"]
