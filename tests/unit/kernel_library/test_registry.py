"""Registry: the families there are, those of other packages, and digests of their sources."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from kaas.kernel_library import registry
from kaas.kernel_library.registry import families, family_digest, family_named, schemas
from kaas.proto.errors import InvalidConfig, UnknownFamily


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    registry._discovered.cache_clear()
    yield
    registry._discovered.cache_clear()


VOCABULARY = {f"kaas.kernel_library.{name}" for name in ("spec", "family", "targets")}
"""What every family uses and no generated line depends on."""


def modules_reached(module: str) -> set[str]:
    """A module of the library and all those that it imports, directly or not, at module level or inside."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        origin = importlib.util.find_spec(name).origin
        for node in ast.walk(ast.parse(Path(origin).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kaas.kernel_library."):
                waiting.append(node.module)
    return reached


@pytest.mark.parametrize("name", registry.builtin_names())
def test_a_familys_digest_covers_every_module_that_its_program_comes_from(name: str) -> None:
    family = family_named(name)
    assert modules_reached(family.module) - VOCABULARY == {family.module, *family.sources}


def entry_points_are(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    class Entry:
        def __init__(self, family: Any) -> None:
            self.family = family
            self.name, self.value = "outside", "elsewhere:FAMILY"

        def load(self) -> Any:
            if isinstance(self.family, Exception):
                raise self.family
            return self.family

    def entry_points(*, group: str) -> list[Entry]:
        assert group == "kaas.families"
        return [Entry(family) for family in found]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_every_family_is_registered_under_its_tag() -> None:
    assert {"gemm", "rmsnorm"} <= set(families())
    for name, family in families().items():
        assert family.name == name == family.spec_type.__struct_config__.tag
        assert family.summary


def test_every_schema_is_one() -> None:
    for schema in schemas().values():
        jsonschema_rs.meta.validate(schema)
        assert schema["additionalProperties"] is False


@pytest.mark.usefixtures("fresh_registry")
def test_another_package_can_add_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    added = msgspec.structs.replace(family_named("gemm"), name="outside_gemm")
    registry._discovered.cache_clear()
    entry_points_are(monkeypatch, added)
    assert family_named("outside_gemm") is added
    assert family_named("gemm") is not added


@pytest.mark.usefixtures("fresh_registry")
def test_two_families_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = msgspec.structs.replace(family_named("gemm"), module="elsewhere.gemm")
    registry._discovered.cache_clear()
    entry_points_are(monkeypatch, twin)
    with pytest.raises(InvalidConfig, match=r"'gemm'.*elsewhere\.gemm"):
        families()


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize("brought", [ModuleNotFoundError("no nosuchmod"), "not a family"])
def test_a_broken_family_of_another_package_costs_only_itself(
    brought: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry_points_are(monkeypatch, brought)
    assert {"gemm", "rmsnorm"} <= set(families())
    [(entry, reason)] = registry.broken_families().items()
    assert entry == "outside = elsewhere:FAMILY"
    assert "nosuchmod" in reason or "not a Family" in reason
    assert entry in caplog.text
    with pytest.raises(UnknownFamily, match="elsewhere:FAMILY"):
        family_named("outside")


@pytest.mark.parametrize("name", ["gem", "", None, 5, ["gemm"]])
def test_an_unknown_name_is_refused(name: Any) -> None:
    with pytest.raises(UnknownFamily) as refused:
        family_named(name)
    assert refused.value.details["legal"] == sorted(families())


@pytest.fixture
def sourced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A family of two module files that a test may edit."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("kaas_test_family", "kaas_test_tiles"):
        (tmp_path / f"{name}.py").write_text("A = 1\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    family = msgspec.structs.replace(
        family_named("gemm"), module="kaas_test_family", sources=("kaas_test_tiles",)
    )
    return tmp_path, family


@pytest.mark.parametrize("module", ["kaas_test_family", "kaas_test_tiles"])
def test_an_edit_of_any_source_changes_the_digest(sourced: Any, module: str) -> None:
    directory, family = sourced
    before = family_digest(family)
    (directory / f"{module}.py").write_text("A = 2\n")
    after = family_digest(family)
    (directory / f"{module}.py").write_text("A = 1\n")
    assert before != after
    assert family_digest(family) == before


def test_a_source_that_does_not_exist_is_refused(sourced: Any) -> None:
    _, family = sourced
    with pytest.raises(InvalidConfig, match="no_such_module"):
        family_digest(msgspec.structs.replace(family, sources=("kaas.kernel_library.no_such_module",)))


def test_families_have_different_digests() -> None:
    digests = [family_digest(family) for family in families().values()]
    assert len(set(digests)) == len(digests)
    assert registry.family_digest(family_named("gemm")) in digests
