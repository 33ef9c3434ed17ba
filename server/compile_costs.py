"""Compile costs: what compiles of a family needed so far, for admission and for estimates.

Learned from every compile, kept over restarts in the store's root; a lost file costs first guesses only.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kaas.proto.compile_cost import COSTS_FILE, FamilyCost
from kaas.server.state_file import StateFile

FILE_NAME = COSTS_FILE
MAX_FAMILIES = 512
FIRST_GUESS_S = 10.0
"""Seconds of a compile before anything was learned."""

_FORGETTING = 0.1
"""How much of the way to a smaller peak one compile goes: a large one is remembered for about twenty."""

_SMOOTHING = 0.3


class CompileCosts:
    """Costs by family; those of families that were compiled longest ago are dropped beyond a bound."""

    def __init__(
        self,
        file: StateFile[dict[str, FamilyCost]] | None = None,
        *,
        first_guess_bytes: int,
        limit_bytes: int,
    ) -> None:
        """No compile may hold more than ``limit_bytes``, so nothing larger is expected."""
        self._file = file
        self._first_guess_bytes = min(first_guess_bytes, limit_bytes)
        self._limit_bytes = limit_bytes
        stored = (file.read() if file else None) or {}
        self._families = dict(list(stored.items())[-MAX_FAMILIES:])

    @classmethod
    def in_store(cls, root: Path, staging: Path, *, first_guess_bytes: int, limit_bytes: int) -> CompileCosts:
        """Those learned by the daemons that served this store before."""
        file = StateFile(root / FILE_NAME, staging, dict[str, FamilyCost])
        return cls(file, first_guess_bytes=first_guess_bytes, limit_bytes=limit_bytes)

    def peak_bytes(self, family: str) -> int:
        """What to set aside for one compile."""
        known = self._families.get(family)
        return min(known.peak_bytes, self._limit_bytes) if known else self._first_guess_bytes

    def least_bytes(self, family: str) -> int:
        """What a compile certainly needs; 0 when none has finished yet."""
        known = self._families.get(family)
        return known.least_bytes if known else 0

    def seconds(self, family: str) -> float:
        """How long one compile takes, as far as can be told."""
        known = self._families.get(family)
        if known and known.seconds > 0:
            return known.seconds
        others = [cost.seconds for cost in self._families.values() if cost.seconds > 0]
        return sum(others) / len(others) if others else FIRST_GUESS_S

    def learn(self, family: str, *, peak_bytes: int, seconds: float, cpu_seconds: float = 0.0) -> None:
        """A compile has finished; ``cpu_seconds`` is 0 where nobody measured it."""
        known = self._families.pop(family, None)
        if known is None:
            cost = FamilyCost(
                peak_bytes=peak_bytes,
                least_bytes=peak_bytes,
                seconds=seconds,
                compiles=1,
                cpu_seconds=cpu_seconds,
            )
        else:
            faded = known.peak_bytes - int(_FORGETTING * (known.peak_bytes - peak_bytes))
            cost = FamilyCost(
                peak_bytes=max(peak_bytes, faded),
                least_bytes=min(peak_bytes, known.least_bytes) if known.least_bytes else peak_bytes,
                seconds=_smoothed(known.seconds, seconds),
                compiles=known.compiles + 1,
                cpu_seconds=_smoothed(known.cpu_seconds, cpu_seconds),
            )
        self._keep(family, cost)

    def learn_shortage(self, family: str) -> None:
        """A compile was killed at its memory limit: the next ones are expected to come as far."""
        known = self._families.pop(family, None) or FamilyCost(
            peak_bytes=0, least_bytes=0, seconds=0.0, compiles=0
        )
        self._keep(family, msgspec.structs.replace(known, peak_bytes=self._limit_bytes))

    def close(self) -> None:
        """Finish the last write."""
        if self._file is not None:
            self._file.close()

    def _keep(self, family: str, cost: FamilyCost) -> None:
        self._families[family] = cost
        while len(self._families) > MAX_FAMILIES:
            del self._families[next(iter(self._families))]
        if self._file is not None:
            snapshot = dict(self._families)
            self._file.save(lambda: snapshot)


def _smoothed(known: float, new: float) -> float:
    """A usual value after one more; 0 stands for not known."""
    return known + _SMOOTHING * (new - known) if known and new else known or new
