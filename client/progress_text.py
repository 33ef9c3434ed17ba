"""Progress text: how far a coming kernel is, in words."""

from __future__ import annotations


def progress_text(state: str, place: int, estimate_s: float) -> str:
    """``queued, number 3, about 12 s`` or ``compiling, about 4 s``."""
    where = f", number {place}" if place else ""
    return f"{state}{where}, about {estimate_s:.0f} s"
