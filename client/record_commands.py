"""``kaas record export``, ``show``: what processes recorded of their get_kernel streams."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kaas.client.daemon_link import DaemonLink
from kaas.client.kernel_listing import spec_text
from kaas.client.manifest_commands import write_manifest
from kaas.client.terminal import guarded, print_json, print_table
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket

if TYPE_CHECKING:
    from kaas.client.process_record import ProcessRecord
    from kaas.client.record_merging import Wanted

Places = Annotated[
    list[Path] | None,
    typer.Argument(help="Directories that KAAS_RECORD named, or record files.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def add_record_commands(app: typer.Typer) -> None:
    """Hang the commands into the command line."""
    group = typer.Typer(
        name="record",
        help="What processes asked for, as they recorded it (KAAS_RECORD=DIRECTORY).",
        no_args_is_help=True,
    )
    for command in (export, show):
        group.command()(guarded(command))
    app.add_typer(group)


def export(
    places: Places = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write to this file, JSON if its name ends so.", show_default=False
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="count: how often it was asked for; wait: seconds waited for it.")
    ] = "count",
    targets: Annotated[
        bool, typer.Option("--targets/--no-targets", help="Name the parts and CANN that it was recorded on.")
    ] = True,
    from_audit: Annotated[
        bool, typer.Option("--from-audit", help="What the daemon's audit log and list of kernels tell, too.")
    ] = False,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Print the manifest of what all of these processes asked for, ranks and jobs together."""
    from kaas.client.record_merging import WEIGHTS, manifest_of, merged

    if weights not in WEIGHTS:
        raise InvalidRequest(f"weights is {weights[:80]!r}", field="weights", legal=list(WEIGHTS))
    records: list[ProcessRecord] = []
    if from_audit:
        from kaas.client.audited_requests import records_of_audit

        if weights == "wait":
            raise InvalidRequest("the audit does not say who waited", field="weights", legal=["count"])
        records += records_of_audit(DaemonLink(socket or default_socket()))
    if places or not from_audit:
        records += _read(places)
    comment = f"recorded by {len(records)} process{'es' if len(records) != 1 else ''}"
    document = manifest_of(merged(records), weights=weights, targets=targets, comment=comment)
    write_manifest(document, output, json)


def show(places: Places = None, json: Json = False) -> None:
    """Show what was asked for, how often, how long processes waited, and what they got."""
    from kaas.client.record_merging import merged

    records = _read(places)
    wanted = merged(records)
    left_out = sum(record.left_out for record in records)
    if json:
        print_json(
            {
                "processes": len(records),
                "left_out": left_out,
                "kernels": [
                    {
                        "spec": msgspec.json.decode(one.spec_json),
                        **one.target._asdict(),
                        "count": one.count,
                        "waited_s": round(one.waited_s, 6),
                        "outcomes": dict(one.outcomes),
                        "wanted_by": list(one.wanted_by()),
                    }
                    for one in wanted
                ],
            }
        )
        return
    print_table(("kernel", "target", "count", "waited", "outcomes", "wanted by"), map(_row, wanted))
    print(f"{len(wanted)} kernels, asked for by {len(records)} processes")
    if left_out:
        print(f"{left_out} more were not recorded: a process records a limited number of kernels")


def _row(one: Wanted) -> Sequence[str]:
    spec = msgspec.json.decode(one.spec_json)
    return (
        f"{spec.get('family')} {spec_text(spec)}",
        " ".join(filter(None, one.target)),
        str(one.count),
        f"{one.waited_s:.1f} s",
        ", ".join(f"{name} {count}" for name, count in one.outcomes.most_common()),
        "; ".join(one.wanted_by()),
    )


def _read(places: Sequence[Path] | None) -> list[ProcessRecord]:
    from kaas.client.record_merging import read_records

    if not places:
        raise InvalidRequest("no place is named", field="places", legal="directories or record files")
    records, skipped = read_records(places)
    for one in skipped:
        print(f"kaas: left out {one.path}: {one.reason}", file=sys.stderr)
    return records
