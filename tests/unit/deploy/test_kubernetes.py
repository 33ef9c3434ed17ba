"""Manifests for Kubernetes: legal in three minor versions, and the chart renders what the plain files say."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.main import get_command

from kaas.client.cli import app
from kaas.client.manifest_document import parse_document
from kaas.server.config import Config, load_config

kubernetes_validate = pytest.importorskip("kubernetes_validate")
helm = pytest.importorskip("helm_python")

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "helm" / "kaas"
EXAMPLE = yaml.safe_load((DEPLOY / "helm" / "example-values.yaml").read_text())
MINORS = ("1.29", "1.33", "1.37")
"""The oldest that has sidecars by default, what most clusters have, and the newest that has schemas."""

FIELDS = {field.name for field in msgspec.structs.fields(Config)}
POD_LEVEL = {"KAAS_STRICT", "KAAS_SHARD_COUNT"}
"""Variables that clients know and the daemon's configuration does not."""

Resource = dict[str, Any]


def plain() -> dict[str, Resource]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text()) for path in files}


def rendered(values: dict[str, Any], name: str = "kaas") -> list[Resource]:
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace="kaas-system")
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [resource for text in texts for resource in yaml.safe_load_all(text) if resource]


def name_of(resource: Resource) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


def without_chart_marks(resource: Resource) -> Resource:
    """Without what only Helm reads, and with the TOML and YAML of the configuration read."""
    left = copy.deepcopy(resource)
    template = left.get("spec", {}).get("template", {})
    for metadata in (left["metadata"], template.get("metadata", {})):
        kept = {
            name: value
            for name, value in metadata.pop("annotations", {}).items()
            if not name.startswith(("helm.sh/", "checksum/"))
        }
        if kept:
            metadata["annotations"] = kept
    if left["kind"] == "ConfigMap":
        left["data"] = {
            name: tomllib.loads(text) if name.endswith(".toml") else yaml.safe_load(text)
            for name, text in left["data"].items()
        }
    return left


def pods(resource: Resource) -> Resource:
    return resource["spec"] if resource["kind"] == "Pod" else resource["spec"]["template"]["spec"]


def containers(resource: Resource) -> list[Resource]:
    return [*pods(resource).get("initContainers", []), *pods(resource)["containers"]]


RUNNING = ("daemonset", "prewarm-job", "training-pod")


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("name", plain())
def test_plain_manifests_are_legal(name: str, minor: str) -> None:
    assert kubernetes_validate.validate(plain()[name], minor, strict=True) == minor


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("daemonset", ("spec", "template", "spec", "containers", 0, "readynessProbe"), {}),
        ("daemonset", ("spec", "template", "spec", "terminationGracePeriodSeconds"), "15s"),
        ("daemonset", ("spec", "replicas"), 3),
        ("prewarm-job", ("spec", "completionMode"), ["Indexed"]),
        ("prewarm-job", ("spec", "podFailurePolicy", "rules", 0, "action"), None),
        ("network-policy", ("spec", "egress", 0, "ports", 0, "protocol"), 17),
        ("pod-disruption-budget", ("spec", "minAvailible"), 1),
        ("configuration", ("data", "kaas.toml"), {"a": "table"}),
        ("training-pod", ("spec", "volumes", 0, "hostpath"), {"path": "/"}),
    ],
)
def test_a_wrong_field_is_caught(name: str, path: tuple[str | int, ...], value: Any, minor: str) -> None:
    resource = plain()[name]
    place: Any = resource
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, minor, strict=True)


def test_the_chart_renders_the_plain_manifests() -> None:
    chart = {name_of(one): without_chart_marks(one) for one in rendered(EXAMPLE)}
    files = {name_of(one): without_chart_marks(one) for one in plain().values()}
    del files["Pod", "training-rank"]  # an example for others' pods
    assert chart == files


VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "example": EXAMPLE,
    "much": {
        **EXAMPLE,
        "nodeSelector": {"npu": "950"},
        "tolerations": [{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}],
        "image": {"repository": "registry.internal/kaas", "tag": "1.2.3", "pullPolicy": "IfNotPresent"},
        "imagePullSecrets": [{"name": "registry"}],
        "userId": 20000,
        "configuration": 'log_format = "json"\nstore_soft_bytes = "64GiB"\nstore_hard_bytes = "96GiB"\n',
        "readyCoverage": 0.95,
        "daemon": {"maxUnavailable": 3},
        "prewarm": {"enabled": True, "shards": 16, "nodeSelector": {"builder": "yes"}},
        "networkPolicy": {"enabled": True, "remotePorts": []},
    },
    "no policy": {"networkPolicy": {"enabled": False}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_chart_renders_is_legal(variant: str) -> None:
    for resource in rendered(VARIANTS[variant], name="other"):
        for minor in MINORS:
            kubernetes_validate.validate(resource, minor, strict=True)
        assert resource["metadata"]["name"].startswith("other")


def test_the_charts_values_reach_what_they_are_for() -> None:
    resources = {name_of(one)[0]: one for one in rendered(VARIANTS["much"])}
    daemon = containers(resources["DaemonSet"])[1]
    assert {one["image"] for one in containers(resources["DaemonSet"])} == {"registry.internal/kaas:1.2.3"}
    assert {"name": "KAAS_READY_COVERAGE", "value": "0.95"} in daemon["env"]
    assert pods(resources["DaemonSet"])["securityContext"]["runAsGroup"] == 20000
    configuration = tomllib.loads(resources["ConfigMap"]["data"]["kaas.toml"])
    assert configuration["log_format"] == "json"
    assert configuration["monitoring_address"] == "0.0.0.0:9464"
    job = resources["Job"]["spec"]
    assert (
        job["completions"],
        job["parallelism"],
        resources["PodDisruptionBudget"]["spec"]["minAvailable"],
    ) == (
        16,
        16,
        16,
    )
    assert "auto/16" in containers(resources["Job"])[1]["args"]


def test_the_job_runs_before_the_nodes_and_after_what_it_needs() -> None:
    weights = {
        name_of(one)[0]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"])
        for one in rendered(EXAMPLE)
        if "helm.sh/hook" in one["metadata"].get("annotations", {})
    }
    assert weights.keys() == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Job"}
    assert weights.pop("Job") > max(weights.values())
    for resource in rendered({}):
        assert "annotations" not in resource["metadata"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"manifset": ""}, "manifset"),
        ({"readyCoverage": 1.5}, "readyCoverage"),
        ({"prewarm": {"shards": 0}}, "shards"),
        ({"remoteTiers": [{"uri": "s3://a"}]}, "remoteTiers"),
        ({"remoteTiers": [{"name": "a", "uri": "s3://a", "mode": "append"}]}, "mode"),
        ({"paths": {"store": "var/cache"}}, "store"),
        ({"configuration": 'monitoring_address = "x"'}, "configuration"),
        ({"daemon": {"maxUnavailable": "0%"}}, "maxUnavailable"),
    ],
)
def test_wrong_values_are_refused_by_the_schema(values: dict[str, Any], said: str) -> None:
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(EXAMPLE)
        with pytest.raises(helm.HelmValuesError, match=said):
            chart.validate_schema(values)


def test_builders_without_a_manifest_or_a_place_to_write_to_are_refused() -> None:
    for missing in ("manifest", "remoteTiers"):
        values = {name: value for name, value in EXAMPLE.items() if name != missing}
        with pytest.raises(helm.HelmRenderError, match=missing):
            rendered(values)


