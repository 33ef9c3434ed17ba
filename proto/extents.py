"""Extents: dimensions of launch arguments, some of them known only at launch.

An extent is a constant, the name of a dynamic symbol, or a formula of one symbol: ``ceil(k/64)`` or
``tokens*8``. Formulas are checked at launch, never solved: their symbol must stand alone in some other shape.
"""

from __future__ import annotations

import re

import msgspec

Extent = int | str

# Compiled when the first formula is met, by re itself: most kernels have none.
_FORMULA = r"(?:ceil\((?P<divided>\w+)/(?P<divisor>[1-9]\d*)\)|(?P<scaled>\w+)\*(?P<factor>[1-9]\d*))"


class Formula(msgspec.Struct, frozen=True):
    """``ceil(symbol * factor / divisor)``; one of the two numbers is 1."""

    symbol: str
    factor: int
    divisor: int

    def value(self, extent: int) -> int:
        """The extent that follows when the symbol is bound to ``extent``."""
        return -(-extent * self.factor // self.divisor)


def formula_of(extent: str) -> Formula | None:
    """The formula that ``extent`` spells, or ``None`` for a plain symbol.

    Raises :class:`ValueError` for text that is neither.
    """
    if extent.isidentifier():
        return None
    match = re.fullmatch(_FORMULA, extent)
    if match is None:
        raise ValueError(f"{extent!r} is neither a symbol nor ceil(symbol/number) nor symbol*number")
    if match["scaled"]:
        return Formula(match["scaled"], int(match["factor"]), 1)
    return Formula(match["divided"], 1, int(match["divisor"]))


def divided(extent: Extent, divisor: int) -> Extent:
    """``extent`` / ``divisor``, rounded up."""
    return -(-extent // divisor) if isinstance(extent, int) else f"ceil({extent}/{divisor})"


def scaled(extent: Extent, factor: int) -> Extent:
    """``extent`` * ``factor``."""
    return extent * factor if isinstance(extent, int) else f"{extent}*{factor}"
