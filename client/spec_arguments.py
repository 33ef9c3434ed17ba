"""Specs as people write them on a command line: ``gemm n=4096 k=7168``, JSON text, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.proto.errors import InvalidSpec

if TYPE_CHECKING:
    from kaas.kernel_library.spec import KernelSpec

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def spec_from_words(words: Sequence[str], tile: str = "") -> KernelSpec:
    """A spec from a family name and ``key=value`` words, from one JSON object, or from one file.

    Values are JSON where they parse as such, otherwise text; ``a.b=1`` sets a field of a nested object; ``-``
    reads standard input. ``tile`` is ``key=value,...`` and replaces the spec's own tile. Raises
    :class:`InvalidSpec` naming the field and what is legal.
    """
    return _spec_of(_record_from(words), tile)


def specs_from_words(words: Sequence[str], tile: str = "") -> tuple[KernelSpec, ...]:
    """Like :func:`spec_from_words`, but a composite is legal too and stands for its kernels' specs."""
    from kaas.kernel_library.registry import kernel_specs

    record = _record_from(words)
    return (_spec_of(record, tile),) if tile else kernel_specs(record)


def _spec_of(record: Any, tile: str) -> KernelSpec:
    from kaas.kernel_library.registry import parse_spec

    spec = parse_spec(record)
    if not tile:
        return spec
    given = _record_of([spec.family, *(f"tile.{word.strip()}" for word in tile.split(","))])
    return parse_spec(spec.to_record() | given)


def _record_from(words: Sequence[str]) -> Any:
    text = " ".join(words)
    if text.lstrip().startswith("{"):
        return text
    if text == "-" or _is_file(text):
        return _record_in(text)
    return _record_of(words)


def _record_of(words: Sequence[str]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for position, word in enumerate(words):
        name, separator, value = word.partition("=")
        if not separator:
            if position:
                raise InvalidSpec(f"{word!r} is not key=value", field=word, legal="key=value")
            name, value = "family", word
        place = record
        *outer, last = name.split(".")
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidSpec(f"{part} is given both as a value and as an object", field=name)
        if last in place:
            raise InvalidSpec(f"{name} is given twice", field=name)
        place[last] = _value(value)
    return record


def _value(text: str) -> Any:
    if text.casefold() in _WORDS:
        return _WORDS[text.casefold()]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _record_in(name: str) -> Any:
    import sys

    from kaas.client.yaml_text import load_yaml

    try:
        text = sys.stdin.buffer.read().decode() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidSpec(
            f"the spec {name} cannot be read: {reason}", field="spec", legal="UTF-8 text"
        ) from None
    return load_yaml(text, name)
