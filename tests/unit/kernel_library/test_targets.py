"""The SKU table: names whatever their case, refusals with near matches and with reasons."""

from __future__ import annotations

import pytest

from kaas.kernel_library.targets import TARGETS, target_named
from kaas.proto.errors import UnsupportedTarget


@pytest.mark.parametrize("name", TARGETS)
def test_names_are_found_whatever_their_case(name: str) -> None:
    target = target_named(name)
    assert target.soc_name == name
    for form in (name.upper(), name.lower(), f" {name}\n"):
        assert target_named(form) is target


@pytest.mark.parametrize(
    ("name", "cube_cores", "l2_mib"),
    [
        ("Ascend950PR_9599", 36, 128),
        ("Ascend950DT_9581", 32, 128),
        ("Ascend950PR_958b", 32, 112),
        ("Ascend950PR_9579", 28, 128),
        ("Ascend950PR_957d", 28, 96),
        ("Ascend950DT_950x", 8, 32),
    ],
)
def test_core_counts_and_sizes(name: str, cube_cores: int, l2_mib: int) -> None:
    target = target_named(name)
    assert (target.cube_cores, target.vector_cores) == (cube_cores, 2 * cube_cores)
    assert target.l2_bytes == l2_mib << 20
    assert (target.npu_arch, target.l0c_bytes, target.ub_bytes) == ("dav-3510", 256 << 10, 248 << 10)


def test_no_two_names_differ_only_in_case() -> None:
    assert len({name.casefold() for name in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("Ascend950PR_9578", "Ascend950PR_9579"),
        ("ascend950pr9579", "Ascend950PR_9579"),
        ("Ascend950DT-9581", "Ascend950DT_9581"),
    ],
)
def test_a_typo_is_refused_with_near_matches(typo: str, meant: str) -> None:
    with pytest.raises(UnsupportedTarget) as refused:
        target_named(typo)
    assert meant in refused.value.details["near"]
    assert meant in refused.value.message
    assert refused.value.details["legal"] == sorted(TARGETS)


@pytest.mark.parametrize("name", ["", "H100", "Ascend", "x" * 10_000])
def test_what_is_like_nothing_is_refused_without_guesses(name: str) -> None:
    with pytest.raises(UnsupportedTarget) as refused:
        target_named(name)
    assert "did you mean" not in refused.value.message
    assert refused.value.details["field"] == "soc_name"


@pytest.mark.parametrize(
    ("name", "arch"), [("ascend910b1", "dav-2201"), ("Ascend310P3", "dav-2002"), ("Ascend910A", "dav-1001")]
)
def test_another_generation_is_refused_with_its_reason(name: str, arch: str) -> None:
    with pytest.raises(UnsupportedTarget, match="Ascend 950") as refused:
        target_named(name)
    assert refused.value.details["arch"] == arch
