"""Settings of remote tiers: every way to write them, every fault by its field, no secret in a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kaas.cache.remote_settings import (
    RemoteTierSettings,
    parse_remote_tiers,
    resolved_options,
    secrets_of,
)
from kaas.proto.errors import InvalidConfig

SECRET = "sehr geheim"
S3 = {"name": "s3", "uri": "s3://bucket/prefix", "options": {"secret_access_key": "env:KEY"}}


def test_tables_json_and_plain_uris_say_the_same() -> None:
    (from_table,) = parse_remote_tiers([S3], "file")
    (from_json,) = parse_remote_tiers(json.dumps([S3]), "environment")
    assert from_table == from_json
    first, second = parse_remote_tiers("fs:///shared/kernels redis://cache:6379", "flag")
    assert (first.name, first.scheme, second.name, second.scheme) == ("remote1", "fs", "remote2", "redis")
    assert parse_remote_tiers("", "flag") == ()


@pytest.mark.parametrize(
    ("mode", "reads", "writes"), [("read", True, False), ("write", False, True), ("read-write", True, True)]
)
def test_the_mode_says_which_way_kernels_go(mode: str, reads: bool, writes: bool) -> None:
    (tier,) = parse_remote_tiers([{**S3, "mode": mode}], "file")
    assert (tier.is_readable, tier.is_writable) == (reads, writes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "S3 tier"}, "remote_tiers[0].name"),
        ({"name": ""}, "remote_tiers[0].name"),
        ({"uri": "bucket"}, "remote_tiers[0].uri"),
        ({"uri": f"s3://user:{SECRET}@bucket"}, "remote_tiers[0].uri"),
        ({"uri": "s3://bucket?x=1"}, "remote_tiers[0].uri"),
        ({"uri": "fs://host/path"}, "remote_tiers[0].uri"),
        ({"uri": "fs:///"}, "remote_tiers[0].uri"),
        ({"uri": "s3://[bad"}, "remote_tiers[0].uri"),
        ({"options": {"secret_access_key": SECRET}}, "remote_tiers[0].options.secret_access_key"),
        ({"options": {"password": SECRET}}, "remote_tiers[0].options.password"),
        ({"options": {"Bad Name": "x"}}, "remote_tiers[0].options"),
        ({"deadline_s": 0}, "remote_tiers[0].deadline_s"),
        ({"write_deadline_s": 1e9}, "remote_tiers[0].write_deadline_s"),
        ({"open_after": 0}, "remote_tiers[0].open_after"),
        ({"open_s": -1}, "remote_tiers[0].open_s"),
        ({"max_object_bytes": 1}, "remote_tiers[0].max_object_bytes"),
        ({"mode": "append"}, "remote_tiers"),
        ({"on_error": "explode"}, "remote_tiers"),
        ({"surprise": 1}, "remote_tiers"),
        ({"options": "text"}, "remote_tiers"),
    ],
)
def test_a_fault_names_its_field_and_never_a_secret(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfig) as fault:
        parse_remote_tiers([{**S3, **changes}], "the file")
    assert fault.value.details["field"] == field
    assert fault.value.details["legal"]
    assert SECRET not in str(fault.value.to_record())


def test_two_tiers_with_one_name_and_too_many_tiers_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="one name"):
        parse_remote_tiers([S3, S3], "file")
    with pytest.raises(InvalidConfig, match="9 tiers"):
        parse_remote_tiers([{**S3, "name": f"s{n}"} for n in range(9)], "file")
    with pytest.raises(InvalidConfig, match="no JSON"):
        parse_remote_tiers("[{", "environment")


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    tier = RemoteTierSettings(
        name="t",
        uri="redis://h",
        options={"password": f"file:{file}", "username": "env:USER_NAME", "endpoint": "x"},
    )
    found = resolved_options(tier, {"USER_NAME": "kaas"})
    assert found == {"password": SECRET, "username": "kaas", "endpoint": "x"}
    assert sorted(secrets_of(tier, found)) == sorted(["kaas", SECRET])


@pytest.mark.parametrize("place", ["env:NOT_SET", "file:/nowhere/at/all"])
def test_a_secret_that_is_not_there_is_named_by_its_place(place: str) -> None:
    tier = RemoteTierSettings(name="t", uri="redis://h", options={"password": place})
    with pytest.raises(InvalidConfig) as fault:
        resolved_options(tier, {})
    assert fault.value.details["field"] == "remote_tiers.t.options.password"
