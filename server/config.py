"""Config: one frozen, typed record; defaults < TOML file < KAAS_* environment < flags.

Every refusal is an :class:`InvalidConfig` that names the field and the source of its value.
"""

from __future__ import annotations

import difflib
import grp
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kaas.cache.remote_settings import RemoteTierSettings, parse_remote_tiers
from kaas.proto.errors import InvalidConfig
from kaas.proto.locations import LEASE_SUFFIX, default_socket, default_store
from kaas.server.control_group import core_quota

ENVIRONMENT_PREFIX = "KAAS_"
UNIX_PATH_LIMIT = 107
"""Bytes that a Unix socket's path may have on Linux (``sun_path`` less its terminator)."""

MAX_SIZE_BYTES = 1 << 50
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40} | {
    f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)
}


def available_cores() -> int:
    """Cores that this process may run on, by affinity and by its control group's bandwidth."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, core_quota() or cores)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the operator decides. It holds no secrets, so it may be logged whole.

    ``tcp_address`` is ``host:port`` or empty (off). ``rest_address`` is ``unix:/path``, ``host:port``,
    ``off``, or empty: ``rest.sock`` beside the socket, with its permissions. TCP has none: on loopback
    every user of the machine may ask, and beyond loopback (``allow_remote``) everybody.
    ``monitoring_address`` (``host:port``, or empty: off) serves probes and metrics only, so it may lie beyond
    loopback without ``allow_remote``.
    ``device_options`` are further bisheng options, separated by spaces, and part of every key. An empty
    ``toolkit_home`` or ``soc_name`` means: find out, as does a ``compile_memory_budget_bytes`` of 0.
    Sizes are bytes; text forms such as ``8GiB`` are accepted.

    Above ``store_soft_bytes`` or ``store_soft_files`` the kernels worth least are evicted (compile seconds
    per byte, halved for every ``store_half_life_s`` without use), and whatever was not used for
    ``store_max_idle_s``; never what is leased or pinned. Above ``store_hard_bytes``, or with less than
    ``store_min_free_bytes`` left on the file system, kernels are not stored but kept in up to
    ``memory_kernels_bytes`` of memory and served from there. ``audit_max_bytes`` bounds the audit log. Once
    every ``scrub_period_s`` each artifact is read again, at ``scrub_bytes_per_s``. 0 turns any of these off.
    A store on a network file system is refused unless ``allow_network_fs``.
    With a ``ready_manifest`` the node is ready once it holds ``ready_coverage`` (0 to 1) of its weight.
    ``trust_list`` is the file of public keys whose signatures on foreign artifacts count; with
    ``require_signature`` one of them must have signed whatever this node did not compile itself.
    ``remote_tiers`` hold kernels for many nodes (:mod:`kaas.cache.remote_settings`); what is compiled here
    is signed with ``signing_key`` (the file of a private key) when it is written there.
    """

    socket: str = msgspec.field(default_factory=lambda: str(default_socket()))
    socket_mode: str = "0660"
    socket_group: str = ""
    tcp_address: str = ""
    rest_address: str = ""
    monitoring_address: str = ""
    allow_remote: bool = False
    store: str = msgspec.field(default_factory=lambda: str(default_store()))
    toolkit_home: str = ""
    soc_name: str = ""
    device_options: str = ""
    workers: int = msgspec.field(default_factory=available_cores)
    queue_limit: int = 1024
    compile_wall_limit_s: float = 600.0
    compile_memory_limit_bytes: int = 8 << 30
    compile_memory_budget_bytes: int = 0
    compile_memory_first_guess_bytes: int = 2 << 30
    compile_attempts: int = 2
    compile_retry_delay_s: float = 0.5
    failure_lifetime_s: float = 86_400.0
    transient_failure_lifetime_s: float = 30.0
    store_soft_bytes: int = 16 << 30
    store_soft_files: int = 200_000
    store_max_idle_s: float = 90 * 86_400.0
    store_half_life_s: float = 7 * 86_400.0
    store_hard_bytes: int = 24 << 30
    store_min_free_bytes: int = 64 << 20
    memory_kernels_bytes: int = 256 << 20
    audit_max_bytes: int = 16 << 20
    scrub_bytes_per_s: int = 8 << 20
    scrub_period_s: float = 7 * 86_400.0
    allow_network_fs: bool = False
    ready_manifest: str = ""
    ready_coverage: float = 1.0
    trust_list: str = ""
    require_signature: bool = False
    signing_key: str = ""
    remote_tiers: tuple[RemoteTierSettings, ...] = ()
    zygote_max_jobs: int = 500
    zygote_max_rss_bytes: int = 2 << 30
    shutdown_grace_s: float = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


class Address(msgspec.Struct, frozen=True):
    """A parsed listening address: either ``host`` and ``port`` or a Unix socket's ``path``."""

    host: str = ""
    port: int = 0
    path: str = ""


_FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}


def load_config(
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Merge the four layers and check every value.

    Environment variables with the prefix that name no field belong to other parts of kaas and are left
    alone, unless they look like a misspelt field. Raises :class:`InvalidConfig`.
    """
    chosen: dict[str, tuple[Any, str]] = {}
    for name, value, source in (
        *_from_file(config_file),
        *_from_environment(os.environ if environ is None else environ),
        *((name, value, "flag") for name, value in flags.items() if value is not None),
    ):
        if name not in _FIELDS:
            raise _unknown(name, source)
        chosen[name] = (_typed(name, value, source), source)
    config = Config(**{name: value for name, (value, _) in chosen.items()})
    for name, check in _CHECKS.items():
        source = chosen[name][1] if name in chosen else "default"
        problem = check(getattr(config, name), config)
        if problem:
            raise _refusal(name, getattr(config, name), source, problem)
    if not config.rest_address:
        beside = Path(config.socket).with_name("rest.sock")
        return msgspec.structs.replace(config, rest_address=f"unix:{beside}")
    return config


def _from_file(path: Path | None) -> Iterator[tuple[str, Any, str]]:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"the configuration file {path} cannot be read: {error}", source=str(path)
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"the configuration file {path} is not TOML: {error}", source=str(path)) from None
    for name, value in content.items():
        yield name, value, str(path)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in _FIELDS:
            yield name, environ[variable], f"environment variable {variable}"
        elif difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.85):
            raise _unknown(name, f"environment variable {variable}")


def _unknown(name: str, source: str) -> InvalidConfig:
    near = difflib.get_close_matches(name, _FIELDS, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    return InvalidConfig(
        f"unknown configuration field {name!r} ({source}){suggestion}",
        field=name,
        source=source,
        near=near or None,
        legal=sorted(_FIELDS),
    )


def _refusal(name: str, value: Any, source: str, legal: str) -> InvalidConfig:
    return InvalidConfig(
        f"{name} is {value!r} ({source}); legal: {legal}", field=name, source=source, legal=legal
    )


def _typed(name: str, value: Any, source: str) -> Any:
    """``value`` as the field's type; text is converted, other kinds must match exactly."""
    if isinstance(value, Path):
        value = str(value)
    if name.endswith(("_bytes", "_bytes_per_s")) and isinstance(value, str):
        value = _bytes(name, value, source)
    if name == "remote_tiers":
        return parse_remote_tiers(value, source)
    if name in ("log_level", "log_format") and isinstance(value, str):
        value = value.lower()
    expected = _FIELDS[name].type
    try:
        return msgspec.convert(value, expected, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        kind = getattr(expected, "__name__", "")
        legal = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text"}.get(kind)
        choices = getattr(expected, "__args__", ())
        raise _refusal(name, value, source, legal or ", ".join(map(str, choices)) or str(error)) from None


def _bytes(name: str, text: str, source: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _refusal(name, text, source, "a size such as 8GiB, 512MiB or a number of bytes")
    size = float(match.group(1)) * _UNITS[(match.group(2) or "").upper()]
    if size > MAX_SIZE_BYTES:
        raise _refusal(name, text[:80], source, f"at most {MAX_SIZE_BYTES} bytes")
    return int(size)


def parse_address(text: str) -> Address | None:
    """``host:port`` (``[v6]:port``), or ``unix:/path``; ``None`` when it is neither."""
    if text.startswith("unix:"):
        return Address(path=text.removeprefix("unix:"))
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:\s]+):(\d{1,5})", text)
    if match is None or int(match.group(2)) > 65535:
        return None
    return Address(host=match.group(1).strip("[]"), port=int(match.group(2)))


def is_loopback(host: str) -> bool:
    """True for names and addresses that never leave the machine."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_socket_path(path: str) -> str | None:
    # Each socket is bound beside its final name first, under a name that is a little longer; the longest
    # final name is that of the leases' socket.
    longest = UNIX_PATH_LIMIT - len(LEASE_SUFFIX) - len("..new")
    if not path.startswith("/"):
        return "an absolute path"
    if len(os.fsencode(path)) > longest:
        return f"a path of at most {longest} bytes"
    return None


def _check_socket(value: str, _: Config) -> str | None:
    return _check_socket_path(value)


def _check_mode(value: str, _: Config) -> str | None:
    return None if re.fullmatch(r"0?[0-7]{3}", value) else "octal digits such as 0660"


def _check_group(value: str, _: Config) -> str | None:
    if not value:
        return None
    try:
        grp.getgrnam(value)
    except KeyError:
        return "a group that exists on this machine, or empty"
    return None


def _check_tcp(value: str, config: Config) -> str | None:
    if not value:
        return None
    address = parse_address(value)
    if address is None or address.path:
        return "host:port, or empty for off"
    return _check_reach(address, config)


def _check_rest(value: str, config: Config) -> str | None:
    if value in ("", "off"):
        return None
    address = parse_address(value)
    if address is None:
        return "unix:/absolute/path, host:port, off, or empty for rest.sock beside the socket"
    return _check_socket_path(address.path) if address.path else _check_reach(address, config)


def _check_monitoring(value: str, _: Config) -> str | None:
    address = parse_address(value) if value else None
    return None if not value or (address and not address.path) else "host:port, or empty for off"


def _check_reach(address: Address, config: Config) -> str | None:
    if config.allow_remote or is_loopback(address.host):
        return None
    return "a loopback address (there is no authentication), unless allow_remote is true"


def _check_device_options(value: str, _: Config) -> str | None:
    options = value.split()
    if all(re.fullmatch(r"-[A-Za-z-][\w.,=+:-]*|[\w.,=+:-]+", option) for option in options) and not any(
        option.startswith(("-I", "-o", "-L", "-B", "--npu-arch", "-x")) for option in options
    ):
        return None
    return "bisheng options separated by spaces, without paths, such as -O3 or -mllvm -cce-some-switch=true"


def _check_absolute(value: str, _: Config) -> str | None:
    return None if value.startswith("/") else "an absolute path"


def _check_optional_path(value: str, config: Config) -> str | None:
    return _check_absolute(value, config) if value else None


def _check_require_signature(value: bool, config: Config) -> str | None:
    return None if not value or config.trust_list else "false, or true with a trust_list that says whose"


def _check_budget(value: int, _: Config) -> str | None:
    if value == 0 or 64 << 20 <= value <= MAX_SIZE_BYTES:
        return None
    return f"0 to find out, or from {64 << 20} to {MAX_SIZE_BYTES} bytes"


def _check_hard_bytes(value: int, config: Config) -> str | None:
    soft = config.store_soft_bytes
    if value == 0 or max(soft, 1 << 20) <= value <= MAX_SIZE_BYTES:
        return None
    return f"0 for no limit, or from store_soft_bytes ({soft}) and 1048576 to {MAX_SIZE_BYTES} bytes"


def _zero_or_between(low: float, high: float) -> Callable[[Any, Config], str | None]:
    def check(value: Any, _: Config) -> str | None:
        return None if value == 0 or low <= value <= high else f"0 for off, or from {low} to {high}"

    return check


def _between(low: float, high: float) -> Callable[[Any, Config], str | None]:
    def check(value: Any, _: Config) -> str | None:
        return None if low <= value <= high else f"from {low} to {high}"

    return check


_CHECKS: dict[str, Callable[[Any, Config], str | None]] = {
    "socket": _check_socket,
    "socket_mode": _check_mode,
    "socket_group": _check_group,
    "tcp_address": _check_tcp,
    "rest_address": _check_rest,
    "monitoring_address": _check_monitoring,
    "store": _check_absolute,
    "toolkit_home": _check_optional_path,
    "device_options": _check_device_options,
    "workers": _between(1, 1024),
    "queue_limit": _between(1, 1_000_000),
    "compile_wall_limit_s": _between(0.1, 86_400),
    "compile_memory_limit_bytes": _between(64 << 20, MAX_SIZE_BYTES),
    "compile_memory_budget_bytes": _check_budget,
    "compile_memory_first_guess_bytes": _between(1 << 20, MAX_SIZE_BYTES),
    "compile_attempts": _between(1, 10),
    "compile_retry_delay_s": _between(0.01, 30),
    "failure_lifetime_s": _between(0, 30 * 86_400),
    "transient_failure_lifetime_s": _between(0, 3600),
    "store_soft_bytes": _zero_or_between(1 << 20, MAX_SIZE_BYTES),
    "store_soft_files": _zero_or_between(1, 1_000_000_000),
    "store_max_idle_s": _zero_or_between(60, 3_153_600_000),
    "store_half_life_s": _between(60, 3_153_600_000),
    "store_hard_bytes": _check_hard_bytes,
    "store_min_free_bytes": _zero_or_between(1, MAX_SIZE_BYTES),
    "memory_kernels_bytes": _zero_or_between(1 << 20, 1 << 40),
    "audit_max_bytes": _zero_or_between(1 << 20, 1 << 40),
    "scrub_bytes_per_s": _zero_or_between(1 << 10, 1 << 40),
    "scrub_period_s": _zero_or_between(1, 3_153_600_000),
    "ready_manifest": _check_optional_path,
    "ready_coverage": _between(0, 1),
    "trust_list": _check_optional_path,
    "signing_key": _check_optional_path,
    "require_signature": _check_require_signature,
    "zygote_max_jobs": _between(1, 1_000_000),
    "zygote_max_rss_bytes": _between(64 << 20, MAX_SIZE_BYTES),
    "shutdown_grace_s": _between(0.1, 600),
}
