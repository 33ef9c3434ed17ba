"""A flame graph as SVG: folded stacks in, one picture out, readable without any script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

WIDTH, ROW, TOP = 1200, 17, 44
CHARACTER = 6.6
"""Width of a letter of the font, about."""

LEAST = 0.002
"""Share of all samples below which a frame is not drawn."""

_HUES = (18, 28, 38, 46)


@dataclass
class _Frame:
    count: int = 0
    children: dict[str, _Frame] = field(default_factory=dict)


def flame_graph(folded: Mapping[tuple[str, ...], int], title: str) -> str:
    """The SVG; every frame's tooltip tells its samples and its share."""
    root = _Frame()
    for stack, count in folded.items():
        frame = root
        frame.count += count
        for name in stack:
            frame = frame.children.setdefault(name, _Frame())
            frame.count += count
    depth = _depth(root, LEAST * root.count)
    height = TOP + depth * ROW + 8
    boxes: list[str] = []
    _boxes(root, 0.0, 0, root.count, boxes)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="monospace" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="8" y="18" font-size="14">{escape(title)}</text>',
            f'<text x="8" y="35" fill="#555">{root.count} samples; width is share of time, callees are below '
            "their callers; hover for shares</text>",
            *boxes,
            "</svg>",
            "",
        ]
    )


def _depth(frame: _Frame, least: float) -> int:
    return max(
        (1 + _depth(child, least) for child in frame.children.values() if child.count >= least), default=0
    )


def _boxes(frame: _Frame, x: float, level: int, total: int, boxes: list[str]) -> None:
    for name, child in sorted(frame.children.items(), key=lambda item: -item[1].count):
        width = WIDTH * child.count / total
        if child.count >= LEAST * total:
            y = TOP + level * ROW
            share = 100 * child.count / total
            hue = _HUES[sum(map(ord, name)) % len(_HUES)]
            shown = name[: int((width - 6) / CHARACTER)] if width > 5 * CHARACTER else ""
            boxes.append(
                f"<g><title>{escape(name)}: {child.count} samples, {share:.1f} %</title>"
                f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.3):.1f}" height="{ROW - 1}" '
                f'fill="hsl({hue},75%,72%)"/>'
                + (f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(shown)}</text>' if shown else "")
                + "</g>"
            )
            _boxes(child, x, level + 1, total, boxes)
        x += width
