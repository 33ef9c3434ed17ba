"""Manifests as sets of (spec, target): joined, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kaas.client.manifest_document import ManifestDocument, ManifestEntry, ManifestTarget
from kaas.kernel_library.spec import Spec

WEIGHTS: dict[str, Callable[[float, float], float]] = {"sum": lambda a, b: a + b, "max": max}
"""How the weights of one spec in several manifests become one."""

Wanted = tuple[bytes, ManifestTarget]
"""What two entries are equal by: the spec's canonical JSON, and one target."""


class Difference(NamedTuple):
    """What one manifest has and another has not; ``reweighted`` are in both, with the other's weight."""

    added: list[tuple[Spec, ManifestTarget]]
    removed: list[tuple[Spec, ManifestTarget]]
    reweighted: list[tuple[Spec, ManifestTarget, float, float]]

    @property
    def is_empty(self) -> bool:
        """Whether both are the same set with the same weights."""
        return not (self.added or self.removed or self.reweighted)


def single_entries(
    documents: Iterable[ManifestDocument], weights: str = "sum"
) -> dict[Wanted, ManifestEntry]:
    """Each (spec, target) once, in order; weights joined, and whoever wanted it."""
    found: dict[Wanted, ManifestEntry] = {}
    for document in documents:
        for entry in document.entries:
            canonical = entry.spec.canonical()
            for target in document.targets_of(entry):
                before = found.get((canonical, target))
                one = entry._replace(targets=(target,))
                found[canonical, target] = one if before is None else _joined(before, one, weights)
    return found


def _joined(before: ManifestEntry, entry: ManifestEntry, weights: str) -> ManifestEntry:
    comments = [comment for comment in (before.comment, entry.comment) if comment]
    return before._replace(
        weight=WEIGHTS[weights](before.weight, entry.weight),
        wanted_by=tuple(dict.fromkeys((*before.wanted_by, *entry.wanted_by))),
        comment="; ".join(dict.fromkeys(comments)),
    )


def merge(documents: Sequence[ManifestDocument], weights: str = "sum") -> ManifestDocument:
    """One manifest that wants what any of them wants, each (spec, target) once."""
    gathered: dict[tuple[bytes, float, tuple[str, ...], str], list[ManifestEntry]] = {}
    for (canonical, _), entry in single_entries(documents, weights).items():
        about = (canonical, entry.weight, entry.wanted_by, entry.comment)
        gathered.setdefault(about, []).append(entry)
    entries = [
        same[0]._replace(targets=tuple(target for one in same for target in one.targets))
        for same in gathered.values()
    ]
    shared = {entry.targets for entry in entries}
    targets: tuple[ManifestTarget, ...] = ()
    if len(shared) == 1:
        # All are for the same: said once, or not at all where it is the node itself.
        common = shared.pop()
        targets = () if common == (ManifestTarget(),) else common
        entries = [entry._replace(targets=()) for entry in entries]
    return ManifestDocument(
        entries=tuple(entries),
        targets=targets,
        comment="; ".join(dict.fromkeys(document.comment for document in documents if document.comment)),
        unserved=tuple(dict.fromkeys(one for document in documents for one in document.unserved)),
    )


def difference(old: ManifestDocument, new: ManifestDocument) -> Difference:
    """What ``new`` has that ``old`` has not, and the other way about."""
    before, after = single_entries([old]), single_entries([new])
    return Difference(
        added=[(entry.spec, wanted[1]) for wanted, entry in after.items() if wanted not in before],
        removed=[(entry.spec, wanted[1]) for wanted, entry in before.items() if wanted not in after],
        reweighted=[
            (entry.spec, wanted[1], before[wanted].weight, entry.weight)
            for wanted, entry in after.items()
            if wanted in before and before[wanted].weight != entry.weight
        ],
    )
