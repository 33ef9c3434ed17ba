"""Registry: which families exist, and specs from JSON.

Built-in families are the modules of ``kaas.kernel_library.families``; other packages add theirs through the
entry-point group ``kaas.families`` (each entry point loads a :class:`Family`).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kaas.kernel_library import families as builtin_families
from kaas.kernel_library.family import Family
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import InvalidConfig, InvalidSpec, UnknownFamily

ENTRY_POINT_GROUP = "kaas.families"


@functools.cache
def families() -> Mapping[str, Family]:
    """All families by name. Raises :class:`InvalidConfig` when two claim one name."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(builtin_families.__path__):
        _add(found, importlib.import_module(f"{builtin_families.__name__}.{module.name}").FAMILY)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        _add(found, entry.load())
    return found


def _add(found: dict[str, Family], family: Family) -> None:
    if family.name in found:
        raise InvalidConfig(
            f"two kernel families are named {family.name!r}: {found[family.name].module} and {family.module}",
            field="family",
        )
    found[family.name] = family


def family_named(name: Any) -> Family:
    """The family of that name; raises :class:`UnknownFamily` with near matches."""
    known = families()
    if isinstance(name, str) and name in known:
        return known[name]
    near = difflib.get_close_matches(str(name), known, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    raise UnknownFamily(
        f"no kernel family is named {name!r}{suggestion}",
        field="family",
        legal=sorted(known),
        near=near or None,
    )


def parse_spec(record: bytes | str | Mapping[str, Any]) -> KernelSpec:
    """A spec from JSON text or a plain mapping.

    Raises :class:`InvalidSpec` (or :class:`UnknownFamily`) naming the field and what is legal there.
    """
    if isinstance(record, (bytes, str)):
        try:
            record = msgspec.json.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidSpec(
                f"the spec is not valid JSON: {error}", field="spec", legal="a JSON object"
            ) from None
    if not isinstance(record, Mapping):
        raise InvalidSpec("the spec is not a JSON object", field="spec", legal="a JSON object")
    family = family_named(record.get("family"))
    try:
        return msgspec.convert(dict(record), family.spec_type, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, family.spec_type) from None


def _explain(error: msgspec.ValidationError, spec_type: type[KernelSpec]) -> InvalidSpec:
    """Turn msgspec's message into one that names the field and what is legal there."""
    text = str(error)
    located = re.search(r"\$\.([\w.\[\]]+)", text)
    unknown = re.search(r"unknown field `([^`]*)`", text)
    missing = re.search(r"required field `([^`]*)`", text)
    fields = {field.encode_name: field for field in msgspec.structs.fields(spec_type)}
    if unknown:
        name = unknown.group(1)
        return InvalidSpec(f"{spec_type.__name__} has no field {name!r}", field=name, legal=sorted(fields))
    name = missing.group(1) if missing else located.group(1) if located else "spec"
    top = re.split(r"[.\[]", name)[0]
    legal = _legal_values(spec_type, top) if top in fields else None
    reason = "is missing" if missing else text.split(" - at ")[0]
    return InvalidSpec(f"{name}: {reason}", field=name, legal=legal)


def _legal_values(spec_type: type[KernelSpec], field: str) -> list[Any] | str | None:
    schema = json_schema(spec_type)["properties"].get(field, {})
    options = schema.get("anyOf", [schema])
    described: list[Any] = []
    for option in options:
        described.extend(option.get("enum", [option["type"]] if "type" in option else []))
    return described or None


def json_schema(spec_type: type[KernelSpec]) -> dict[str, Any]:
    """JSON Schema (2020-12) of one spec class, references resolved at the top."""
    schema = msgspec.json.schema(spec_type)
    definitions = schema.get("$defs", {})
    resolved: dict[str, Any] = dict(definitions.pop(spec_type.__name__, schema))
    if definitions:
        resolved["$defs"] = definitions
    return resolved


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of every family's spec, by family name."""
    return {name: json_schema(family.spec_type) for name, family in sorted(families().items())}


def family_digest(family: Family) -> str:
    """SHA-256 over the sources that decide what the family generates; independent of where they lie."""
    digest = hashlib.sha256()
    for module in sorted({family.module, *family.sources}):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise InvalidConfig(
                f"family {family.name!r}: module {module!r} has no source file", field="sources"
            )
        content = Path(spec.origin).read_bytes()
        digest.update(f"{module}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
