"""Registry: which families and composites exist, and specs from JSON.

Built-in families are the modules of ``kaas.kernel_library.families``, each named like its family, so that
asking for one imports one; other packages add theirs through the entry-point group ``kaas.families`` (each
entry point loads a :class:`Family`). Composites are the modules of ``kaas.kernel_library.composites``, each
named like its composite; their names and the families' are one namespace.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kaas.kernel_library import composites
from kaas.kernel_library import families as builtin_families
from kaas.kernel_library.composite import Composite, CompositeSpec
from kaas.kernel_library.family import Family
from kaas.kernel_library.spec import KernelSpec, Spec, shown
from kaas.proto.errors import InvalidConfig, InvalidSpec, UnknownFamily

ENTRY_POINT_GROUP = "kaas.families"

MAX_SPEC_BYTES = 64 << 10
"""Far beyond any real spec; more is refused before it costs anybody time."""

MAX_SHOWN = 200
"""Characters of a refused value in a message."""

AnySpec = TypeVar("AnySpec", bound=Spec)

_LOG = logging.getLogger(__name__)


def families() -> Mapping[str, Family]:
    """All usable families by name. Raises :class:`InvalidConfig` when two claim one name."""
    return _discovered()[0]


def broken_families() -> Mapping[str, str]:
    """Entry points of other packages that cannot be used, with the reason of each."""
    return _discovered()[1]


@functools.cache
def _discovered() -> tuple[dict[str, Family], dict[str, str]]:
    found: dict[str, Family] = {}
    broken: dict[str, str] = {}
    for name in builtin_names():
        _add(found, _builtin(name))
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            family = entry.load()
            if not isinstance(family, Family):
                raise TypeError(f"it is a {type(family).__name__}, not a Family")
        except Exception as error:  # another package's mistake must not take this node's kernels away
            broken[f"{entry.name} = {entry.value}"] = f"{type(error).__name__}: {error}"
            _LOG.warning("kernel family %s = %s cannot be used: %s", entry.name, entry.value, error)
        else:
            _add(found, family)
    return found, broken


@functools.cache
def builtin_names() -> tuple[str, ...]:
    """Names of the built-in families, without importing one."""
    return tuple(module.name for module in pkgutil.iter_modules(builtin_families.__path__))


def _builtin(name: str) -> Family:
    family: Family = importlib.import_module(f"{builtin_families.__name__}.{name}").FAMILY
    return family


def _add(found: dict[str, Family], family: Family) -> None:
    if family.name in found:
        raise InvalidConfig(
            f"two kernel families are named {family.name!r}: {found[family.name].module} and {family.module}",
            field="family",
        )
    found[family.name] = family


def family_named(name: Any) -> Family:
    """The family of that name; raises :class:`UnknownFamily` with near matches."""
    if isinstance(name, str) and name in builtin_names():
        return _builtin(name)
    known = families()
    if isinstance(name, str) and name in known:
        return known[name]
    name = name[:80] if isinstance(name, str) else f"({type(name).__name__})"
    near = difflib.get_close_matches(name, known, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else f"; legal: {', '.join(sorted(known))}"
    for entry, reason in broken_families().items():
        suggestion += f"; the family {entry} cannot be used: {reason}"
    raise UnknownFamily(
        f"no kernel family is named {name!r}{suggestion}",
        field="family",
        legal=sorted(known),
        near=near or None,
    )


@functools.cache
def composite_names() -> tuple[str, ...]:
    """Names of the composites, without importing one."""
    return tuple(module.name for module in pkgutil.iter_modules(composites.__path__))


def composite_named(name: Any) -> Composite:
    """The composite of that name. Raises :class:`UnknownFamily`."""
    if name not in composite_names():
        legal = list(composite_names())
        raise UnknownFamily(
            f"no composite is named {shown(name)}; legal: {', '.join(legal)}", field="family", legal=legal
        )
    composite: Composite = importlib.import_module(f"{composites.__name__}.{name}").COMPOSITE
    return composite


def parse_spec(record: bytes | str | Mapping[str, Any]) -> KernelSpec:
    """A spec from JSON text or a plain mapping.

    Raises :class:`InvalidSpec` (or :class:`UnknownFamily`) naming the field and what is legal there.
    """
    fields = _fields_of(record)
    name = fields.get("family")
    if name in composite_names():
        stages = ", ".join(stage.spec.family for stage in parse_composite(fields).stages())
        raise InvalidSpec(
            f"{name} is several kernels: {stages}",
            field="family",
            legal="a family of one kernel",
            hint="kaas get, kaas prewarm and kaas.get_kernels take it",
        )
    return _converted(fields, family_named(name).spec_type)


def parse_composite(record: bytes | str | Mapping[str, Any]) -> CompositeSpec:
    """A composite spec from JSON text or a plain mapping.

    Raises :class:`InvalidSpec` (or :class:`UnknownFamily`) naming the field and what is legal there.
    """
    fields = _fields_of(record)
    return _converted(fields, composite_named(fields.get("family")).spec_type)


def may_be_composite(record: bytes | Mapping[str, Any]) -> bool:
    """Whether a record could be a composite's, at a glance: thousands are asked at once."""
    if isinstance(record, bytes):
        return any(name.encode() in record for name in composite_names())
    return record.get("family") in composite_names()


