"""A manifest as YAML, one line for each spec, or as JSON; either reads back as the same manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.yaml_text import flow_text

if TYPE_CHECKING:
    from kaas.client.manifest_document import ManifestDocument, ManifestEntry, ManifestTarget
    from kaas.kernel_library.spec import Spec


def spec_record(spec: Spec) -> dict[str, Any]:
    """The family and the fields that differ from their defaults: what a person would write."""
    return {"family": spec.family, **_told_fields(spec)}


def document_record(document: ManifestDocument) -> dict[str, Any]:
    """A manifest as plain values, version 2."""
    record: dict[str, Any] = {"version": 2}
    if document.comment:
        record["comment"] = document.comment
    if document.targets:
        record["targets"] = [_target_record(target) for target in document.targets]
    record["kernels"] = [_entry_record(entry) for entry in document.entries]
    if document.unserved:
        record["unserved"] = [one._asdict() for one in document.unserved]
    return record


def json_text(document: ManifestDocument) -> str:
    """A manifest as JSON."""
    return json.dumps(document_record(document), indent=1) + "\n"


def yaml_text(document: ManifestDocument) -> str:
    """A manifest as YAML; entries that follow each other for the same layer stand under its name."""
    record = document_record(document)
    lines = ["version: 2"]
    for field in ("comment", "targets"):
        if field in record:
            lines.append(f"{field}: {_value_text(record[field])}")
    lines.append("kernels:")
    place = ""
    for entry, plain in zip(document.entries, record["kernels"], strict=True):
        heading = entry.wanted_by[0].partition(": ")[0] if entry.wanted_by else ""
        if heading != place and heading.isprintable():
            lines.append(f"  # {heading}" if heading else "  #")
            place = heading
        lines.append(f"  - {flow_text(plain)}")
    if document.unserved:
        lines.append("# No family serves these:")
        lines.append("unserved:")
        lines += [f"  - {flow_text(plain)}" for plain in record["unserved"]]
    return "\n".join(lines) + "\n"


def _value_text(value: Any) -> str:
    # In flow style text is quoted where it must be; alone, it would need the same care.
    return json.dumps(value) if isinstance(value, str) else flow_text(value)


def _entry_record(entry: ManifestEntry) -> dict[str, Any]:
    record: dict[str, Any] = {"spec": spec_record(entry.spec)}
    if entry.weight != 1.0:
        record["weight"] = int(entry.weight) if entry.weight.is_integer() else entry.weight
    if entry.wanted_by:
        record["wanted_by"] = list(entry.wanted_by)
    if entry.comment:
        record["comment"] = entry.comment
    if entry.targets:
        record["targets"] = [_target_record(target) for target in entry.targets]
    return record if len(record) > 1 else record["spec"]


def _target_record(target: ManifestTarget) -> dict[str, str]:
    # A target that names nothing is the node itself; it has to be written to stand beside others.
    named = {name: value for name, value in target._asdict().items() if value}
    return named or {"soc_name": ""}


def _told_fields(struct: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        if field.required or value != field.default:
            told[field.name] = (
                _told_fields(value) if isinstance(value, msgspec.Struct) else msgspec.to_builtins(value)
            )
    return told
