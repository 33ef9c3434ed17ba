"""Configuration: which layer wins, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.proto.errors import InvalidConfig
from kaas.server.config import Address, Config, load_config, parse_address


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_later_layers_win(tmp_path: Path) -> None:
    file = write(tmp_path / "kaas.toml", "workers = 3\nqueue_limit = 30\nlog_level = 'warning'\n")
    environ = {"KAAS_QUEUE_LIMIT": "40", "KAAS_LOG_LEVEL": "ERROR"}
    config = load_config({"log_level": "debug", "soc_name": None}, file, environ)
    assert (config.workers, config.queue_limit, config.log_level) == (3, 40, "debug")
    assert config.shutdown_grace_s == Config().shutdown_grace_s


def test_text_becomes_the_fields_type(tmp_path: Path) -> None:
    environ = {
        "KAAS_ALLOW_REMOTE": "true",
        "KAAS_COMPILE_WALL_LIMIT_S": "12.5",
        "KAAS_COMPILE_MEMORY_LIMIT_BYTES": "2GiB",
        "KAAS_STORE": str(tmp_path),
    }
    config = load_config({"socket": tmp_path / "s"}, None, environ)
    assert config.allow_remote is True
    assert config.compile_wall_limit_s == 12.5
    assert config.compile_memory_limit_bytes == 2 << 30
    assert (config.store, config.socket) == (str(tmp_path), str(tmp_path / "s"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("socket", "relative/kaas.sock"),
        ("socket", "/" + "x" * 200),
        ("socket_mode", "rw-rw----"),
        ("socket_group", "no-such-group-here"),
        ("tcp_address", "localhost"),
        ("tcp_address", "unix:/tmp/x"),
        ("tcp_address", "0.0.0.0:80"),
        ("rest_address", "192.0.2.1:7990"),
        ("rest_address", "127.0.0.1:70000"),
        ("rest_address", "unix:relative"),
        ("store", "relative"),
        ("toolkit_home", "relative"),
        ("compile_memory_budget_bytes", "1MiB"),
        ("compile_memory_first_guess_bytes", "0"),
        ("compile_attempts", "0"),
        ("compile_attempts", "11"),
        ("compile_retry_delay_s", "31"),
        ("failure_lifetime_s", "-1"),
        ("transient_failure_lifetime_s", "3601"),
        ("workers", "0"),
        ("workers", "many"),
        ("workers", "1.5"),
        ("queue_limit", "-1"),
        ("compile_wall_limit_s", "nan"),
        ("compile_memory_limit_bytes", "8 bananas"),
        ("allow_remote", "perhaps"),
        ("log_level", "chatty"),
    ],
)
def test_a_bad_value_names_field_and_source(name: str, value: str) -> None:
    variable = f"KAAS_{name.upper()}"
    with pytest.raises(InvalidConfig) as refusal:
        load_config({}, None, {variable: value})
    assert refusal.value.details["field"] == name
    assert variable in refusal.value.details["source"]
    assert name in str(refusal.value)
    assert refusal.value.details["legal"]


def test_a_file_value_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "kaas.toml", "workers = true\n")
    with pytest.raises(InvalidConfig) as refusal:
        load_config({}, file, {})
    assert refusal.value.details == {"field": "workers", "source": str(file), "legal": "an integer"}


@pytest.mark.parametrize("layer", ["file", "environment", "flag"])
def test_an_unknown_key_is_refused_with_the_near_match(layer: str, tmp_path: Path) -> None:
    file = write(tmp_path / "kaas.toml", "worker = 3\n") if layer == "file" else None
    environ = {"KAAS_WORKER": "3"} if layer == "environment" else {}
    flags = {"worker": "3"} if layer == "flag" else {}
    with pytest.raises(InvalidConfig) as refusal:
        load_config(flags, file, environ)
    assert "workers" in refusal.value.details["near"]


def test_variables_of_other_parts_are_left_alone() -> None:
    assert load_config({}, None, {"KAAS_TWIN_SCHEDULE": "adversarial", "KAAS_RANK": "3"}).workers >= 1


@pytest.mark.parametrize("content", ["workers = ", "\x00", None])
def test_an_unreadable_file_is_refused_by_name(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "kaas.toml"
    if content is not None:
        write(file, content)
    with pytest.raises(InvalidConfig) as refusal:
        load_config({}, file, {})
    assert str(file) in str(refusal.value)


def test_remote_addresses_need_consent() -> None:
    flags = {"tcp_address": "0.0.0.0:7991", "rest_address": "[::]:7990", "allow_remote": "true"}
    assert load_config(flags, None, {}).tcp_address == "0.0.0.0:7991"


def test_addresses_parse() -> None:
    assert parse_address("127.0.0.1:0") == Address(host="127.0.0.1", port=0)
    assert parse_address("[::1]:80") == Address(host="::1", port=80)
    assert parse_address("unix:/run/x") == Address(path="/run/x")
    assert parse_address("::1:80") is None


def test_rest_is_beside_the_socket_unless_said_otherwise() -> None:
    config = load_config({"socket": "/run/somewhere/kaas.sock"}, environ={})
    assert config.rest_address == "unix:/run/somewhere/rest.sock"
    assert load_config({"rest_address": "off"}, environ={}).rest_address == "off"


@pytest.mark.parametrize("options", ["-I/usr/include", "-o somewhere", "-O2 ; rm", "--npu-arch=dav-2201"])
def test_device_options_that_name_paths_or_other_parts_are_refused(options: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load_config({"device_options": options}, environ={})
    assert refused.value.details["field"] == "device_options"
