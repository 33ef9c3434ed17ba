"""The shipped deployment files fit the program they deploy."""

import configparser
import os
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from kaas.client.cli import app
from kaas.server.config import Config

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
COMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands}
FIELDS = {field.name for field in msgspec.structs.fields(Config)}
# Variables of parts of kaas that are no field of the daemon's configuration.
OTHER_VARIABLES = {"KAAS_TWIN_ROOT"}


def _unit() -> dict[str, list[str]]:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str
    parser.read(DEPLOY / "systemd" / "kaas.service")
    return {name: parser.get("Service", name).split() for name in parser.options("Service")}


def _manifests() -> dict[str, dict]:
    return {path.name: yaml.safe_load(path.read_text()) for path in (DEPLOY / "kubernetes").glob("*.yaml")}


def test_the_configuration_file_has_only_fields_of_the_daemon() -> None:
    shipped = tomllib.loads((DEPLOY / "kaas.toml").read_text())
    assert shipped.keys() <= FIELDS
    assert msgspec.convert(shipped, Config)


def test_the_unit_starts_the_daemon_and_gives_it_time_to_stop() -> None:
    unit = _unit()
    program, command, *_ = unit["ExecStart"]
    assert Path(program).name == "kaas"
    assert command in COMMANDS
    assert int(unit["TimeoutStopSec"][0]) > Config().shutdown_grace_s


def test_the_unit_lets_the_group_and_nobody_else_reach_the_socket() -> None:
    shipped = tomllib.loads((DEPLOY / "kaas.toml").read_text())
    assert int(shipped["socket_mode"], 8) & 0o007 == 0
    assert [shipped["socket_group"]] == _unit()["Group"]
    assert Path(shipped["socket"]).parent == Path("/run") / _unit()["RuntimeDirectory"][0]
    assert Path(shipped["store"]) == Path("/var/cache") / _unit()["CacheDirectory"][0]


def test_the_container_copies_every_package_and_sets_known_variables() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    links = {path.name for path in (DEPLOY.parent / "src" / "kaas").iterdir() if path.is_symlink()}
    copied = set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    assert links <= copied
    for variable in re.findall(r"(KAAS_\w+)=", text):
        assert variable in OTHER_VARIABLES or variable.removeprefix("KAAS_").lower() in FIELDS
    command = re.search(r'^CMD \["(\w+)"', text, re.MULTILINE)
    assert command is not None
    assert command.group(1) in COMMANDS


def test_the_daemonset_probes_and_mounts_what_the_container_has() -> None:
    pod = _manifests()["daemonset.yaml"]["spec"]["template"]["spec"]
    daemon = pod["containers"][0]
    assert daemon["args"][0] in COMMANDS
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert pod["terminationGracePeriodSeconds"] > Config().shutdown_grace_s
    assert daemon["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("path", ["/run/kaas", "/var/cache/kaas"])
def test_training_pods_mount_the_daemons_directories_read_only(path: str) -> None:
    manifests = _manifests()
    training = manifests["training-pod.yaml"]["spec"]
    mounts = {mount["mountPath"]: mount for mount in training["containers"][0]["volumeMounts"]}
    assert mounts[path]["readOnly"] is True
    daemonset = manifests["daemonset.yaml"]["spec"]["template"]["spec"]
    shared = {v["name"]: v["hostPath"]["path"] for v in daemonset["volumes"] if "hostPath" in v}
    assert path in shared.values()
    assert daemonset["securityContext"]["runAsGroup"] in training["securityContext"]["supplementalGroups"]


def test_scripts_are_executable() -> None:
    scripts = [*(DEPLOY.parent / "scripts").iterdir(), DEPLOY.parent / ".ci" / "run"]
    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []
