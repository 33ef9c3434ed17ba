"""Which SKU a node has: npu-smi's spellings, ACL's numbers, and the configuration against them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kaas.compiler import device_probe
from kaas.compiler.device_probe import detect_target, parse_npu_list, soc_name_from_board, target_from_facts
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import UnsupportedTarget

BOARD_950 = """\
        NPU ID                         : 0
        Product Name                   : IT21
        Manufacturer                   : Huawei
        Chip Name                      : Ascend950PR
        NPU Name                       : 9579
        PCB ID                         : A
"""
BOARD_A3 = "\tNPU ID : 0\n\tChip ID : 0\n\tChip Type : Ascend\n\tChip Name : Ascend910\n\tNPU Name : 9391\n"
BOARD_A2 = "\tNPU ID : 3\n\tChip Type : Ascend\n\tChip Name : 910B1\n\tNPU Name : NA\n"
BOARD_310P = "\tChip Type : Ascend\n\tChip Name : 310P3\n"

TWIN = SimpleNamespace(kind="twin", acl_library=Path("/twin/lib64/libascendcl.so"))
CANN = SimpleNamespace(kind="cann", acl_library=Path("/cann/lib64/libascendcl.so"))


@pytest.mark.parametrize(
    ("board", "name"),
    [
        (BOARD_950, "Ascend950PR_9579"),
        (BOARD_A3, "Ascend910_9391"),
        (BOARD_A2, "Ascend910B1"),
        (BOARD_310P, "Ascend310P3"),
        ("", None),
        ("This device does not support querying board.\n", None),
    ],
)
def test_board_facts_compose_the_soc_name(board, name):
    assert soc_name_from_board(board) == name


def test_npu_ids_are_read_from_the_listing():
    listing = "\tTotal Count : 2\n\n\tNPU ID  : 1\n\tChip Count : 1\n\n\tNPU ID  : 4\n\tChip Count : 1\n"

    assert parse_npu_list(listing) == [1, 4]


def test_live_core_counts_win_over_the_table():
    facts = {
        "soc_name": "ascend950pr_9579",
        "cube_cores": 24,
        "vector_cores": 48,
        "l2_bytes": 96 << 20,
        "npu_arch": 3510,
        "ub_bytes": 256 << 10,
    }

    target = target_from_facts(facts)

    assert (target.soc_name, target.cube_cores, target.vector_cores) == ("Ascend950PR_9579", 24, 48)
    assert target.l2_bytes == 96 << 20
    assert target.ub_bytes == 248 << 10


def test_an_unknown_sku_is_taken_from_the_device_alone():
    facts = {
        "soc_name": "Ascend950PR_9700",
        "cube_cores": 40,
        "vector_cores": 80,
        "l2_bytes": 1 << 27,
        "npu_arch": 3510,
    }

    assert target_from_facts(facts).cube_cores == 40
    with pytest.raises(UnsupportedTarget, match="9700"):
        target_from_facts({"soc_name": "Ascend950PR_9700"})


def test_a_part_of_another_generation_is_refused_with_its_arch():
    with pytest.raises(UnsupportedTarget, match="dav-2201"):
        target_from_facts({"soc_name": "Ascend910B1", "cube_cores": 24, "vector_cores": 48, "npu_arch": 2201})


def test_the_twin_stands_for_the_configured_sku_and_no_device_is_asked(monkeypatch):
    def asked(*_):
        raise AssertionError("a device was asked")

    monkeypatch.setattr(device_probe, "live_target", asked)

    assert detect_target(TWIN, "ascend950dt_9581") == (target_named("Ascend950DT_9581"), "configured")
    assert detect_target(TWIN, None) == (target_named("Ascend950PR_9579"), "default")


def test_a_configured_name_that_contradicts_the_device_is_refused_naming_both(monkeypatch):
    live = target_named("Ascend950DT_9581")
    monkeypatch.setattr(device_probe, "live_target", lambda toolkit, environ: (live, "acl"))

    assert detect_target(CANN, "ASCEND950DT_9581") == (live, "acl")
    with pytest.raises(UnsupportedTarget) as caught:
        detect_target(CANN, "Ascend950PR_9579")
    assert caught.value.details["configured"] == "Ascend950PR_9579"
    assert caught.value.details["live"] == "Ascend950DT_9581"


def test_without_a_device_cann_needs_a_configured_name(monkeypatch):
    monkeypatch.setattr(device_probe, "live_target", lambda toolkit, environ: (None, ""))

    assert detect_target(CANN, "Ascend950PR_9579")[1] == "configured"
    with pytest.raises(UnsupportedTarget, match="no Ascend device"):
        detect_target(CANN, None)