def test_helm_finds_nothing_to_complain_of() -> None:
    report = helm.lint(CHART, EXAMPLE, strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_every_default_is_in_the_values_file_and_in_the_schema() -> None:
    with helm.Chart.load(CHART) as chart:
        schema = chart.schema
        assert schema is not None
        assert schema["properties"].keys() - {"global"} == chart.values.keys()
        for name, value in chart.values.items():
            properties = schema["properties"][name].get("properties")
            if properties is not None:
                assert properties.keys() == value.keys(), name


@pytest.mark.parametrize("name", RUNNING)
def test_containers_run_known_commands_with_known_options(name: str) -> None:
    root = get_command(app)
    lines = [one["args"] for one in containers(plain()[name]) if "args" in one and "command" not in one]
    for one in containers(plain()[name]):
        if "command" in one and "args" in one:
            (script,) = one["args"]
            lines += [call.split() for call in re.findall(r"^\s*kaas (.*?) &", script, re.MULTILINE)]
    assert lines
    for command, *words in lines:
        options = {flag for parameter in root.commands[command].params for flag in parameter.opts}
        if command == "serve":  # whose options are the configuration's fields
            options = {"--config", *(f"--{field.replace('_', '-')}" for field in FIELDS)}
        assert {word for word in words if word.startswith("-")} <= options
        for word in words:
            if word.startswith("/etc/kaas/"):
                assert Path(word).name in plain()["configuration"]["data"]


@pytest.mark.parametrize("name", RUNNING)
def test_containers_set_known_variables_and_mount_known_volumes(name: str) -> None:
    pod = pods(plain()[name])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in containers(plain()[name]):
        for variable in container.get("env", []):
            if variable["name"].startswith("KAAS_"):
                field = variable["name"].removeprefix("KAAS_").lower()
                assert field in FIELDS or variable["name"] in POD_LEVEL
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes.keys()
    for volume in volumes.values():
        if "configMap" in volume:
            assert volume["configMap"]["name"] == plain()["configuration"]["metadata"]["name"]


@pytest.mark.parametrize("name", ["daemonset", "prewarm-job"])
def test_containers_have_as_few_rights_as_they_need(name: str) -> None:
    pod = pods(plain()[name])
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(plain()[name]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert container["resources"]["limits"]["memory"]
        if container["name"] != "own-directories":  # which hands the node's directories over
            assert "add" not in context["capabilities"]
            assert context.get("runAsUser", pod["securityContext"]["runAsUser"]) != 0


def test_probes_ask_the_monitoring_listener() -> None:
    configuration = tomllib.loads(plain()["configuration"]["data"]["kaas.toml"])
    port = int(configuration["monitoring_address"].rpartition(":")[2])
    for name in ("daemonset", "prewarm-job"):
        (daemon,) = [one for one in containers(plain()[name]) if one["name"] == "kaas"]
        assert daemon["ports"] == [{"name": "monitoring", "containerPort": port}]
        probes = {kind: probe["httpGet"] for kind, probe in daemon.items() if kind.endswith("Probe")}
        assert {probe["port"] for probe in probes.values()} == {"monitoring"}
        assert {probe["path"] for probe in probes.values()} <= {"/readyz", "/healthz"}
    daemon = pods(plain()["daemonset"])["containers"][0]
    assert daemon["readinessProbe"]["httpGet"]["path"] == "/readyz"
    annotations = plain()["daemonset"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    (rule,) = plain()["network-policy"]["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]


def test_selectors_select_their_own_pods_and_no_others() -> None:
    def labels(name: str) -> dict[str, str]:
        return plain()[name]["spec"]["template"]["metadata"]["labels"]

    daemon, builder = labels("daemonset"), labels("prewarm-job")
    assert plain()["daemonset"]["spec"]["selector"]["matchLabels"] == daemon
    assert plain()["pod-disruption-budget"]["spec"]["selector"]["matchLabels"] == builder
    assert daemon != builder
    both = plain()["network-policy"]["spec"]["podSelector"]["matchLabels"]
    assert both.items() <= daemon.items()
    assert both.items() <= builder.items()


def test_the_job_has_as_many_pods_as_shards() -> None:
    job = plain()["prewarm-job"]["spec"]
    assert job["completionMode"] == "Indexed"
    (prewarm,) = pods(plain()["prewarm-job"])["containers"]
    shards = int(prewarm["args"][prewarm["args"].index("--shard") + 1].removeprefix("auto/"))
    assert job["completions"] == job["parallelism"] == shards
    assert plain()["pod-disruption-budget"]["spec"]["minAvailable"] == shards


def test_the_example_manifest_is_one() -> None:
    document = parse_document(plain()["configuration"]["data"]["rollout.yaml"])
    assert len(document.entries) == 2
    assert document.targets


@pytest.mark.skipif("remote_tiers" not in FIELDS, reason="this daemon has no remote tiers")
def test_the_daemon_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "kaas.toml"
    file.write_text(plain()["configuration"]["data"]["kaas.toml"])
    config = load_config({}, file, {})
    assert config.monitoring_address
    assert config.remote_tiers
