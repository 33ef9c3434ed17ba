"""What the daemon says of its kernels, as plain values for JSON and as text for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.paging import all_of
from kaas.client.progress_text import progress_text

if TYPE_CHECKING:
    from kaas.client.daemon_link import DaemonLink
    from kaas.proto.v1 import kernel_service_pb2 as pb


def list_kernels(link: DaemonLink, limit: int, **filters: Any) -> tuple[list[dict[str, Any]], int]:
    """At most ``limit`` kernels, and how many there are."""
    return all_of(link.list_kernels, "kernels", _summary, limit, **filters)


def _summary(summary: pb.KernelSummary) -> dict[str, Any]:
    fields = {field.name: getattr(summary, field.name) for field in summary.DESCRIPTOR.fields}
    fields["spec"] = _decoded(fields.pop("spec_json"))
    return fields


def _decoded(text: str | bytes) -> Any:
    return msgspec.json.decode(text) if text else None


def listing_rows(kernels: list[dict[str, Any]]) -> tuple[tuple[str, ...], Iterator[tuple[str, ...]]]:
    """Headings and rows of a table."""
    headings = (
        "key",
        "family",
        "spec",
        "target",
        "toolchain",
        "state",
        "size",
        "compiled",
        "hits",
        "held",
        "age",
    )
    return headings, map(_row, kernels)


def _row(kernel: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        kernel["key"][:12],
        kernel["family"],
        spec_text(kernel["spec"]),
        kernel["soc_name"],
        f"{kernel['toolchain_kind']} {kernel['cann_version']}",
        _state_text(kernel),
        size_text(kernel["size_bytes"]),
        f"{kernel['compile_seconds']:.1f} s",
        str(kernel["hits"]),
        held_text(kernel),
        age_text(time.time() - kernel["created_unix"]) if kernel["created_unix"] else "",
    )


def _state_text(kernel: Mapping[str, Any]) -> str:
    state: str = kernel["state"]
    if state == "ready":
        return state if kernel["current"] else "ready (stale)"
    return state if state == "failed" else progress_text(state, kernel["place"], kernel["estimate_s"])


def held_text(kernel: Mapping[str, Any]) -> str:
    """What keeps a kernel in the store."""
    leases = kernel["leases"]
    held = [f"{leases} lease" + "s" * (leases > 1)] if leases else []
    return ", ".join(held + ["pinned"] * kernel["pinned"])


def spec_text(spec: Mapping[str, Any] | None) -> str:
    """A spec as ``key=value`` words, as the command line takes it; defaults that say nothing left out."""
    return " ".join(
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in (spec or {}).items()
        if name != "family" and value is not None and value is not False
    )


def size_text(size: int) -> str:
    """Bytes as a person reads them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def age_text(seconds: float) -> str:
    """A span of time in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def describe(link: DaemonLink, key: str) -> dict[str, Any]:
    """One kernel with everything the daemon knows of it."""
    reply = link.describe(key)
    return {
        **_summary(reply.summary),
        "path": reply.artifact_path,
        "passport": _decoded(reply.passport_json),
        "launch": _decoded(reply.launch_json),
        "choices": _decoded(reply.choices_json),
        "source": reply.source,
        "log": reply.log,
    }


def description_text(description: Mapping[str, Any]) -> str:
    """A kernel's description for a terminal, without source and log."""
    left_out = ("spec", "passport", "launch", "choices", "source", "log", "created_unix")
    head = {name: value for name, value in description.items() if name not in left_out}
    head["created"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(description["created_unix"]))
    choices = dict(description["choices"] or {})
    why = choices.pop("why", None)
    lines = _section(head)
    lines += ["", "passport", *_section(description["passport"], "  ")]
    lines += ["", "choices", *_section(choices, "  "), *_reasons(why or {})]
    lines += ["", "launch", *_section(description["launch"], "  ")]
    lines += ["", f"source: {len(description['source'])} characters (--source), log: --log"]
    return "\n".join(lines)


def _section(section: Mapping[str, Any] | None, indent: str = "") -> list[str]:
    pairs = list(flattened(section or {}))
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{indent}{name:<{width}}  {value}" for name, value in pairs]


def _reasons(why: Mapping[str, Any]) -> list[str]:
    """Why this tile: the reason, the runners-up, and the nearest of those that do not fit."""
    if not why:
        return []
    lines = [f"  why: {why['reason']} ({why['modelled_cycles']} modelled cycles)"]
    for one in why["runners_up"]:
        facts = ("modelled_cycles", "bound", "slower")
        lines.append(f"    {_tile_text(one, facts)}: {one['slower']}, bound by {one['bound']}")
    for one in why["too_large"]:
        missing = f"{one['excess_bytes']} bytes of {one['buffer']} too many"
        lines.append(f"    {_tile_text(one, ('buffer', 'excess_bytes'))}: {missing}")
    return lines


def _tile_text(tile: Mapping[str, Any], facts: Sequence[str]) -> str:
    return " ".join(f"{name}={value}" for name, value in tile.items() if name not in facts)


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """``a.b.c  value`` pairs of a nested object."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from flattened(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        for number, item in enumerate(value):
            yield from flattened(item, f"{path}[{number}]")
    else:
        yield path, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def explanation(reply: pb.ExplainResponse) -> dict[str, Any]:
    """An explanation as plain values."""
    from kaas.client.failure_listing import failure_record

    return {
        "key": reply.key,
        "hit": reply.hit,
        "reason": reply.reason,
        "nearest": [
            {
                "key": near.key,
                "differences": [
                    {
                        "path": difference.path,
                        "wanted": _decoded(difference.wanted_json),
                        "cached": _decoded(difference.cached_json),
                    }
                    for difference in near.differences
                ],
            }
            for near in reply.nearest
        ],
        "passport": _decoded(reply.passport_json),
        "failure": failure_record(reply.failure) if reply.HasField("failure") else None,
    }


def explanation_text(answer: Mapping[str, Any]) -> str:
    """An explanation for a terminal: the verdict, then what differs from the nearest kernels."""
    lines = [f"{'hit' if answer['hit'] else 'miss'}  {answer['key']}", answer["reason"]]
    if not answer["hit"]:
        for near in answer["nearest"]:
            lines += ["", f"nearest: {near['key'][:12]}"]
            for difference in near["differences"]:
                wanted, cached = (
                    msgspec.json.encode(difference[side]).decode() for side in ("wanted", "cached")
                )
                lines.append(f"  {difference['path']}: wanted {wanted}, cached {cached}")
    return "\n".join(lines)
