"""docs/benchmarks.md, made from the recorded results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.explanations import BENCHMARKS, HEAD, PROFILES
from benchmarks.outcome import Row, row_from
from benchmarks.spread import human


def page(kept: dict[str, dict[str, Any]], pictures: Path) -> str:
    """The whole page as Markdown; pictures that are not there are left out."""
    rows = [row_from(row) for one in kept.values() for row in one["rows"]]
    lines = [HEAD, "## The table", "", *_table(rows), ""]
    for name, (title, text) in BENCHMARKS.items():
        if name in kept:
            lines += [f"## {title}", "", text, "", *_section(name, kept[name], pictures)]
    if any((pictures / f"{picture}.svg").exists() for picture, *_ in PROFILES):
        lines += ["## Where the time goes", ""]
    for picture, title, text in PROFILES:
        if (pictures / f"{picture}.svg").exists():
            lines += [f"### {title}", "", f"![{title}](benchmarks/{picture}.svg)", "", text, ""]
    return "\n".join(lines).rstrip() + "\n"


def _order(row: Row) -> tuple[int, str]:
    return int("".join(filter(str.isdigit, row.number)) or 0), row.number


def _table(rows: list[Row]) -> list[str]:
    lines = ["| # | measured | against | value (target) | |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=_order):
        values = "; ".join(f"{check.what} {check.told()}" for check in row.checks)
        verdict = "PASS" if row.passed else "**FAIL**"
        lines.append(f"| {row.number} | {row.measured} | {row.against} | {values} | {verdict} |")
    return lines


def _section(name: str, one: dict[str, Any], pictures: Path) -> list[str]:
    about = one["machine"]
    lines = [
        f"{one['date']}, {about['cpu']}, {about['cores']} cores, Python {about['python']}, "
        f"load average {one['load']:g}, scale {one['scale']:g}. [Samples](benchmarks/{name}.json).",
        "",
        "| series | median | quartiles | p99 | samples |",
        "|---|---|---|---|---|",
    ]
    for series, found in one["series"].items():
        unit = found["unit"]
        low, middle, high, rare = (human(found[share], unit) for share in ("p25", "median", "p75", "p99"))
        lines.append(f"| {series} | {middle} | {low} to {high} | {rare} | {found['count']} |")
    lines.append("")
    if one["notes"]:
        lines += [*(f"- {note}" for note in one["notes"]), ""]
    if runs := _runs(one):
        lines += [*runs, ""]
    if (pictures / f"{name}.png").exists():
        lines += [f"![{name}](benchmarks/{name}.png)", "", f"([SVG](benchmarks/{name}.svg))", ""]
    return lines


def _runs(one: dict[str, Any]) -> list[str]:
    """Each ratio in the full runs that are kept, oldest first."""
    values: dict[tuple[str, str], list[str]] = {}
    for run in one.get("runs", ()):
        for ratio in run["ratios"]:
            values.setdefault((ratio["number"], ratio["what"]), []).append(f"{ratio['value']:.3g}")
    return [
        f"- Row {number}, {what}, in the last {len(found)} full runs: {', '.join(found)}."
        for (number, what), found in values.items()
        if len(found) > 1
    ]
