"""Remote tiers' settings: which places beyond this node hold kernels, and how far each is trusted with time.

They hold no secrets, so they may be logged: an option that is one is named by where its value stands, an
environment variable or a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from kaas.proto.errors import InvalidConfig

FIELD = "remote_tiers"
MAX_TIERS = 8
LEGAL = (
    "a list of tables with name, uri, options, mode (read, write, read-write), on_error (ignore, fail), "
    "deadline_s, write_deadline_s, open_after, open_s, max_object_bytes; as text, JSON or URIs between spaces"
)

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_SECRET = re.compile(
    r"secret|passw|token|credential|signature|private|connection_string|_key\b|customer_key|sas"
)
_PLAIN = frozenset({"access_key_id", "skip_signature", "server_side_encryption_aws_kms_key_id"})
"""Options that look like secrets and are none."""
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
MAX_SECRET_BYTES = 64 << 10


class RemoteTierSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tier. ``uri`` is ``scheme://bucket/prefix`` of a service that OpenDAL knows; ``options`` are its.

    A look-up there ends after ``deadline_s``, a write after ``write_deadline_s``. After ``open_after``
    failures in a row it is left alone for ``open_s``. Larger objects than ``max_object_bytes`` are refused
    unread. ``on_error`` says whether a job that waits for its kernels to be there fails when one cannot be
    written (``fail``), or goes on with a warning.
    """

    name: str
    uri: str
    options: dict[str, str] = {}
    mode: Literal["read", "write", "read-write"] = "read-write"
    on_error: Literal["ignore", "fail"] = "fail"
    deadline_s: float = 2.0
    write_deadline_s: float = 30.0
    open_after: int = 3
    open_s: float = 30.0
    max_object_bytes: int = 128 << 20

    @property
    def scheme(self) -> str:
        """What kind of service it is: ``s3``, ``fs``, ``redis`` ..."""
        return urlsplit(self.uri).scheme

    @property
    def is_readable(self) -> bool:
        """Whether misses are looked up there."""
        return self.mode != "write"

    @property
    def is_writable(self) -> bool:
        """Whether what is compiled here is written there."""
        return self.mode != "read"

    def shown(self) -> str:
        """One line for logs and people."""
        return f"{self.name} ({self.uri}, {self.mode})"


def parse_remote_tiers(value: Any, source: str) -> tuple[RemoteTierSettings, ...]:
    """The tiers of a TOML list, of JSON text, or of URIs between spaces. Raises :class:`InvalidConfig`.

    No message repeats an option's value, which may be a secret in the wrong place.
    """
    if isinstance(value, str):
        value = _from_text(value.strip(), source)
    try:
        tiers = msgspec.convert(value, tuple[RemoteTierSettings, ...])
    except msgspec.ValidationError as error:
        raise _invalid(source, str(error), LEGAL) from None
    problem = next(_problems(tiers), None)
    if problem is not None:
        raise _invalid(source, *problem)
    return tiers


def resolved_options(tier: RemoteTierSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The options with what ``env:NAME`` and ``file:/path`` stand for. Raises :class:`InvalidConfig`."""
    return {name: _resolved(tier, name, value, environ) for name, value in tier.options.items()}


def secrets_of(tier: RemoteTierSettings, resolved: Mapping[str, str]) -> list[str]:
    """Values that must never be shown."""
    return [value for name, value in resolved.items() if _REFERENCE.fullmatch(tier.options[name]) and value]


def _from_text(text: str, source: str) -> Any:
    if not text.startswith("["):
        return [{"name": f"remote{number}", "uri": uri} for number, uri in enumerate(text.split(), start=1)]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise _invalid(source, f"no JSON: {error}", LEGAL) from None


def _problems(tiers: Sequence[RemoteTierSettings]) -> Iterator[tuple[str, str]]:
    if len(tiers) > MAX_TIERS:
        yield f"{len(tiers)} tiers", f"at most {MAX_TIERS}"
    if len({tier.name for tier in tiers}) < len(tiers):
        yield "two tiers have one name", "a name of its own for each"
    for number, tier in enumerate(tiers):
        for field, legal in _wrong_fields(tier):
            yield f"[{number}].{field}", legal


def _wrong_fields(tier: RemoteTierSettings) -> Iterator[tuple[str, str]]:
    if not _NAME.fullmatch(tier.name):
        yield "name", "1 to 32 of a-z 0-9 . _ -, a letter or digit first"
    yield from _wrong_uri(tier.uri)
    for option, value in tier.options.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", option):
            yield "options", "names of a-z 0-9 _ as OpenDAL has them"
        elif is_secret(option) and not _REFERENCE.fullmatch(value):
            yield f"options.{option}", "env:NAME or file:/absolute/path, since it is a secret"
    for field, low, high in (
        ("deadline_s", 0.01, 60.0),
        ("write_deadline_s", 0.01, 600.0),
        ("open_after", 1, 1000),
        ("open_s", 0.01, 3600.0),
        ("max_object_bytes", 1024, 1 << 30),
    ):
        if not low <= getattr(tier, field) <= high:
            yield field, f"from {low} to {high}"


def _wrong_uri(uri: str) -> Iterator[tuple[str, str]]:
    legal = "scheme://bucket/prefix without user, password or query; what else is needed goes into options"
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        yield "uri", legal
        return
    if (
        not _SCHEME.fullmatch(parts.scheme)
        or not uri.startswith(f"{parts.scheme}://")
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not uri.isprintable()
    ):
        yield "uri", legal
    elif parts.scheme == "fs" and (parts.netloc or not parts.path.startswith("/") or parts.path == "/"):
        yield "uri", "fs:///absolute/path"


def is_secret(option: str) -> bool:
    """Whether an option of that name is a secret."""
    return option not in _PLAIN and _SECRET.search(option) is not None


def _resolved(tier: RemoteTierSettings, name: str, value: str, environ: Mapping[str, str]) -> str:
    kind, _, place = value.partition(":")
    if not _REFERENCE.fullmatch(value):
        return value
    if kind == "env":
        if place not in environ:
            raise _missing(tier, name, f"the environment variable {place} is not set")
        return environ[place]
    try:
        content = Path(place).read_bytes()[:MAX_SECRET_BYTES]
        return content.decode().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _missing(tier, name, f"{place} cannot be read: {reason}") from None


def _missing(tier: RemoteTierSettings, option: str, problem: str) -> InvalidConfig:
    field = f"{FIELD}.{tier.name}.options.{option}"
    return InvalidConfig(f"{field}: {problem}", field=field, legal="env:NAME or file:/absolute/path")


def _invalid(source: str, problem: str, legal: str) -> InvalidConfig:
    field = FIELD + problem if problem.startswith("[") else FIELD
    what = f"{field} is not legal" if problem.startswith("[") else f"{FIELD}: {problem}"
    return InvalidConfig(f"{what} ({source}); legal: {legal}", field=field, source=source, legal=legal)
