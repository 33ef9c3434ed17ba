"""What a manifest says: specs with weights, who wants them, and the targets that they are for.

Version 1 is a list of specs, or ``{soc_name: ..., kernels: [...]}``. Version 2 is a mapping::

    version: 2
    comment: text
    targets: [{soc_name: Ascend950DT_9581, cann: "9.2.0"}]    # of every entry that names none of its own
    kernels:
      - {family: gemm, n: 4096, k: 7168}                      # a spec as in version 1
      - spec: {family: gemm, n: 1536, k: 7168}
        weight: 61                                            # how much this kernel matters; 1 if not said
        wanted_by: ["layers 0-60: attention.q_a_proj"]
        comment: text
        targets: [...]
    unserved: [{wanted_by: ..., needs: ..., reason: ...}]     # what was wanted and no family serves

A version 1 file is a version 2 file without what is new. Reading names the line of a fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kaas.client.yaml_text import compose, line_of, plain, read_text
from kaas.proto.errors import InvalidManifest, KaasError

if TYPE_CHECKING:
    import yaml

    from kaas.kernel_library.spec import KernelSpec, Spec

VERSIONS = (1, 2)
MAX_WEIGHT = 1e15

_FIELDS = {1: ("kernels", "soc_name"), 2: ("comment", "kernels", "soc_name", "targets", "unserved")}
_ENTRY_FIELDS = ("comment", "soc_name", "spec", "targets", "wanted_by", "weight")
_CANN = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)+([-+][0-9A-Za-z.]+)?")


class ManifestTarget(NamedTuple):
    """A part and a CANN version to compile for; empty means the node's own."""

    soc_name: str = ""
    cann: str = ""


class ManifestEntry(NamedTuple):
    """One spec of a manifest. ``targets`` are its own; ``line`` is where it begins in the file."""

    spec: Spec
    weight: float = 1.0
    wanted_by: tuple[str, ...] = ()
    comment: str = ""
    targets: tuple[ManifestTarget, ...] = ()
    line: int = 0

    def kernels(self) -> tuple[KernelSpec, ...]:
        """The spec itself, or those of a composite's stages."""
        return kernels_of(self.spec)


class Unserved(NamedTuple):
    """Something that was wanted and that no family serves."""

    wanted_by: str
    needs: str
    reason: str


class ManifestDocument(NamedTuple):
    """A checked manifest."""

    entries: tuple[ManifestEntry, ...]
    targets: tuple[ManifestTarget, ...] = ()
    comment: str = ""
    unserved: tuple[Unserved, ...] = ()
    version: int = 2

    def targets_of(self, entry: ManifestEntry) -> tuple[ManifestTarget, ...]:
        """What an entry is for: its own targets, else the manifest's, else the node itself."""
        return entry.targets or self.targets or (ManifestTarget(),)


def kernels_of(spec: Spec) -> tuple[KernelSpec, ...]:
    """The spec itself, or those of a composite's stages."""
    from kaas.kernel_library.composite import CompositeSpec
    from kaas.kernel_library.spec import KernelSpec

    if isinstance(spec, CompositeSpec):
        return tuple(stage.spec for stage in spec.stages())
    assert isinstance(spec, KernelSpec)
    return (spec,)


def read_document(path: Path, faults: list[InvalidManifest] | None = None) -> ManifestDocument:
    """A manifest file, ``-`` being standard input; see :func:`parse_document`."""
    return parse_document(read_text(path, "manifest"), str(path), faults)


