"""``kaas prewarm``: a manifest, or one shard of it, compiled by this node's daemon or by a Ray cluster."""

from __future__ import annotations

import json as json_text
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kaas.client.terminal import guarded
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket, default_store


def add_prewarm_command(app: typer.Typer) -> None:
    """Hang the command into the command line."""
    app.command()(guarded(prewarm))


def prewarm(
    manifest: Annotated[Path, typer.Argument(help="YAML or JSON file, - for standard input.")],
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Only this part, from 0; auto: from the environment of an Indexed Job or a Slurm array.",
            show_default="all",
        ),
    ] = "",
    costs: Annotated[
        Path | None,
        typer.Option(
            help="What kaas manifest costs wrote: makes shards even. The same file for all of them.",
            show_default="estimates",
        ),
    ] = None,
    failures: Annotated[
        Path | None, typer.Option(help="Write what failed to this JSON file.", show_default=False)
    ] = None,
    ray: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Share it among a Ray cluster's nodes.", show_default="off"),
    ] = "",
    builder_config: Annotated[
        Path | None,
        typer.Option(help="With --ray: TOML file of builders that have to be started.", show_default=False),
    ] = None,
    label: Annotated[str, typer.Option(help="A name for the daemon's log.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the manifest.")] = False,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", envvar="KAAS_STORE", help="The node's store.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
) -> int:
    """Compile a manifest's kernels behind foreground work. Exit status 0: all are warm; 1: some failed.

    What is there already is skipped, so that a run that was cut short goes on where it ended.
    """
    from kaas.client.compile_plan import CostTable, learned_costs, read_costs
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.manifest import on_toolchain, read_manifest
    from kaas.client.prewarm_progress import ends_of_job, show
    from kaas.client.prewarm_run import PrewarmRun, Task, failures_record, in_order
    from kaas.client.sharding import parse_shard, split

    if shard and ray:
        raise InvalidRequest("--ray makes shards itself", field="shard", legal="--shard or --ray")
    if builder_config is not None and not ray:
        raise InvalidRequest(
            "no builder is started without --ray", field="builder_config", legal="only with --ray"
        )
    part = parse_shard(shard, os.environ) if shard else None
    given = read_costs(costs) if costs else CostTable()
    entries = read_manifest(manifest)
    positions = split(entries, part.of, given)[part.number] if part else range(len(entries))
    about = {"shard": str(part)} if part else {}
    if check:
        print(f"{len(positions)} kernels" + (f" of {len(entries)} in shard {part}" if part else ""))
        return 0
    tasks = in_order(Task(position, entries[position]) for position in positions)
    if ray:
        from kaas.client.ray_builders import ends_of_cluster

        run = PrewarmRun(tasks, given)
        config = _text_of(builder_config) if builder_config else ""
        ends = ends_of_cluster(ray, tasks, given, label=label, builder_config=config)
    else:
        link = DaemonLink(socket or default_socket())
        if any(task.entry.cann for task in tasks):
            version = link.environment().toolchain.cann_version
            if part is None:
                on_toolchain(entries, version)  # refuses a manifest that is for others only
            tasks = [task for task in tasks if task.entry.cann in ("", version)]
        run = PrewarmRun(tasks, given if costs else learned_costs(store or default_store()))
        # A manifest of few kernels may leave a shard without any; that is done at once.
        ends = ends_of_job(link, tasks, label or (f"shard {part}" if part else "")) if tasks else iter(())
    try:
        return show(run, ends, json, about)
    finally:
        if failures is not None:
            _write(failures, failures_record(run, {"manifest": str(manifest), **about}))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error}", field="builder_config", legal="a TOML file"
        ) from None


def _write(path: Path, record: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json_text.dumps(record, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror}",
            field="failures",
            legal="a file that can be written",
        ) from None
