"""``kaas``: the command line. Only the command line imports typer and rich."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kaas.client import exit_status
from kaas.client.bundle_commands import add_bundle_commands
from kaas.client.daemon_link import READINESS, DaemonLink
from kaas.client.fsck_command import add_fsck_command
from kaas.client.kernel_client import KernelClient, Question
from kaas.client.manifest_commands import add_manifest_commands
from kaas.client.spec_arguments import spec_from_words, specs_from_words
from kaas.client.store_commands import add_store_commands
from kaas.client.terminal import guarded, print_fields, print_json, print_table
from kaas.proto.locations import default_socket, default_store

app = typer.Typer(
    name="kaas",
    help="Compiled kernels for Huawei Ascend NPUs, by spec. Exit status: 0 fine, 1 failed, 2 wrong usage, "
    "3 not found, 4 no daemon, 5 too late, 6 trouble on this node.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Socket = Annotated[
    Path | None,
    typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
]
Store = Annotated[
    Path | None, typer.Option("--store", envvar="KAAS_STORE", help="The node's store.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Soc = Annotated[
    str | None, typer.Option("--soc", help="Another part's SoC name.", show_default="this node's")
]
Spec = Annotated[
    list[str],
    typer.Argument(help="FAMILY KEY=VALUE ..., or one JSON object, or a file with one.", show_default=False),
]
Tile = Annotated[
    str,
    typer.Option(
        "--tile",
        help="Override the tile choice: KEY=VALUE,... of the family's tile.",
        show_default="chosen by the cost model",
    ),
]


def _link(socket: Path | None) -> DaemonLink:
    return DaemonLink(socket or default_socket())


def _print_version(wanted: bool) -> None:
    if wanted:
        from kaas import __version__

        print(f"kaas {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before a command."""


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
@guarded
def serve(context: typer.Context) -> int:
    """Run the daemon in the foreground (kaas serve --help lists its settings)."""
    from kaas.client.daemon_command import serve as run

    return run(context.args)


