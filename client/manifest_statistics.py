"""A manifest in numbers: entries, kernels and weight, by family and by target."""

from __future__ import annotations

from typing import Any

from kaas.client.manifest_document import ManifestDocument


def statistics(document: ManifestDocument) -> dict[str, Any]:
    """Counts; a kernel is one (spec, target), counted once, and composites count by their stages.

    An entry's weight counts for each of its targets, and a composite's for each of its stages.
    """
    kernels: dict[tuple[bytes, str, str], str] = {}
    weight: dict[str, float] = {}
    by_target: dict[str, int] = {}
    composites = 0
    for entry in document.entries:
        composites += entry.kernels() != (entry.spec,)
        for target in document.targets_of(entry):
            for kernel in entry.kernels():
                weight[kernel.family] = weight.get(kernel.family, 0.0) + entry.weight
                wanted = (kernel.canonical(), *target)
                if wanted not in kernels:
                    kernels[wanted] = kernel.family
                    place = target_text(*target)
                    by_target[place] = by_target.get(place, 0) + 1
    families = sorted(weight, key=lambda family: (-weight[family], family))
    counts = list(kernels.values())
    return {
        "version": document.version,
        "entries": len(document.entries),
        "composites": composites,
        "kernels": len(kernels),
        "weight": sum(weight.values()),
        "families": {name: {"kernels": counts.count(name), "weight": weight[name]} for name in families},
        "targets": by_target,
        "unserved": len(document.unserved),
    }


def target_text(soc_name: str, cann: str) -> str:
    """A target in words."""
    return " ".join(word for word in (soc_name, f"CANN {cann}" if cann else "") if word) or "this node"
