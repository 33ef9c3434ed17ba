"""A model's public configuration (Hugging Face ``config.json``), read field by field and never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kaas.proto.errors import InvalidConfig

MAX_BYTES = 4 << 20


class ModelConfig:
    """The fields of one configuration; every look at one that is missing or odd names it.

    Raises :class:`InvalidConfig`.
    """

    def __init__(self, fields: Mapping[str, Any], source: str = "config.json") -> None:
        self.source = source
        self._fields = fields

    @property
    def architecture(self) -> str:
        """The one class name in ``architectures``."""
        names = self._fields.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self._refused("architectures", names, "a list of one class name")
        return names[0]

    def number(self, field: str, low: int = 1, default: int | None = None) -> int:
        """An integer from ``low``; ``default`` where the field is missing or null."""
        value = self._fields.get(field)
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value < 2**31:
            raise self._refused(field, value, f"an integer from {low}")
        return value

    def optional_number(self, field: str) -> int | None:
        """An integer from 1, or ``None`` where the field is missing or null."""
        return None if self._fields.get(field) is None else self.number(field)

    def numbers(self, field: str) -> tuple[int, ...]:
        """A list of integers from 0, empty where the field is missing or null."""
        value = self._fields.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._refused(field, value, "a list of integers from 0")
        return tuple(value)

    def fraction(self, field: str) -> float:
        """A number above 0."""
        value = self._fields.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise self._refused(field, value, "a number above 0")
        return float(value)

    def flag(self, field: str, default: bool | None = None) -> bool:
        """True or false; ``default`` where the field is missing or null."""
        value = self._fields.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            raise self._refused(field, value, "true or false")
        return value

    def word(self, field: str, legal: Sequence[str], default: str | None = None) -> str:
        """One of some words; ``default`` where the field is missing or null."""
        value = self._fields.get(field)
        if value is None and default is not None:
            return default
        if value not in legal:
            raise self._refused(field, value, list(legal))
        return str(value)

    def has(self, field: str) -> bool:
        """Whether a field is there and not null."""
        return self._fields.get(field) is not None

    def within(self, field: str) -> ModelConfig | None:
        """The configuration in a field, if there is one."""
        value = self._fields.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._refused(field, value, "an object")
        return ModelConfig(value, f"{self.source}: {field}")

    def _refused(self, field: str, value: Any, legal: Sequence[str] | str) -> InvalidConfig:
        is_missing = field not in self._fields
        what = "is missing" if is_missing else f"is {json.dumps(value, default=str)[:80]}"
        choices = legal if isinstance(legal, str) else ", ".join(legal)
        return InvalidConfig(
            f"{self.source}: {field} {what}; legal: {choices}", field=field, legal=legal, source=self.source
        )


def read_model_config(path: Path) -> ModelConfig:
    """The configuration in a file, ``-`` being standard input, or in a model's folder.

    Raises :class:`InvalidConfig`.
    """
    import sys

    file = path / "config.json" if path.is_dir() else path
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else _read(file)
        fields = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfig(f"{file} cannot be read: {reason}", field="config", source=str(file)) from None
    if len(data) > MAX_BYTES or not isinstance(fields, dict):
        raise InvalidConfig(f"{file} is no model configuration", field="config", legal="a JSON object")
    return ModelConfig(fields, str(file))


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)
