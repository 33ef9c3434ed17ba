"""Records of many processes, read and merged into what a job needed: a manifest, or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kaas.client.manifest_document import ManifestDocument, ManifestEntry, ManifestTarget, Unserved
from kaas.client.manifest_sets import merge
from kaas.client.process_record import SUFFIX, VERSION, ProcessRecord
from kaas.proto.errors import InvalidRequest, KaasError

if TYPE_CHECKING:
    from kaas.kernel_library.spec import KernelSpec

MAX_FILE_BYTES = 64 << 20
LEAST_WEIGHT_S = 0.001
"""Weight by waiting of a kernel that nobody waited for: a manifest's weights are above 0."""

WEIGHTS = ("count", "wait")


class Skipped(NamedTuple):
    """A file that is no record, and why."""

    path: Path
    reason: str


class Wanted:
    """One spec for one target, as all processes asked for it together."""

    def __init__(self, spec_json: bytes, target: ManifestTarget) -> None:
        self.spec_json = spec_json
        self.target = target
        self.count = 0
        self.waited_s = 0.0
        self.outcomes: Counter[str] = Counter()
        self.processes: dict[str, Counter[str]] = {}
        """By job, how many processes of each rank; empty where no launcher said."""

    def add(self, count: int, waited_s: float, outcomes: dict[str, int], job: str, rank: str) -> None:
        """One process's share."""
        self.count += count
        self.waited_s += waited_s
        self.outcomes.update(outcomes)
        self.processes.setdefault(job, Counter())[rank] += 1

    def wanted_by(self) -> tuple[str, ...]:
        """Jobs with their ranks, such as ``job 4711: ranks 0-7``."""
        return tuple(_job_text(job, ranks) for job, ranks in sorted(self.processes.items()))


def read_records(places: Iterable[Path]) -> tuple[list[ProcessRecord], list[Skipped]]:
    """The records in directories and files, and what could not be read.

    Raises :class:`InvalidRequest` when a place does not exist, or nothing is a record.
    """
    records: list[ProcessRecord] = []
    skipped: list[Skipped] = []
    listed = list(places)
    for place in listed:
        for path in _files_in(place):
            try:
                records.append(_read(path))
            except (OSError, ValueError) as error:  # msgspec's own errors are ValueErrors
                skipped.append(Skipped(path, getattr(error, "strerror", None) or str(error)))
    if not records:
        shown = ", ".join(map(str, listed))[:200]
        why = f"; {skipped[0].path.name}: {skipped[0].reason}" if skipped else ""
        raise InvalidRequest(
            f"no record is in {shown}{why}",
            hint="processes write them with KAAS_RECORD=DIRECTORY",
            field="places",
            legal=f"directories or files whose names end in {SUFFIX}",
        )
    return records, skipped


def _files_in(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(path for path in place.glob(f"*{SUFFIX}") if not path.name.startswith("."))
    if not place.exists():
        raise InvalidRequest(f"{place} does not exist", field="places", legal="directories or files")
    return [place]


def _read(path: Path) -> ProcessRecord:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
    record = msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
    if record.version != VERSION:
        raise ValueError(f"version {record.version}; this kaas reads {VERSION}")
    return record


def merged(records: Iterable[ProcessRecord]) -> list[Wanted]:
    """Each (spec, target) once, what was asked for most often first."""
    found: dict[tuple[bytes, ManifestTarget], Wanted] = {}
    for record in records:
        for kernel in record.kernels:
            target = ManifestTarget(kernel.soc_name or record.soc_name, record.cann_version)
            spec_json = bytes(kernel.spec)
            wanted = found.get((spec_json, target))
            if wanted is None:
                wanted = found[spec_json, target] = Wanted(spec_json, target)
            wanted.add(kernel.count, kernel.waited_s, kernel.outcomes, record.job, record.rank)
    return sorted(found.values(), key=lambda one: (-one.count, one.spec_json))


def manifest_of(
    wanted: Sequence[Wanted], *, weights: str = "count", targets: bool = True, comment: str = ""
) -> ManifestDocument:
    """A manifest of what was asked for, the weightiest first; what this kaas has no family for is unserved.

    Raises :class:`InvalidRequest` when nothing is left.
    """
    from kaas.kernel_library.registry import parse_spec

    entries: list[ManifestEntry] = []
    unserved: list[Unserved] = []
    for one in wanted:
        by = one.wanted_by()
        try:
            spec: KernelSpec = parse_spec(one.spec_json)
        except KaasError as error:
            needs = one.spec_json.decode("utf-8", "replace")[:500]
            unserved += [Unserved(wanted_by=text, needs=needs, reason=error.message) for text in by]
            continue
        weight = float(one.count) if weights == "count" else max(round(one.waited_s, 3), LEAST_WEIGHT_S)
        own = (one.target,) if targets and one.target != ManifestTarget() else ()
        entries.append(ManifestEntry(spec, weight, by, "", own))
    if not entries:
        raise InvalidRequest(
            "no kernel was recorded that this kaas has a family for", field="places", legal="other records"
        )
    document = merge([ManifestDocument(tuple(entries), comment=comment, unserved=tuple(unserved))])
    by_weight = sorted(document.entries, key=lambda entry: -entry.weight)
    return document._replace(entries=tuple(by_weight))


def _job_text(job: str, ranks: Counter[str]) -> str:
    named = [rank for rank in ranks if rank]
    if named:
        numbers = sorted(int(rank) for rank in named if rank.isdecimal())
        texts = [*_ranges(numbers), *sorted(rank for rank in named if not rank.isdecimal())]
        who = f"rank{'s' if len(named) > 1 else ''} {','.join(texts)}"
    else:
        count = ranks.total()
        who = f"{count} process{'es' if count > 1 else ''}"
    return f"job {job}: {who}" if job else who


def _ranges(numbers: Sequence[int]) -> list[str]:
    """``0-7`` for numbers that follow each other."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number <= found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}-{last}" if last > first else str(first) for first, last in found]
