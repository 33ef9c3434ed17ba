"""Forecast: what becomes of a store's live kernels when the part, the toolkit or kaas changes.

A kernel's key is the digest of its passport. Where all that a passport will hold is known, its new key is
computed and the answer is exact. Where one field is known to differ and others are not known, the kernel is
certain to go cold and its new key is not known. Where nothing is known, that it goes cold is an assumption.
The answer says which of the three it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kaas.client.compile_plan import CostTable
from kaas.client.live_kernels import LiveKernel, StoreContents
from kaas.kernel_library.registry import parse_spec
from kaas.proto.environment import Environment
from kaas.proto.errors import KaasError
from kaas.proto.passport import Passport, differences
from kaas.proto.target import Target

State = Literal["unchanged", "prebuilt", "cold", "unserved"]
"""The key stays; the new one is stored already; it has to be compiled; the new node cannot have it."""

Certainty = Literal["exact", "certain", "assumed"]


class Change(NamedTuple):
    """What will be different. ``environment`` is the new one where all of it is known.

    ``target`` is the part to build for instead, else each kernel's own. Without an environment,
    ``certainty`` says whether keys are known to change, and ``reason`` why. ``assumptions`` are told.
    """

    reason: str
    environment: Environment | None
    target: Target | None = None
    certainty: Certainty = "exact"
    assumptions: tuple[str, ...] = ()
    stays: bool = False
    """Without an environment: keys are taken to stay as they are."""
    toolkit: Path | None = None
    """Where a toolkit lies that makes kernels with these keys together with the kaas that runs here."""
    device_options: str = ""
    """What a daemon with that toolkit has to be told to compute the same keys."""


class Fate(NamedTuple):
    """What becomes of one kernel. ``new_key`` is empty where it is not known; ``why`` names what differs."""

    kernel: LiveKernel
    state: State
    target: Target
    new_key: str = ""
    why: str = ""
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    is_learned: bool = False
    """The family has been compiled by this store's daemons: its memory and processor time are measured."""


class Forecast(NamedTuple):
    """All fates, those that matter most first."""

    change: Change
    fates: list[Fate]

    def of(self, state: State) -> list[Fate]:
        """Those in one state."""
        return [fate for fate in self.fates if fate.state == state]


def forecast(change: Change, contents: StoreContents, costs: CostTable) -> Forecast:
    """What becomes of every live kernel; for another part, of every spec that any part has live."""
    kernels: Iterable[LiveKernel] = contents.live
    if change.target is not None:
        kernels = _by_spec(contents.live)
    fates = [_fate(change, kernel, contents.keys, costs) for kernel in kernels]
    return Forecast(change, sorted(fates, key=_order))


def totals(forecast: Forecast, workers: int) -> dict[str, Any]:
    """Counts by state, the use that goes cold, and what rebuilding takes with so many compiles at once."""
    cold = forecast.of("cold")
    cpu = sum(fate.cpu_seconds for fate in cold)
    longest = max((fate.cpu_seconds for fate in cold), default=0.0)
    peaks = sorted((fate.peak_bytes for fate in cold), reverse=True)
    hits = _hits(forecast.fates)
    return {
        "kernels": len(forecast.fates),
        **{state: len(forecast.of(state)) for state in ("unchanged", "prebuilt", "cold", "unserved")},
        "hits": hits,
        "cold_hits": _hits(cold),
        "cold_share_of_hits": None if not hits else round((_hits(cold) or 0) / hits, 4),
        "cpu_minutes": round(cpu / 60, 3),
        "wall_minutes": round(max(cpu / workers, longest) / 60, 3),
        "workers": workers,
        "peak_bytes_of_one": peaks[0] if peaks else 0,
        "peak_bytes_at_once": sum(peaks[:workers]),
    }


def _hits(fates: Sequence[Fate]) -> int | None:
    if any(fate.kernel.use is None for fate in fates):
        return None
    return sum(fate.kernel.use.hits for fate in fates if fate.kernel.use)


def _order(fate: Fate) -> tuple[Any, ...]:
    use = fate.kernel.use
    worth = (-use.pinned, -use.leases, -use.hits) if use else (0, 0, 0)
    return (*worth, -fate.cpu_seconds, fate.kernel.key)


