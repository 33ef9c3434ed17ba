"""``kaas pin``, ``unpin``, ``pins``, ``leases``, ``who``, ``quarantine``, ``audit``, ``usage``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaas.client.daemon_link import DaemonLink
from kaas.client.kernel_listing import age_text, flattened, size_text
from kaas.client.paging import all_of
from kaas.client.terminal import guarded, print_fields, print_json, print_table
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket

if TYPE_CHECKING:
    from google.protobuf.message import Message

Socket = Annotated[
    Path | None,
    typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Key = Annotated[str, typer.Argument(help="A key, or its first digits (6 or more).", show_default=False)]
Keys = Annotated[
    list[str] | None, typer.Argument(help="Keys, or their first digits (6 or more).", show_default=False)
]
Manifest = Annotated[
    Path | None,
    typer.Option("--manifest", help="All kernels of this file, YAML or JSON; - is standard input."),
]
KeyFilter = Annotated[
    str, typer.Argument(help="Only this key, or keys that begin so.", show_default="all kernels")
]

_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LIVENESS = {0: "unknown", 1: "alive", 2: "ended"}


def add_store_commands(app: typer.Typer) -> None:
    """Hang the commands into the command line."""
    for command in (pin, unpin, pins, leases, who, quarantine, audit, usage):
        app.command()(guarded(command))


def _link(socket: Path | None) -> DaemonLink:
    return DaemonLink(socket or default_socket())


def pin(
    keys: Keys = None,
    manifest: Manifest = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown by kaas pins.")] = "",
    expires: Annotated[
        str, typer.Option("--expires", help="When the pin ends: 12h, 30d, 6w ... from now, or never.")
    ] = "never",
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Keep kernels from eviction, by key or by manifest; they need not be compiled yet."""
    if not reason.strip():
        raise InvalidRequest("a pin needs a reason", field="reason", legal="--reason TEXT")
    expires_s = seconds_of(expires)
    reply = _link(socket).pin(*_wanted(keys, manifest, socket), reason, expires_s)
    made = [_plain(one) for one in reply.pins]
    if json:
        print_json(made)
        return
    waiting = sum(not one["stored"] for one in made)
    print(f"{len(made)} pinned" + (f", {waiting} of them not compiled yet" if waiting else ""))


def unpin(keys: Keys = None, manifest: Manifest = None, socket: Socket = None, json: Json = False) -> None:
    """Let go of pins, by key or by manifest."""
    gone = _link(socket).unpin(*_wanted(keys, manifest, socket))
    if json:
        print_json(gone)
    else:
        print(f"{len(gone)} unpinned")


def pins(socket: Socket = None, json: Json = False) -> None:
    """List pins that hold: kernels that are never evicted."""
    found, _ = all_of(_link(socket).list_pins, "pins", _plain)
    if json:
        print_json(found)
        return
    print_table(
        ("key", "stored", "since", "until", "reason"),
        (
            (
                one["key"][:12],
                "yes" if one["stored"] else "not yet",
                _time_text(one["since_unix"]),
                _time_text(one["expires_unix"]) if one["expires_unix"] else "unpinned",
                one["reason"],
            )
            for one in found
        ),
    )


def leases(key: KeyFilter = "", socket: Socket = None, json: Json = False) -> None:
    """List kernels that live processes of this node hold."""
    found, _ = all_of(_link(socket).list_leases, "leases", _plain, key=key)
    if json:
        print_json(found)
        return
    print_table(
        ("key", "pid", "user", "job", "rank", "since"),
        (
            (
                one["key"][:12],
                str(one["pid"] or "?"),
                one["user"],
                one["job"],
                one["rank"],
                _time_text(one["since_unix"]),
            )
            for one in found
        ),
    )


def who(key: Key, socket: Socket = None, json: Json = False) -> None:
    """Say which processes, users, jobs and ranks use a kernel or used it."""
    reply = _link(socket).users(key)
    users = [_user(one) for one in reply.users]
    if json:
        print_json({"key": reply.key, "users": users})
        return
    print(reply.key)
    _print_users(users)