def kernel_specs(record: bytes | str | Mapping[str, Any]) -> tuple[KernelSpec, ...]:
    """The spec of a record, or those of its stages if it is a composite's. Raises like :func:`parse_spec`."""
    fields = _fields_of(record)
    if fields.get("family") in composite_names():
        return tuple(stage.spec for stage in parse_composite(fields).stages())
    return (parse_spec(fields),)


def _fields_of(record: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec's record, whose values nobody has looked at yet. Raises :class:`InvalidSpec`."""
    if isinstance(record, (bytes, str)):
        if len(record) > MAX_SPEC_BYTES:
            raise InvalidSpec(
                f"the spec has {len(record)} bytes; legal: at most {MAX_SPEC_BYTES}",
                field="spec",
                legal=f"at most {MAX_SPEC_BYTES} bytes",
            )
        try:
            record = msgspec.json.decode(record)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidSpec(
                f"the spec is not valid JSON: {error}", field="spec", legal="a JSON object"
            ) from None
    if not isinstance(record, Mapping):
        raise InvalidSpec("the spec is not a JSON object", field="spec", legal="a JSON object")
    if not all(isinstance(name, str) for name in record):
        raise InvalidSpec("the spec has a field whose name is no string", field="spec", legal="field names")
    return dict(record)


def _converted(fields: dict[str, Any], spec_type: type[AnySpec]) -> AnySpec:
    """The spec of these fields. Raises :class:`InvalidSpec` naming the field and what is legal there."""
    try:
        return msgspec.convert(fields, spec_type, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, spec_type) from None
    except UnicodeEncodeError:
        name = next((name for name, value in fields.items() if not _is_text(f"{name} {value}")), "spec")
        raise InvalidSpec(
            f"{_escaped(name)} holds half of a character", field=_escaped(name), legal="valid Unicode"
        ) from None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    """Text that can be sent anywhere, half characters as escapes."""
    return text.encode("ascii", "backslashreplace").decode() if not _is_text(text) else text


def _explain(error: msgspec.ValidationError, spec_type: type[Spec]) -> InvalidSpec:
    """Turn msgspec's message into one that names the field and what is legal there."""
    reason, _, place = str(error).partition(" - at ")
    place = place.removeprefix("`key` in ")  # of a mapping; what is wrong is said of the mapping
    path = [name for name in re.split(r"[.\[\]`]+", place.lstrip("`$")) if name]
    schema = json_schema(spec_type)
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    missing = re.search(r"required field `([^`]*)`", reason)
    if unknown:
        name = ".".join([*path, unknown.group(1)])
        options = _options(schema, _schema_at(schema, path))
        known = sorted(name for option in options for name in option.get("properties", {}))
        return InvalidSpec(f"{spec_type.__name__} has no field {name!r}", field=name, legal=known)
    if missing:
        path.append(missing.group(1))
    name = ".".join(path) or "spec"
    legal = _legal_values(_schema_at(schema, path))
    choices = ", ".join(map(str, legal)) if isinstance(legal, list) else legal
    if missing:
        reason = "is missing"
    reason = re.sub(r"^Invalid enum value (.*)$", r"is \1", reason)
    if len(reason) > MAX_SHOWN:
        reason = f"{reason[:MAX_SHOWN]}... ({len(reason)} characters)"
    message = f"{name}: {reason}" + (f"; legal: {choices}" if choices else "")
    return InvalidSpec(message, field=name, legal=legal)


def _schema_at(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The part of ``schema`` that describes ``path``; empty where there is none."""
    node = schema
    for name in path:
        inner = (option.get("properties", {}).get(name) for option in _options(schema, node))
        node = next((found for found in inner if found is not None), {})
    return node


def _options(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``node`` allows, references resolved."""
    return [
        schema["$defs"][option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        for option in node.get("anyOf", [node])
    ]


_TYPE_NAMES = {
    "integer": "an integer",
    "number": "a float",
    "boolean": "true or false",
    "null": "null",
    "object": "a JSON object",
    "string": "a string",
    "array": "a list",
}


def _legal_values(schema: dict[str, Any]) -> list[Any] | str | None:
    """What a field takes: the values if they can be listed, else a phrase."""
    if "enum" in schema:
        return list(schema["enum"])
    phrases: list[str] = []
    for option in schema.get("anyOf", [schema]):
        if "enum" in option:
            phrases.extend(f'"{value}"' if isinstance(value, str) else str(value) for value in option["enum"])
        elif "$ref" in option:
            phrases.append(_TYPE_NAMES["object"])
        elif option.get("type") in _TYPE_NAMES:
            phrase = _TYPE_NAMES[option["type"]]
            if "minimum" in option:
                phrase += f" from {option['minimum']} to {option['maximum']}"
            if "multipleOf" in option:
                phrase += f", a multiple of {option['multipleOf']}"
            phrases.append(phrase)
    return " or ".join(phrases) or None


def json_schema(spec_type: type[Spec]) -> dict[str, Any]:
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
