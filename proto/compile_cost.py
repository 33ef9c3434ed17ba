"""What compiles of one family need: learned by a daemon, kept in its store, read by whoever plans work."""

from __future__ import annotations

import msgspec

COSTS_FILE = "compile-costs.json"
"""Name of the file in a store's root: a JSON object of :class:`FamilyCost` by family."""


class FamilyCost(msgspec.Struct, frozen=True, kw_only=True):
    """``peak_bytes``: high-water mark of one compile's processes, slowly forgotten; ``least_bytes``: the
    smallest peak that a finished compile had; ``seconds``: its usual wall time; ``cpu_seconds``: the
    processor time of all its processes, 0 where that was not measured."""

    peak_bytes: int
    least_bytes: int
    seconds: float
    compiles: int
    cpu_seconds: float = 0.0
