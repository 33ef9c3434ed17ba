"""Sharding: a manifest's kernels shared among builders that do not talk to each other.

Each builder computes the whole split and takes its own part. It follows from the manifest, the number of
shards and the costs that were given: never from the node, its store or the time. Every kernel has an order of
shards of its own, taken from its spec's digest, and goes to the first of them that still has room; what fits
nowhere goes where there is least. So shards are even to within a slack, and a kernel more or less moves few
others.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kaas.proto.errors import InvalidRequest

if TYPE_CHECKING:
    from kaas.client.compile_plan import CostTable
    from kaas.client.manifest import Entry

MAX_SHARDS = 100_000
COUNT_VARIABLE = "KAAS_SHARD_COUNT"
_LEGAL = "I/N with I from 0 to N-1, auto, or auto/N"

_SLACK = 0.08
"""How far above the mean a shard may be filled before the next one is asked."""

_GRID = 1.02
"""The limit is rounded up to a power of this, so that most changes of a manifest leave it alone."""


class Shard(NamedTuple):
    """One of ``of`` parts, numbered from 0."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """``I/N``; ``auto`` and ``auto/N`` take the index, and ``auto`` the count, from the job's environment.

    Kubernetes sets JOB_COMPLETION_INDEX but no count: KAAS_SHARD_COUNT or ``auto/N`` says it. Slurm sets
    SLURM_ARRAY_TASK_ID, _MIN, _MAX, _STEP and _COUNT. Raises :class:`InvalidRequest`.
    """
    if match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text):
        return _checked(Shard(int(match.group(1)), int(match.group(2))), text)
    match = re.fullmatch(r"auto(?:/(\d{1,6}))?", text)
    if match is None:
        raise InvalidRequest(f"shard is {text[:80]!r}", field="shard", legal=_LEGAL)
    said = match.group(1) or environ.get(COUNT_VARIABLE)
    if "JOB_COMPLETION_INDEX" in environ:
        if said is None:
            raise InvalidRequest(
                "JOB_COMPLETION_INDEX says which shard this is, and nothing how many there are",
                field="shard",
                legal=f"auto/N, or {COUNT_VARIABLE} set to the job's completions",
            )
        index = _number("JOB_COMPLETION_INDEX", environ)
        return _checked(Shard(index, _count(said)), "JOB_COMPLETION_INDEX")
    if "SLURM_ARRAY_TASK_ID" in environ:
        first = _number("SLURM_ARRAY_TASK_MIN", environ, 0)
        step = _number("SLURM_ARRAY_TASK_STEP", environ, 1) or 1
        count = _number("SLURM_ARRAY_TASK_COUNT", environ) if said is None else _count(said)
        offset = _number("SLURM_ARRAY_TASK_ID", environ) - first
        if offset % step:
            raise InvalidRequest(
                "the tasks of this array are not evenly numbered", field="shard", legal="I/N in place of auto"
            )
        return _checked(Shard(offset // step, count), "SLURM_ARRAY_TASK_ID")
    raise InvalidRequest(
        "neither JOB_COMPLETION_INDEX nor SLURM_ARRAY_TASK_ID is set", field="shard", legal="I/N"
    )


def _number(name: str, environ: Mapping[str, str], otherwise: int | None = None) -> int:
    value = environ.get(name, "" if otherwise is None else str(otherwise))
    if not re.fullmatch(r"\d{1,9}", value):
        raise InvalidRequest(f"{name} is {value[:80]!r}", field=name, legal="a number from 0")
    return int(value)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise InvalidRequest(
            f"the number of shards is {text[:80]!r}", field="shard", legal=f"1 to {MAX_SHARDS}"
        )
    return int(text)


def _checked(shard: Shard, origin: str) -> Shard:
    if not 1 <= shard.of <= MAX_SHARDS:
        raise InvalidRequest(f"{origin}: {shard.of} shards", field="shard", legal=f"1 to {MAX_SHARDS} shards")
    if shard.number >= shard.of:
        raise InvalidRequest(
            f"{origin}: there is no shard {shard.number} of {shard.of}",
            field="shard",
            legal=f"0 to {shard.of - 1}",
        )
    return shard


def split(entries: Sequence[Entry], count: int, costs: CostTable) -> list[list[int]]:
    """For each shard the positions of its entries, in the manifest's order; each entry is in exactly one.

    Entries that may be one kernel (the same spec for the same target, or for a target that only the node
    knows) stay together, so that no two shards compile it. Entries for several CANN versions are split
    version by version, since a builder has one of them.
    """
    layers: dict[str, list[_Unit]] = {}
    for unit in _units(entries, costs):
        layers.setdefault(unit.cann, []).append(unit)
    shards: list[list[int]] = [[] for _ in range(count)]
    for cann in sorted(layers):
        _fill(shards, layers[cann])
    return [sorted(positions) for positions in shards]


class _Unit(NamedTuple):
    """Entries that go to one shard together; ``cost`` is in milliseconds, so that sums are exact."""

    digest: bytes
    cann: str
    cost: int
    positions: list[int]


def _units(entries: Sequence[Entry], costs: CostTable) -> list[_Unit]:
    by_spec: dict[bytes, list[int]] = {}
    for position, entry in enumerate(entries):
        by_spec.setdefault(entry.spec.canonical(), []).append(position)
    units = []
    for canonical, positions in by_spec.items():
        cost = max(1, round(1000 * costs.seconds(entries[positions[0]].spec.family)))
        by_target: dict[tuple[str, str], list[int]] = {}
        for position in positions:
            entry = entries[position]
            by_target.setdefault((entry.soc_name.casefold(), entry.cann), []).append(position)
        vague = [target for target in by_target if not all(target)]
        if vague and len(by_target) > 1:
            # An empty field may turn out to mean what another one names.
            together = [position for some in by_target.values() for position in some]
            shared = {cann for _, cann in by_target}
            cann = shared.pop() if len(shared) == 1 else ""
            units.append(_Unit(_digest(canonical), cann, cost * len(by_target), together))
            continue
        for (soc_name, cann), same in by_target.items():
            name = canonical + f"\0{soc_name}\0{cann}".encode()
            units.append(_Unit(_digest(name), cann, cost, same))
    return units


def _digest(name: bytes) -> bytes:
    return hashlib.sha256(name).digest()


def _fill(shards: list[list[int]], units: Sequence[_Unit]) -> None:
    """Give each unit to a shard."""
    count = len(shards)
    loads = [0] * count
    limit = _limit(sum(unit.cost for unit in units), count)
    # The dearest first, while there is room everywhere; the small ones level out what is left.
    for unit in sorted(units, key=lambda unit: (-unit.cost, unit.digest)):
        chosen = _first_with_room(unit, loads, limit)
        loads[chosen] += unit.cost
        shards[chosen] += unit.positions


def _limit(total: int, count: int) -> float:
    mean = total / count * (1 + _SLACK)
    return _GRID ** math.ceil(math.log(max(mean, 1.0), _GRID))


def _first_with_room(unit: _Unit, loads: Sequence[int], limit: float) -> int:
    count = len(loads)
    start = int.from_bytes(unit.digest[:8], "big") % count
    step = int.from_bytes(unit.digest[8:16], "big") % count or 1
    while math.gcd(step, count) > 1:
        step += 1  # so that every shard is met once
    order = [(start + turn * step) % count for turn in range(count)]
    for shard in order:
        if loads[shard] + unit.cost <= limit:
            return shard
    return min(order, key=lambda shard: loads[shard])