def parse_document(
    text: str, name: str = "manifest", faults: list[InvalidManifest] | None = None
) -> ManifestDocument:
    """The checked manifest in a text; ``name`` is used in messages.

    Raises :class:`InvalidManifest` naming the entry, the line, the field and what is legal there. With a list
    of ``faults``, those of entries are added to it instead and the entries are left out.
    """
    import yaml

    root = compose(text, name)
    fields: dict[str, yaml.Node] = {}
    version: int = 1
    listing = root
    if root is not None and isinstance(root, yaml.MappingNode):
        keys = {key.value: key for key, _ in root.value}
        if len(keys) < len(root.value):
            plain(root)  # raises: a key repeats
        fields = {key.value: value for key, value in root.value}
        version = _version(fields, name)
        legal = sorted((*_FIELDS[version], "version"))
        if unknown := sorted(set(fields) - set(legal)):
            line = line_of(keys[unknown[0]])
            hint = "version: 2 at the top" if unknown[0] in _FIELDS[2] else None
            message = f"{name} (line {line}): unknown field {unknown[0]!r}"
            raise InvalidManifest(message, field=unknown[0], legal=legal, line=line, hint=hint)
        listing = fields.get("kernels")
    if listing is None or not isinstance(listing, yaml.SequenceNode) or not listing.value:
        raise InvalidManifest(
            f"{name}: a list of at least one kernel is expected", legal="a list, or {kernels: [...]}"
        )
    head = {field: plain(node) for field, node in fields.items() if field not in ("kernels", "version")}
    top = fields.get("targets") or fields.get("soc_name") or root
    assert top is not None
    try:
        targets = _targets(head)
    except InvalidManifest as fault:
        line = line_of(top)
        raise InvalidManifest(
            f"{name} (line {line}): {fault.message}", **{**fault.details, "line": line}
        ) from None
    entries: list[ManifestEntry] = []
    for number, node in enumerate(listing.value, 1):
        try:
            entries.append(_entry(node, f"{name}: entry {number}", targets, version))
        except InvalidManifest as fault:
            if faults is None:
                raise
            faults.append(fault)
    return ManifestDocument(
        entries=tuple(entries),
        targets=targets,
        comment=_text(head.get("comment", ""), "comment", name, fields.get("comment", top)),
        unserved=_unserved(head.get("unserved", []), name, fields.get("unserved", top)),
        version=version,
    )


def _version(fields: Mapping[str, yaml.Node], name: str) -> int:
    if "version" not in fields:
        return 1
    node = fields["version"]
    value = plain(node)
    if type(value) is not int or value not in VERSIONS:
        line = line_of(node)
        raise InvalidManifest(
            f"{name} (line {line}): version is {str(value)[:80]!r}; this kaas reads 1 and 2",
            field="version",
            legal=list(VERSIONS),
            line=line,
        )
    return value


def _entry(node: yaml.Node, place: str, targets: tuple[ManifestTarget, ...], version: int) -> ManifestEntry:
    from kaas.kernel_library import registry
    from kaas.kernel_library.targets import target_named

    line = line_of(node)
    path: list[str] = []
    try:
        record = plain(node)
        if not isinstance(record, dict):
            raise InvalidManifest("a spec is expected", legal="a mapping with a family")
        about: dict[str, Any] = {}
        if "spec" in record and "family" not in record:
            legal = _ENTRY_FIELDS if version > 1 else ("soc_name", "spec")
            if unknown := sorted(str(field) for field in set(record) - set(legal)):
                hint = "version: 2 at the top" if unknown[0] in _ENTRY_FIELDS else None
                message = f"unknown field {unknown[0]!r} beside spec"
                raise InvalidManifest(message, field=unknown[0], legal=list(legal), hint=hint)
            about, record = record, record["spec"]
            path.append("spec")
        elif "soc_name" in record:
            about = {"soc_name": record.pop("soc_name")}
        own = _targets(about)
        weight = _weight(about.get("weight", 1.0))
        wanted_by = _texts(about.get("wanted_by", []), "wanted_by")
        comment = _text(about.get("comment", ""), "comment", "", node)
        spec: Spec
        if isinstance(record, dict) and record.get("family") in registry.composite_names():
            spec = registry.parse_composite(record)
        else:
            spec = registry.parse_spec(record)
        for target in own or targets:
            if target.soc_name:
                for kernel in kernels_of(spec):
                    kernel.check_target(target_named(target.soc_name))
        return ManifestEntry(spec, weight, wanted_by, comment, own, line)
    except KaasError as error:
        field = error.details.get("field")
        names = str(field).split(".") if field else []
        outside = bool(names) and names[0] in _ENTRY_FIELDS and isinstance(error, InvalidManifest)
        fault_line = error.details.get("line") or line_of(node, names if outside else [*path, *names])
        raise InvalidManifest(
            f"{place} (line {fault_line}): {error.message}",
            hint=error.hint,
            **{**error.details, "entry": place, "line": fault_line},
        ) from None


