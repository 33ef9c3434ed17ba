"""What the shipped alert rules and the dashboard ask of Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "kaas-rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DEPLOY / "grafana" / "kaas-dashboard.json").read_text()))


def rule_expressions() -> list[str]:
    return [rule["expr"] for rule in rules()]


def dashboard_expressions() -> list[str]:
    """Of all panels, with a value for the dashboard's variable."""
    return [
        target["expr"].replace("$instance", ".*")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def metric_names() -> set[str]:
    """Names of kaas's own metrics in rules and dashboard."""
    return {
        name
        for expression in (
            *rule_expressions(),
            *dashboard_expressions(),
            json.dumps(dashboard()["templating"]),
        )
        for name in re.findall(r"\bkaas_\w+", expression)
    }


def label_names() -> dict[str, set[str]]:
    """Labels that a selector of each metric names, beside those that Prometheus adds."""
    found: dict[str, set[str]] = {}
    for expression in (*rule_expressions(), *dashboard_expressions()):
        for name, selector in re.findall(r"\b(kaas_\w+)\{([^}]*)\}", expression):
            found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]~?=?", selector))
    return {name: labels - {"instance", "job"} for name, labels in found.items()}
