"""``kaas forecast``: what an upgrade makes cold, what rebuilding takes, and doing it beforehand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaas.client.kernel_listing import size_text, spec_text
from kaas.client.terminal import guarded, print_json, print_table
from kaas.proto.errors import InvalidRequest, StoreUnavailable
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.client.forecast import Forecast
    from kaas.client.live_kernels import StoreContents
    from kaas.proto.environment import Environment


def add_forecast_command(app: typer.Typer) -> None:
    """Hang the command into the command line."""
    app.command(name="forecast")(guarded(forecast))


def forecast(
    sku: Annotated[str, typer.Option(help="Another part's SoC name.", show_default=False)] = "",
    cann: Annotated[str, typer.Option(help="Another CANN version.", show_default=False)] = "",
    toolkit: Annotated[
        Path | None, typer.Option(help="Home of another toolkit, read to compute keys.", show_default=False)
    ] = None,
    kaas_version: Annotated[str, typer.Option(help="Another version of kaas.", show_default=False)] = "",
    environment: Annotated[
        Path | None,
        typer.Option(help="environment.json of a store that has the new versions.", show_default=False),
    ] = None,
    prebuild: Annotated[
        bool, typer.Option("--prebuild", help="Build what will be cold, beside what is in use.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="With --prebuild and a toolkit: into this file, not the store.", show_default=False
        ),
    ] = None,
    manifest_out: Annotated[
        Path | None, typer.Option(help="Write what will be cold as a manifest.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Compiles at once.", show_default="cores")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show at most this many kernels.")] = 20,
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
    """Say which live kernels a change makes cold and what rebuilding takes. Works without a daemon, too.

    Exit status 0, or 1 when --prebuild could not build all.
    """
    from kaas.cache.environment_file import read_environment
    from kaas.client.compile_plan import learned_costs
    from kaas.client.forecast import forecast as made
    from kaas.client.forecast import record_of
    from kaas.client.forecast_changes import planned_change
    from kaas.client.live_kernels import read_contents

    place, daemon = store or default_store(), socket or default_socket()
    if bundle is not None and not prebuild:
        raise InvalidRequest("nothing is built without --prebuild", field="bundle", legal="with --prebuild")
    now = read_environment(place)
    if now is None:
        raise StoreUnavailable(
            f"{place} does not say which toolchain it serves, so that keys cannot be computed",
            hint="start its daemon once",
            path=str(place),
        )
    change = planned_change(
        now, sku=sku, cann=cann, kaas_version=kaas_version, toolkit=toolkit, environment_file=environment
    )
    contents = read_contents(place, daemon, now)
    found = made(change, contents, learned_costs(place))
    parallel = workers or len(os.sched_getaffinity(0))
    record = record_of(found, contents, parallel)
    if json:
        print_json(record)
    else:
        _print(found, contents, record, limit)
    if manifest_out is not None:
        _write_manifest(manifest_out, found, now, cann)
    return _prebuild(found, now, place, daemon, bundle, json) if prebuild else 0


def _prebuild(
    found: Forecast, now: Environment, store: Path, socket: Path, bundle: Path | None, as_json: bool
) -> int:
    from kaas.client.bundle_contents import create_bundle
    from kaas.client.compile_plan import learned_costs
    from kaas.client.prebuild import bring_in, builder, ends_of_prebuild, require_buildable, tasks_of
    from kaas.client.prewarm_progress import show
    from kaas.client.prewarm_run import PrewarmRun

    require_buildable(found.change, now)
    tasks = tasks_of(found)
    run = PrewarmRun(tasks, learned_costs(store))
    if not tasks:
        return show(run, iter(()), as_json)
    with builder(found.change, now, socket) as (link, built):
        if bundle is not None and built is None:
            raise InvalidRequest(
                "the node's own daemon builds for this change, into its store",
                hint="kaas bundle create writes bundles of stored kernels",
                field="bundle",
                legal="with --toolkit",
            )
        status = show(run, ends_of_prebuild(link, found, tasks), as_json)
        if built is None:
            return status
        failed = {end.task.position for end in run.failures}
        keys = [fate.new_key for position, fate in enumerate(found.of("cold")) if position not in failed]
        told: dict[str, Any] = {"prebuilt": len(keys)}
        if bundle is not None:
            if keys:
                create_bundle(bundle, built, dict.fromkeys(keys, "forecast"))
            told |= {"bundle": str(bundle) if keys else None}
        else:
            told |= {"added": bring_in(built, keys, store, socket)}
    if as_json:
        print_json(told)
    else:
        print(f"{len(keys)} kernels are in {bundle if bundle is not None else store}")
    return status


def _print(found: Forecast, contents: StoreContents, record: dict[str, Any], limit: int) -> None:
    change, totals = found.change, record["totals"]
    print(f"change      {change.reason}")
    certain = {
        "exact": "exact: the new keys are computed",
        "certain": "certain to change; the new keys are not known",
        "assumed": "assumed, not known",
    }
    print(f"keys        {certain[change.certainty]}")
    print(
        f"kernels     {totals['kernels']} live: {totals['unchanged']} stay, "
        f"{totals['prebuilt']} are built already, {totals['cold']} go cold, "
        f"{totals['unserved']} cannot be had"
    )
    if contents.stale or contents.damaged:
        print(f"beside      {contents.stale} that nobody would ask for today, {contents.damaged} damaged")
    if contents.asked_daemon:
        share = totals["cold_share_of_hits"]
        print(
            f"use         {totals['cold_hits']} of {totals['hits']} hits were of kernels that go cold"
            + (f" ({share:.0%})" if share is not None else "")
        )
    else:
        print("use         not known: no daemon serves the store")
    print(
        f"rebuilding  {totals['cpu_minutes']:.1f} CPU minutes, about {totals['wall_minutes']:.1f} minutes "
        f"with {totals['workers']} at once"
    )
    print(
        f"memory      {size_text(totals['peak_bytes_of_one'])} for the largest, "
        f"{size_text(totals['peak_bytes_at_once'])} with {totals['workers']} at once"
    )
    if record["families_without_history"]:
        print(
            f"estimated   {', '.join(record['families_without_history'])}: no daemon of this store built any"
        )
    for assumption in change.assumptions:
        print(f"assumed     {assumption}")
    rows = [fate for fate in record["kernels"] if fate["state"] in ("cold", "unserved")][:limit]
    if rows:
        print()
        print_table(
            ("key", "family", "spec", "target", "state", "hits", "CPU s", "why"),
            [
                (
                    fate["key"][:12],
                    fate["family"],
                    spec_text(fate["spec"]),
                    fate["soc_name"],
                    fate["state"],
                    "" if fate["hits"] is None else str(fate["hits"]),
                    f"{fate['cpu_seconds']:.1f}",
                    fate["why"][:60],
                )
                for fate in rows
            ],
        )
        rest = totals["cold"] + totals["unserved"] - len(rows)
        if rest:
            print(f"and {rest} more; --limit shows them")


def _write_manifest(path: Path, found: Forecast, now: Environment, cann: str) -> None:
    from kaas.client.manifest_commands import write_manifest
    from kaas.client.manifest_document import ManifestDocument, ManifestEntry, ManifestTarget
    from kaas.kernel_library.registry import parse_spec

    after = found.change.environment
    version = after.toolchain.cann_version if after else cann or now.toolchain.cann_version
    cold = found.of("cold")
    if not cold:
        raise InvalidRequest(
            "no kernel goes cold, and a manifest has at least one", field="manifest_out", legal="none"
        )
    entries = tuple(
        ManifestEntry(
            spec=parse_spec(fate.kernel.passport.spec),
            weight=float(max(1, fate.kernel.use.hits if fate.kernel.use else 1)),
            targets=(ManifestTarget(fate.target.soc_name, version),),
        )
        for fate in cold
    )
    document = ManifestDocument(entries, comment=f"cold after: {found.change.reason}")
    write_manifest(document, path, as_json=False)
