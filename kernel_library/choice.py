"""Choice: the best of some candidates, with the runners-up and the reasons, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

RUNNERS_UP = 3


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A feasible tiling with its modelled time on the target.

    ``cycles`` is a model's estimate, not a measurement; ``bound`` names what the model says limits it.
    """

    tiles: dict[str, int]
    cycles: float
    bound: str


class TooLarge(msgspec.Struct, frozen=True, kw_only=True):
    """A tiling that does not fit: which buffer it exceeds, and by how many bytes."""

    tiles: dict[str, int]
    buffer: str
    excess_bytes: int


def report(
    chosen: Candidate,
    candidates: Sequence[Candidate],
    too_large: Sequence[TooLarge] = (),
    *,
    given: bool = False,
) -> dict[str, Any]:
    """The JSON-able ``why`` of a choice; ``given`` when the spec itself fixed the tiling."""
    ranked = sorted((one for one in candidates if one.tiles != chosen.tiles), key=lambda one: one.cycles)
    if given:
        reason = "given by the spec"
    else:
        reason = f"least modelled time of {len(candidates)} that fit; bound by {chosen.bound}"
    nearest = sorted(too_large, key=lambda one: one.excess_bytes)
    return {
        "reason": reason,
        "modelled_cycles": round(chosen.cycles),
        "bound": chosen.bound,
        "runners_up": [
            {
                **one.tiles,
                "modelled_cycles": round(one.cycles),
                "bound": one.bound,
                "slower": f"{one.cycles / chosen.cycles - 1:+.1%}",
            }
            for one in ranked[:RUNNERS_UP]
        ],
        "too_large": [
            {**one.tiles, "buffer": one.buffer, "excess_bytes": one.excess_bytes}
            for one in nearest[:RUNNERS_UP]
        ],
    }


def only_one(reason: str) -> dict[str, Any]:
    """The JSON-able ``why`` of a kernel whose tiling its algorithm fixes; ``reason`` says by what."""
    return {"reason": reason, "runners_up": [], "too_large": []}
