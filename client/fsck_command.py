"""``kaas fsck``: check every artifact of a store, with a daemon at work there or without."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kaas.client import exit_status
from kaas.client.daemon_link import DaemonLink
from kaas.client.kernel_listing import size_text
from kaas.client.socket_probe import probe
from kaas.client.terminal import guarded, print_json
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.cache.fsck import Report

_POLL_S = 0.1


def add_fsck_command(app: typer.Typer) -> None:
    """Hang the command into the command line."""
    app.command()(guarded(fsck))


def fsck(
    store: Annotated[
        Path | None,
        typer.Option("--store", envvar="KAAS_STORE", help="The node's store.", show_default=False),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Have the running daemon do it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look; change nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> int:
    """Check every artifact, the index and all modes of a store, and put right what can be.

    Without a daemon the store is checked here; with one, --online has the daemon check its artifacts while it
    serves, and --dry-run looks without changing anything. Exit status: 0 clean or put right, 1 problems left.
    """
    if online and dry_run:
        raise InvalidRequest(
            "a daemon that checks its store puts damage away, so --online is never dry",
            field="dry_run",
            legal="--online, or --dry-run, which may be used while a daemon runs",
        )
    if online:
        return _online(socket or default_socket(), json)
    # Here, because it needs the daemon's packages, which a node with clients alone does without.
    from kaas.cache import fsck as store_check

    root = store or default_store()
    report = store_check.examine(root, _told) if dry_run else store_check.put_right(root, _told)
    if json:
        print_json(msgspec.to_builtins(report) | {"clean": report.is_clean, "sound": report.is_sound})
    else:
        for problem in report.problems:
            end = "put right" if problem.put_right else f"to do: {problem.cure}"
            print(f"{problem.kind}: {problem.path}: {problem.message}; {end}")
        indexed = "" if dry_run else f", {report.indexed} index rows"
        print(
            f"{report.checked} artifacts ({size_text(report.checked_bytes)}){indexed} checked in "
            f"{report.store}: {_count(report)}"
        )
    return 0 if report.is_sound else exit_status.FAILED


def _count(report: Report) -> str:
    if report.is_clean:
        return "no problems"
    right = sum(problem.put_right for problem in report.problems)
    return f"{len(report.problems)} problems, {right} put right"


def _told(checked: int) -> None:
    if checked % 1000 == 0 and sys.stderr.isatty():
        print(f"{checked} checked ...", file=sys.stderr)


def _online(socket: Path, json: bool) -> int:
    problem = probe(socket)
    if problem is not None:
        raise problem
    link = DaemonLink(socket)
    state = link.scrub(start=True)
    wanted = state.asked_for
    while state.passes < wanted:
        time.sleep(_POLL_S)
        state = link.scrub(start=False)
    facts: dict[str, Any] = {field.name: getattr(state, field.name) for field in state.DESCRIPTOR.fields}
    facts["damaged_keys"] = list(state.damaged_keys)
    if json:
        print_json(facts)
        return 0
    for key in state.damaged_keys:
        print(f"damaged: {key}: in quarantine, and built anew when somebody asks for it; put right")
    what = f"{state.damaged} damaged, put right" if state.damaged else "no problems"
    print(f"{state.checked} artifacts ({size_text(state.checked_bytes)}) checked by the daemon: {what}")
    return 0