def _by_spec(kernels: Iterable[LiveKernel]) -> list[LiveKernel]:
    """Each spec once, the use of all its parts' kernels added up."""
    from kaas.client.live_kernels import Use
    from kaas.proto.canonical import canonical_json

    found: dict[bytes, LiveKernel] = {}
    for kernel in kernels:
        spec = canonical_json(kernel.passport.spec)
        before = found.get(spec)
        if before is None:
            found[spec] = kernel
        elif before.use is not None and kernel.use is not None:
            joined = Use(
                before.use.hits + kernel.use.hits,
                before.use.leases + kernel.use.leases,
                before.use.pinned or kernel.use.pinned,
            )
            found[spec] = before._replace(use=joined)
    return list(found.values())


def _fate(change: Change, kernel: LiveKernel, stored: frozenset[str], costs: CostTable) -> Fate:
    target = _target(change, kernel.passport)
    if change.environment is None:
        return _unknown(change, kernel, target, costs)
    try:
        parse_spec(kernel.passport.spec).check_target(target)
        passport = change.environment.passport(kernel.passport.spec, target)
    except KaasError as error:
        return Fate(kernel, "unserved", target, why=error.message)
    key = passport.key()
    if key == kernel.key:
        return Fate(kernel, "unchanged", target, key)
    why = ", ".join(difference.path for difference in differences(passport, kernel.passport))
    if key in stored:
        return Fate(kernel, "prebuilt", target, key, why)
    return _cold(kernel, target, key, why, costs)


def _unknown(change: Change, kernel: LiveKernel, target: Target, costs: CostTable) -> Fate:
    if change.target is not None and target != kernel.passport.target:
        try:
            parse_spec(kernel.passport.spec).check_target(target)
        except KaasError as error:
            return Fate(kernel, "unserved", target, why=error.message)
    elif change.stays:
        return Fate(kernel, "unchanged", target, kernel.key)
    return _cold(kernel, target, "", change.reason, costs)


def _cold(kernel: LiveKernel, target: Target, key: str, why: str, costs: CostTable) -> Fate:
    wall = kernel.compile_seconds or costs.seconds(kernel.family)
    # Its own compile may have waited for a processor; how much of such time is work, the family's tell.
    share = costs.cpu_seconds(kernel.family) / costs.seconds(kernel.family)
    peak, is_learned = costs.peak_bytes(kernel.family), costs.is_learned(kernel.family)
    return Fate(kernel, "cold", target, key, why, wall * share, peak, is_learned)


def _target(change: Change, passport: Passport) -> Target:
    if change.target is not None:
        return change.target
    if change.environment is not None and change.environment.target.soc_name == passport.target.soc_name:
        return change.environment.target
    return passport.target


def record_of(forecast: Forecast, contents: StoreContents, workers: int) -> dict[str, Any]:
    """A forecast as plain values."""
    change = forecast.change
    return {
        "change": change.reason,
        "certainty": change.certainty,
        "assumptions": list(change.assumptions),
        "use_is_known": contents.asked_daemon,
        "stale": contents.stale,
        "damaged": contents.damaged,
        "families_without_history": sorted(
            {fate.kernel.family for fate in forecast.of("cold") if not fate.is_learned}
        ),
        "totals": totals(forecast, workers),
        "kernels": [_fate_record(fate) for fate in forecast.fates],
    }


def _fate_record(fate: Fate) -> dict[str, Any]:
    use = fate.kernel.use
    return {
        "key": fate.kernel.key,
        "family": fate.kernel.family,
        "spec": fate.kernel.passport.spec,
        "soc_name": fate.target.soc_name,
        "state": fate.state,
        "new_key": fate.new_key or None,
        "why": fate.why,
        "hits": use.hits if use else None,
        "leases": use.leases if use else None,
        "pinned": use.pinned if use else None,
        "compile_seconds": round(fate.kernel.compile_seconds, 3),
        "cpu_seconds": round(fate.cpu_seconds, 3),
        "peak_bytes": fate.peak_bytes,
    }