def quarantine(
    key: Key,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept beside the file.")] = "",
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Take a kernel out of service: every client misses it from now on, and the next request rebuilds it."""
    if not reason.strip():
        raise InvalidRequest("quarantine needs a reason", field="reason", legal="--reason TEXT")
    reply = _link(socket).quarantine(key, reason)
    users = [_user(one) for one in reply.users]
    if json:
        print_json({"key": reply.key, "file": reply.file, "users": users})
        return
    print(f"{reply.key} is out of service")
    if users:
        print("these processes go on with what they hold until they end:")
        _print_users(users)


def audit(
    key: KeyFilter = "",
    event: Annotated[
        str,
        typer.Option(help="request, use, ended, evicted, quarantined, pinned, unpinned or stored."),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show the end of the audit log, newest first: who asked for what, hit or miss and why."""
    records = _link(socket).audit(key, event, limit)
    if json:
        print_json(records)
        return
    print_table(
        ("when", "event", "key", "process", "job", "rank", "what"),
        (
            (
                _time_text(record.get("when_unix", 0.0)),
                str(record.get("event", "")),
                str(record.get("key", ""))[:12],
                " ".join(str(record[name]) for name in ("pid", "user") if name in record),
                str(record.get("job", "")),
                str(record.get("rank", "")),
                " ".join(
                    str(record[name]) for name in ("outcome", "origin", "why", "reason") if name in record
                ),
            )
            for record in records
        ),
    )


def usage(socket: Socket = None, json: Json = False) -> None:
    """Show what the store takes, its limits, and what is held, pinned or waiting in memory."""
    facts = _link(socket).usage()
    if json:
        print_json(facts)
        return
    print_fields(
        (name, size_text(int(value)) if name.endswith("bytes") and value != "0" else value)
        for name, value in flattened(facts)
    )


def seconds_of(span: str) -> float:
    """``12h``, ``30d`` and the like in seconds; ``never`` is 0. Raises :class:`InvalidRequest`."""
    if span == "never":
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", span.strip())
    if match is None or match.group(2) not in _UNITS_S or not 0 < float(match.group(1)) < 1e6:
        raise InvalidRequest(
            f"{span!r} is no span of time",
            field="expires",
            legal=f"never, or a number with one of {', '.join(_UNITS_S)}, such as 30d",
        )
    return float(match.group(1)) * _UNITS_S[match.group(2)]


def _wanted(
    keys: Sequence[str] | None, manifest: Path | None, socket: Path | None
) -> tuple[list[str], list[tuple[bytes, str]]]:
    if bool(keys) == (manifest is not None):
        raise InvalidRequest(
            "which kernels is not clear", field="keys", legal="keys, or --manifest FILE, and not both"
        )
    if manifest is None:
        return list(keys or ()), []
    from kaas.client.manifest import on_toolchain, read_manifest

    entries = read_manifest(manifest)
    if any(entry.cann for entry in entries):
        entries = on_toolchain(entries, _link(socket).environment().toolchain.cann_version)
    return [], [(entry.spec.canonical(), entry.soc_name) for entry in entries]


def _plain(message: Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _user(message: Message) -> dict[str, Any]:
    fields = _plain(message)
    fields["liveness"] = _LIVENESS[fields["liveness"]]
    return fields


def _print_users(users: Sequence[dict[str, Any]]) -> None:
    now = time.time()
    print_table(
        ("pid", "user", "job", "rank", "since", "for", "from", "state"),
        (
            (
                str(one["pid"] or "?"),
                one["user"],
                one["job"],
                one["rank"],
                _time_text(one["since_unix"]),
                _span_text(one, now),
                one["origin"],
                one["liveness"],
            )
            for one in users
        ),
    )


def _span_text(user: dict[str, Any], now: float) -> str:
    """How long a process holds a kernel or held it."""
    end = now if user["liveness"] == "alive" else user["ended_unix"]
    return age_text(end - user["since_unix"]) if end else "?"


def _time_text(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))
