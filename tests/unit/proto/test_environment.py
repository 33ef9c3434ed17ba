"""Environment: what it adds to a spec is exactly what the passport holds besides."""

from __future__ import annotations

import msgspec
import pytest
from support.client_store import environment

from kaas.kernel_library.targets import target_named
from kaas.proto.environment import Locality
from kaas.proto.errors import UnknownFamily

SPEC = {"family": "gemm", "n": 64, "k": 64}


def test_paths_of_a_node_are_no_part_of_a_key() -> None:
    here = environment()
    there = environment(
        generation=77,
        kaas_version="9.9",
        target_source="acl",
        locality=Locality(acl_library="/a", toolkit_home="/b", socket="/c"),
    )
    assert here.passport(SPEC) == there.passport(SPEC)


def test_another_target_changes_the_target_alone() -> None:
    here = environment()
    other = target_named("Ascend950DT_9581")
    assert here.passport(SPEC, other) == msgspec.structs.replace(here.passport(SPEC), target=other)


def test_each_family_has_its_own_digest() -> None:
    here = environment()
    assert here.passport({"family": "rmsnorm"}).generator.family_digest == here.family_digests["rmsnorm"]


@pytest.mark.parametrize("spec", [{"family": "mla"}, {}])
def test_a_family_that_the_node_lacks_is_refused_by_name(spec: dict[str, str]) -> None:
    with pytest.raises(UnknownFamily) as refused:
        environment().passport(spec)
    assert refused.value.details["legal"] == ["gemm", "rmsnorm"]