def _targets(record: Mapping[str, Any]) -> tuple[ManifestTarget, ...]:
    """The targets that a manifest's head, or an entry, names in one way or the other."""
    from kaas.kernel_library.targets import target_named

    if "soc_name" in record:
        if "targets" in record:
            raise InvalidManifest("soc_name and targets say the same", field="soc_name", legal="one of them")
        soc_name = record["soc_name"]
        if not isinstance(soc_name, str):
            raise InvalidManifest(
                f"soc_name is {soc_name!r}",
                field="soc_name",
                legal="a SoC name such as Ascend950PR_9579",
            )
        return (ManifestTarget(soc_name),) if soc_name else ()
    listing = record.get("targets", [])
    legal = 'a list of {soc_name: ..., cann: "..."}'
    if not isinstance(listing, list):
        raise InvalidManifest("targets is no list", field="targets", legal=legal)
    found: list[ManifestTarget] = []
    for item in listing:
        if isinstance(item, str):
            item = {"soc_name": item}
        if not isinstance(item, dict) or not item or set(item) - {"soc_name", "cann"}:
            raise InvalidManifest(f"a target is {str(item)[:80]}", field="targets", legal=legal)
        soc_name, cann = item.get("soc_name", ""), item.get("cann", "")
        require_cann(cann)
        try:
            found.append(ManifestTarget(target_named(soc_name).soc_name if soc_name else "", cann))
        except KaasError as error:
            raise InvalidManifest(error.message, **{**error.details, "field": "targets.soc_name"}) from None
    return tuple(dict.fromkeys(found))


def require_cann(value: Any) -> None:
    """Raise :class:`InvalidManifest` unless ``value`` is a CANN version, or empty."""
    if not isinstance(value, str) or (value and not _CANN.fullmatch(value)):
        legal = 'a version in quotes, such as "9.2.0"'
        message = f"cann is {str(value)[:80]!r}; legal: {legal}"
        raise InvalidManifest(message, field="targets.cann", legal=legal)


def _weight(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= MAX_WEIGHT:
        legal = f"a number above 0, up to {MAX_WEIGHT:g}"
        raise InvalidManifest(f"weight is {str(value)[:80]}; legal: {legal}", field="weight", legal=legal)
    return float(value)


def _texts(value: Any, field: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        legal = "a text or a list of texts"
        raise InvalidManifest(f"{field} is {str(value)[:80]}; legal: {legal}", field=field, legal=legal)
    return tuple(dict.fromkeys(values))


def _text(value: Any, field: str, name: str, node: yaml.Node) -> str:
    if not isinstance(value, str):
        place = f"{name} (line {line_of(node)}): " if name else ""
        raise InvalidManifest(
            f"{place}{field} is {str(value)[:80]}; legal: a text", field=field, legal="a text"
        )
    return value


def _unserved(value: Any, name: str, node: yaml.Node) -> tuple[Unserved, ...]:
    legal = "a list of {wanted_by: text, needs: text, reason: text}"
    good = isinstance(value, list) and all(
        isinstance(item, dict)
        and set(item) == set(Unserved._fields)
        and all(isinstance(text, str) for text in item.values())
        for item in value
    )
    if not good:
        line = line_of(node)
        raise InvalidManifest(
            f"{name} (line {line}): unserved is no such list; legal: {legal}",
            field="unserved",
            legal=legal,
            line=line,
        )
    return tuple(Unserved(**item) for item in value)
