"""Pre-warm manifests: which kernels a node should hold, as YAML or JSON.

A list of entries, or ``{soc_name: ..., kernels: [...]}``. An entry is a spec, optionally with ``soc_name``
beside its fields, or ``{spec: {...}, soc_name: ...}``. A composite spec stands for its stages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kaas.proto.errors import InvalidManifest, KaasError

if TYPE_CHECKING:
    import yaml

    from kaas.kernel_library.spec import KernelSpec

MAX_BYTES = 16 << 20


class Entry(NamedTuple):
    """One kernel to warm; ``line`` is where its entry begins in the manifest."""

    spec: KernelSpec
    soc_name: str
    line: int


def read_manifest(path: Path) -> list[Entry]:
    """The checked entries of a manifest file, ``-`` being standard input.

    Raises :class:`InvalidManifest` naming the entry, its line, and what is wrong with it.
    """
    import sys

    try:
        text = sys.stdin.buffer.read().decode() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidManifest(f"the manifest {path} cannot be read: {reason}", path=str(path)) from None
    return parse_manifest(text, str(path))


def parse_manifest(text: str, name: str = "manifest") -> list[Entry]:
    """The checked entries of a manifest's text; ``name`` is used in messages."""
    import yaml

    root = _compose(text, name)
    soc_name, listing = "", root
    if root is not None and isinstance(root, yaml.MappingNode):
        fields = {key.value: value for key, value in root.value}
        if unknown := sorted(set(fields) - {"kernels", "soc_name"}):
            raise InvalidManifest(
                f"{name}: unknown field {unknown[0]!r}", field=unknown[0], legal=["kernels", "soc_name"]
            )
        soc_name = _soc_name(_plain(fields["soc_name"]) if "soc_name" in fields else "", name, root)
        listing = fields.get("kernels")
    if listing is None or not isinstance(listing, yaml.SequenceNode) or not listing.value:
        raise InvalidManifest(
            f"{name}: a list of at least one kernel is expected", legal="a list, or {kernels: [...]}"
        )
    return [
        entry
        for number, node in enumerate(listing.value, 1)
        for entry in _entries(node, f"{name}: entry {number}", soc_name)
    ]


def _entries(node: yaml.Node, place: str, default_soc: str) -> list[Entry]:
    """One entry, or one for each stage of a composite."""
    from kaas.kernel_library.registry import kernel_specs
    from kaas.kernel_library.targets import target_named

    line = node.start_mark.line + 1
    record = _plain(node)
    try:
        if not isinstance(record, dict):
            raise InvalidManifest("a spec is expected", legal="a mapping with a family")
        soc_name = _soc_name(record.pop("soc_name", default_soc), place, node)
        if "spec" in record and len(record) == 1:
            record = record["spec"]
        specs = kernel_specs(record)
        if soc_name:
            target = target_named(soc_name)
            for spec in specs:
                spec.check_target(target)
        return [Entry(spec, soc_name, line) for spec in specs]
    except KaasError as error:
        raise InvalidManifest(
            f"{place} (line {line}): {error.message}", **{**error.details, "entry": place, "line": line}
        ) from None


def _soc_name(value: Any, place: str, node: yaml.Node) -> str:
    if not isinstance(value, str):
        raise InvalidManifest(
            f"{place} (line {node.start_mark.line + 1}): soc_name is {value!r}",
            field="soc_name",
            legal="a SoC name such as Ascend950PR_9579",
        )
    return value


def load_yaml(text: str, name: str) -> Any:
    """One YAML or JSON document as plain values. Raises :class:`InvalidManifest` with the line."""
    node = _compose(text, name)
    return None if node is None else _plain(node)


def _compose(text: str, name: str) -> yaml.Node | None:
    import yaml

    if len(text) > MAX_BYTES:
        raise InvalidManifest(f"{name}: larger than {MAX_BYTES} bytes")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_loader())):
            # Aliases let a short file stand for an endless one.
            raise InvalidManifest(f"{name}: YAML aliases are not supported")
        return yaml.compose(text, Loader=_loader())
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise InvalidManifest(
            f"{name}{where}: not YAML: {problem}", line=mark.line + 1 if mark else None
        ) from None


def _plain(node: yaml.Node) -> Any:
    import yaml

    loader = _loader()("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or error
        raise InvalidManifest(
            f"line {node.start_mark.line + 1}: {problem}", line=node.start_mark.line + 1
        ) from None
    finally:
        loader.dispose()


def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe YAML in which ``1e-6`` is the number that everybody but YAML 1.1 takes it for."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9][0-9]*(?:\.[0-9]*)?[eE][-+]?[0-9]+"),
        list("-+0123456789"),
    )
    return Loader
