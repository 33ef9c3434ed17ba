"""Alert rules and dashboard: legal PromQL, and each alert says what it means."""

from __future__ import annotations

import re

import pytest
from support.monitoring_files import dashboard, dashboard_expressions, rule_expressions, rules

promql = pytest.importorskip("promql_parser")


@pytest.mark.parametrize("expression", [*rule_expressions(), *dashboard_expressions()])
def test_every_expression_is_legal(expression: str) -> None:
    assert promql.parse(expression)


def test_a_wrong_expression_is_caught() -> None:
    for wrong in ("sum(kaas_ready", "increase(kaas_requests_total)", "rate(kaas_ready[5m"):
        with pytest.raises(ValueError, match=r"\S"):
            promql.parse(wrong)


def test_every_alert_has_a_severity_and_a_summary() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 5
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))


def test_panels_lie_beside_each_other_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
