"""``kaas replay``: a recorded manifest's kernels built for this node's or another part, or only planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from kaas.client.daemon_link import DaemonLink
from kaas.client.kernel_listing import spec_text
from kaas.client.terminal import guarded, print_json, print_table
from kaas.proto.errors import KaasError
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.client.kernel_client import KernelClient
    from kaas.client.manifest import Entry


class Planned(NamedTuple):
    """What a replay would do with one kernel; a refused one has no key, and ``reason`` says why."""

    entry: Entry
    soc_name: str
    key: str
    state: Literal["there", "compile", "refused"]
    reason: str = ""


def add_replay_command(app: typer.Typer) -> None:
    """Hang the command into the command line."""
    app.command()(guarded(replay))


def replay(
    manifest: Annotated[Path, typer.Argument(help="YAML or JSON file, - for standard input.")],
    sku: Annotated[
        list[str] | None,
        typer.Option(
            "--sku",
            help="Build for this part instead, with this node's CANN; may be repeated.",
            show_default="the manifest's targets",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say keys, what is there and what would be compiled.")
    ] = False,
    label: Annotated[str, typer.Option(help="A name for the daemon's log.")] = "replay",
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", envvar="KAAS_STORE", help="The node's store.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> int:
    """Pre-warm what was recorded, here or for other parts; no NPU is needed.

    Exit status 0: all are warm, or planned; 1: some failed, or would be refused.
    """
    from kaas.client.kernel_client import KernelClient
    from kaas.client.manifest import on_toolchain, read_manifest
    from kaas.client.prewarm_progress import follow

    entries = read_manifest(manifest)
    if sku:
        entries = for_parts(entries, sku)
    client = KernelClient(store or default_store(), socket or default_socket())
    if any(entry.cann for entry in entries):
        entries = on_toolchain(entries, client.environment().toolchain.cann_version)
    if not plan:
        return follow(DaemonLink(socket or default_socket()), entries, label, json)
    planned = list(plan_of(client, entries))
    if json:
        print_json([_record(one) for one in planned])
    else:
        _print(planned)
    return 1 if any(one.state == "refused" for one in planned) else 0


def for_parts(entries: Sequence[Entry], soc_names: Sequence[str]) -> list[Entry]:
    """Each spec once for each of these parts, whatever it was recorded for; weights add up.

    Raises :class:`UnsupportedTarget`.
    """
    from kaas.kernel_library.targets import target_named

    found: dict[tuple[bytes, str], Entry] = {}
    for name in dict.fromkeys(target_named(name).soc_name for name in soc_names):
        for entry in entries:
            same = (entry.spec.canonical(), name)
            before = found.get(same)
            weight = entry.weight + (before.weight if before else 0.0)
            found[same] = entry._replace(soc_name=name, cann="", weight=weight)
    return list(found.values())


def plan_of(client: KernelClient, entries: Sequence[Entry]) -> Iterator[Planned]:
    """What would become of each entry, by the store alone once it says what it serves."""
    from kaas.client.store_reader import target_for

    environment = client.environment()
    for entry in entries:
        soc_name = entry.soc_name or environment.target.soc_name
        try:
            entry.spec.check_target(target_for(environment, soc_name))
            key = client.key((entry.spec, entry.soc_name or None))
        except KaasError as error:
            yield Planned(entry, soc_name, "", "refused", error.message)
            continue
        is_there = client.artifact_path(key).exists()
        yield Planned(entry, soc_name, key, "there" if is_there else "compile")


def _record(one: Planned) -> dict[str, Any]:
    return {
        "line": one.entry.line,
        "spec": one.entry.spec.to_record(),
        "soc_name": one.soc_name,
        "weight": one.entry.weight,
        "key": one.key,
        "state": one.state,
        "reason": one.reason,
    }


def _print(planned: Sequence[Planned]) -> None:
    print_table(
        ("state", "key", "target", "weight", "kernel"),
        (
            (
                one.state,
                one.key[:12],
                one.soc_name,
                f"{one.entry.weight:g}",
                f"{one.entry.spec.family} {spec_text(one.entry.spec.to_record())}",
            )
            for one in planned
        ),
    )
    for one in planned:
        if one.reason:
            print(f"line {one.entry.line}: {one.reason}")
    count = {state: sum(one.state == state for one in planned) for state in ("there", "compile", "refused")}
    print(f"{count['there']} there, {count['compile']} to compile, {count['refused']} refused")
