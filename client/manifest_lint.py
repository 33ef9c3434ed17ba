"""What is wrong, or odd, in a manifest: every faulty entry at once, and what is said twice."""

from __future__ import annotations

from typing import NamedTuple

from kaas.client.manifest_document import ManifestTarget, parse_document
from kaas.proto.errors import InvalidManifest


class Finding(NamedTuple):
    """One thing to mend. ``severity`` is error (the manifest is refused) or warning."""

    line: int
    severity: str
    message: str


def lint(text: str, name: str) -> list[Finding]:
    """Everything that is wrong or odd, by line."""
    faults: list[InvalidManifest] = []
    try:
        document = parse_document(text, name, faults)
    except InvalidManifest as fault:
        return [Finding(int(fault.details.get("line", 1)), "error", fault.message)]
    findings = [Finding(int(fault.details["line"]), "error", fault.message) for fault in faults]
    seen: dict[tuple[bytes, ManifestTarget], tuple[int, str]] = {}
    for entry in document.entries:
        kernels = entry.kernels()
        is_composite = kernels != (entry.spec,)
        for target in document.targets_of(entry):
            for kernel in kernels:
                wanted = (kernel.canonical(), target)
                what = f"a stage of {entry.spec.family}" if is_composite else "here"
                if wanted in seen:
                    line, before = seen[wanted]
                    there = "" if before == "here" else f" as {before}"
                    message = f"{kernel.family} is there twice: first in line {line}{there}"
                    findings.append(Finding(entry.line, "warning", message))
                else:
                    seen[wanted] = (entry.line, what)
    named = [target for entry in document.entries for target in document.targets_of(entry)]
    if any(target.soc_name for target in named) and not all(target.soc_name for target in named):
        line = next(
            entry.line
            for entry in document.entries
            if not all(target.soc_name for target in document.targets_of(entry))
        )
        message = "this entry names no soc_name, others do: it is for whatever node reads it"
        findings.append(Finding(line, "warning", message))
    return sorted(set(findings))