@app.command()
@guarded
def get(
    spec: Spec,
    soc: Soc = None,
    tile: Tile = "",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for a compile.")] = 600.0,
    strict: Annotated[bool, typer.Option("--strict", help="Fail instead of compiling.")] = False,
    priority: Annotated[
        str | None,
        typer.Option(help="Who waits: rank, user or prewarm.", show_default="rank under a launcher"),
    ] = None,
    socket: Socket = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Get a kernel, compiling it if need be; say its key, where it came from and how long it took.

    A composite's spec gets each of its kernels.
    """
    client = KernelClient(store or default_store(), socket or default_socket())
    found = [
        _facts_of_get(client, (part, soc), timeout, strict, priority) for part in specs_from_words(spec, tile)
    ]
    if json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for number, facts in enumerate(found):
        if number:
            print()
        print_fields((name.replace("_", " "), str(value)) for name, value in facts.items())


def _facts_of_get(
    client: KernelClient, question: Question, timeout: float, strict: bool, priority: str | None
) -> dict[str, Any]:
    """Get one kernel; what there is to say of it."""
    from kaas.client.waiting_line import shown_waiting

    began = time.perf_counter()
    handle = client.find(question)
    if handle is None:
        with shown_waiting(client, question):
            handle = client.fetch(question, timeout, strict, priority)
    taken_ms = 1000 * (time.perf_counter() - began)
    path = client.artifact_path(handle.key)
    target, toolchain = handle.passport.target, handle.passport.toolchain
    return {
        "key": handle.key,
        "family": question[0].family,
        "outcome": "hit" if handle.origin == "store" else handle.origin,
        "from": "store" if handle.origin == "store" else "daemon",
        "path": str(path) if path.exists() else "",
        "target": f"{target.soc_name}, {target.cube_cores} cube cores",
        "toolchain": f"{toolchain.kind} {toolchain.cann_version}",
        "compile_seconds": round(handle.compile_seconds, 3),
        "taken_ms": round(taken_ms, 3),
    }


@app.command()
@guarded
def ls(
    family: Annotated[str, typer.Option(help="Only this family.")] = "",
    soc: Annotated[str, typer.Option(help="Only this SoC name.")] = "",
    cann: Annotated[str, typer.Option(help="Only this CANN version.")] = "",
    dtype: Annotated[str, typer.Option(help="Only this dtype.")] = "",
    state: Annotated[str, typer.Option(help="ready, compiling, queued or failed.")] = "",
    text: Annotated[str, typer.Option(help="Part of the key or the spec.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 1000,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """List cached kernels, last used first."""
    from kaas.client.kernel_listing import list_kernels, listing_rows

    filters = {"family": family, "soc_name": soc, "cann_version": cann, "dtype": dtype, "state": state}
    kernels, total = list_kernels(_link(socket), limit, text=text, **filters)
    if json:
        print_json(kernels)
        return
    print_table(*listing_rows(kernels))
    if total > len(kernels):
        print(f"{len(kernels)} of {total}; --limit shows more")


@app.command()
@guarded
def show(
    key: Annotated[str, typer.Argument(help="A key, or its first digits (6 or more).", show_default=False)],
    source: Annotated[bool, typer.Option("--source", help="Only the Ascend C source.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Only the compile log.")] = False,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show one cached kernel: passport, launch metadata, tile choices; its source or log on request."""
    from kaas.client.kernel_listing import describe, description_text

    description = describe(_link(socket), key)
    if source or log:
        print("\n".join(description[name] for name, wanted in (("source", source), ("log", log)) if wanted))
    elif json:
        print_json(description)
    else:
        print(description_text(description))


@app.command()
@guarded
def explain(spec: Spec, soc: Soc = None, tile: Tile = "", socket: Socket = None, json: Json = False) -> None:
    """Say why a spec hits or misses on this node, field by field."""
    from kaas.client.kernel_listing import explanation, explanation_text

    answer = explanation(_link(socket).explain(spec_from_words(spec, tile).canonical(), soc))
    if json:
        print_json(answer)
    else:
        print(explanation_text(answer))


@app.command()
@guarded
def failures(
    clear: Annotated[
        str, typer.Option("--clear", metavar="KEY", help="Forget one, so that it is tried again.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Forget all.")] = False,
    family: Annotated[str, typer.Option(help="Only this family.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 1000,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """List compiles that failed and are remembered, newest first; or forget them."""
    from kaas.client.failure_listing import failure_lines, list_failures

    link = _link(socket)
    if clear or everything:
        keys = link.clear_failures(clear, everything=everything)
        if json:
            print_json(keys)
        else:
            print(f"{len(keys)} forgotten" + "".join(f"\n{key}" for key in keys))
        return
    found, total = list_failures(link, limit, family)
    if json:
        print_json(found)
        return
    for line in failure_lines(found):
        print(line)
    if total > len(found):
        print(f"{len(found)} of {total}; --limit shows more")


@app.command()
@guarded
def prewarm(
    manifest: Annotated[Path, typer.Argument(help="YAML or JSON file, - for standard input.")],
    label: Annotated[str, typer.Option(help="A name for the daemon's log.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the manifest.")] = False,
    socket: Socket = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
) -> int:
    """Compile a manifest's kernels behind foreground work. Exit status 0: all are warm; 1: some failed."""
    from kaas.client.manifest import on_toolchain, read_manifest
    from kaas.client.prewarm_progress import follow

    entries = read_manifest(manifest)
    if check:
        print(f"{len(entries)} kernels")
        return 0
    link = _link(socket)
    if any(entry.cann for entry in entries):
        entries = on_toolchain(entries, link.environment().toolchain.cann_version)
    return follow(link, entries, label, json)


@app.command()
@guarded
def env(socket: Socket = None, store: Store = None, json: Json = False) -> None:
    """Show what decides keys on this node: target, toolchain, generator."""
    client = KernelClient(store or default_store(), socket or default_socket())
    environment = msgspec.to_builtins(client.environment())
    if json:
        print_json(environment)
    else:
        from kaas.client.kernel_listing import flattened

        print_fields(flattened(environment))


@app.command()
@guarded
def health(
    ready: Annotated[bool, typer.Option("--ready", help="Also want warm workers.")] = False,
    socket: Socket = None,
) -> int:
    """Ask the daemon whether it serves. Exit status 0: yes; 1: no; 4: nobody answers."""
    good = _link(socket).health(READINESS if ready else "")
    print(("ready" if ready else "serving") if good else "not " + ("ready" if ready else "serving"))
    return 0 if good else exit_status.FAILED


@app.command()
@guarded
def doctor(socket: Socket = None, store: Store = None, json: Json = False) -> int:
    """Check packages, toolkit, socket, store, permissions; say what to do. Exit status 1: something fails."""
    from kaas.client.doctor import examine

    findings = examine(store or default_store(), socket or default_socket())
    if json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(f"{finding.status:<4}  {finding.subject}: {finding.message}")
            if finding.advice:
                print(f"      -> {finding.advice}")
    return exit_status.FAILED if any(finding.status == "fail" for finding in findings) else 0


@app.command()
@guarded
def families(
    name: Annotated[str, typer.Argument(help="One family: its page.", show_default=False)] = "",
    json: Json = False,
) -> None:
    """List kernel families, or show one: its fields, arguments, reference; with --json, the JSON Schemas."""
    from kaas.kernel_library import kernel_pages, registry

    if name in registry.composite_names():
        composite = registry.composite_named(name)
        if json:
            print_json(registry.json_schema(composite.spec_type))
        else:
            print(kernel_pages.composite_text(composite), end="")
        return
    if name:
        family = registry.family_named(name)
        if json:
            print_json(registry.json_schema(family.spec_type))
        else:
            print(kernel_pages.page_text(family), end="")
        return
    if json:
        print_json(registry.schemas())
        return
    rows = []
    known = {
        name: (family.summary, registry.json_schema(family.spec_type))
        for name, family in registry.families().items()
    }
    for name in registry.composite_names():
        composite = registry.composite_named(name)
        known[name] = (composite.summary, registry.json_schema(composite.spec_type))
    for name, (summary, schema) in sorted(known.items()):
        required = set(schema.get("required", []))
        fields = [field if field in required else f"({field})" for field in schema["properties"]]
        rows.append((name, summary, " ".join(field for field in fields if field != "family")))
    print_table(("family", "what", "fields, (optional)"), rows)


@app.command()
@guarded
def demo() -> int:
    """Start a private daemon, compile a real GEMM for two parts, run one on the CPU twin, check it."""
    from kaas.client.demo import run

    return run()


add_store_commands(app)
add_fsck_command(app)
add_bundle_commands(app)
add_manifest_commands(app)


def main() -> None:
    """Entry point of the ``kaas`` command."""
    app()


if __name__ == "__main__":
    main()
