"""What compiles will cost: learned by a daemon where it has compiled, else estimates that come with kaas."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kaas.kernel_library.compile_estimates import COMPILE_SECONDS, PEAK_BYTES, TYPICAL_SECONDS
from kaas.proto.compile_cost import COSTS_FILE, FamilyCost
from kaas.proto.errors import InvalidRequest

VERSION = 1
MAX_FILE_BYTES = 4 << 20


class CostTable(NamedTuple):
    """Costs by family. ``scale`` is how much longer a compile takes here than where estimates come from."""

    families: Mapping[str, FamilyCost] = {}
    scale: float = 1.0

    def seconds(self, family: str) -> float:
        """Wall time of one compile."""
        known = self.families.get(family)
        return known.seconds if known else self.scale * COMPILE_SECONDS.get(family, TYPICAL_SECONDS)

    def cpu_seconds(self, family: str) -> float:
        """Processor time of one compile; where it was not measured, its wall time: a compile is one thread
        most of the time."""
        known = self.families.get(family)
        return known.cpu_seconds if known and known.cpu_seconds else self.seconds(family)

    def peak_bytes(self, family: str) -> int:
        """Memory that one compile takes at most."""
        known = self.families.get(family)
        return known.peak_bytes if known and known.peak_bytes else PEAK_BYTES

    def is_learned(self, family: str) -> bool:
        """Whether a daemon has compiled the family; else its figures are estimates."""
        return family in self.families


def cost_table(families: Mapping[str, FamilyCost]) -> CostTable:
    """A table of what was learned; estimates of other families are scaled by how those known compare."""
    known = {name: cost for name, cost in families.items() if cost.seconds > 0}
    ratios = [cost.seconds / COMPILE_SECONDS[name] for name, cost in known.items() if name in COMPILE_SECONDS]
    return CostTable(known, statistics.median(ratios) if ratios else 1.0)


def learned_costs(store: Path) -> CostTable:
    """What the daemons of a store have learned; estimates alone where nothing can be read."""
    try:
        content = (store / COSTS_FILE).read_bytes()
        return cost_table(msgspec.json.decode(content, type=dict[str, FamilyCost]))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return CostTable()


def costs_record(table: CostTable) -> dict[str, Any]:
    """A table as plain values, to be read by :func:`read_costs`; figures are rounded."""
    families = {
        name: {
            "seconds": round(cost.seconds, 3),
            "cpu_seconds": round(cost.cpu_seconds, 3),
            "peak_bytes": cost.peak_bytes,
            "least_bytes": cost.least_bytes,
            "compiles": cost.compiles,
        }
        for name, cost in sorted(table.families.items())
    }
    return {"version": VERSION, "families": families}


class _CostsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    families: dict[str, FamilyCost]


def read_costs(path: Path) -> CostTable:
    """A file of costs, as ``kaas manifest costs`` writes it. Raises :class:`InvalidRequest`."""
    legal = "a file that `kaas manifest costs` wrote"
    try:
        content = path.read_bytes()[: MAX_FILE_BYTES + 1]
        if len(content) > MAX_FILE_BYTES:
            raise InvalidRequest(f"{path} is larger than {MAX_FILE_BYTES} bytes", field="costs", legal=legal)
        file = msgspec.json.decode(content, type=_CostsFile)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", field="costs", legal=legal) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}", field="costs", legal=legal) from None
    if file.version != VERSION:
        raise InvalidRequest(f"{path} has version {file.version}", field="costs", legal=[VERSION])
    for name, cost in file.families.items():
        if not 0 <= cost.seconds <= 1e6 or not 0 <= cost.cpu_seconds <= 1e6:
            raise InvalidRequest(
                f"{path}: {name} takes {cost.seconds} s", field="costs", legal="seconds from 0 to 1e6"
            )
    return cost_table(file.families)
