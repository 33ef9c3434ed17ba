"""Effort: how often things are repeated, from a glance to a full run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """``scale`` 1 is the full run; ``seed`` decides every order that is drawn."""

    scale: float = 1.0
    seed: int = 3510

    def times(self, full: int, least: int = 1) -> int:
        """How many repetitions, of ``full`` at scale 1."""
        return max(least, round(full * self.scale))
