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
from kaas.proto.errors import DaemonUnavailable, DeadlineExceeded, InvalidRequest, StoreUnavailable
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.cache.fsck import Report
    from kaas.proto.v1 import kernel_service_pb2 as pb

_POLL_S = 0.1
_CALL_S = 30.0


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
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="With --online: seconds without progress, at most.")
    ] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> int:
    """Check every artifact, the index and all modes of a store, and put right what can be.

    Without a daemon the store is checked here; with one, --online has the daemon check its artifacts while it
    serves, and --dry-run looks without changing anything. Exit status: 0 clean or put right, 1 problems left
    or directories skipped.
    """
    if online and dry_run:
        raise InvalidRequest(
            "a daemon that checks its store puts damage away, so --online is never dry",
            field="dry_run",
            legal="--online, or --dry-run, which may be used while a daemon runs",
        )
    if online:
        return _online(socket or default_socket(), timeout, json)
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


def _online(socket: Path, patience_s: float, json: bool) -> int:
    problem = probe(socket)
    if problem is not None:
        raise problem
    link = DaemonLink(socket)
    state = _checked(link, patience_s)
    facts: dict[str, Any] = {field.name: getattr(state, field.name) for field in state.DESCRIPTOR.fields}
    facts["damaged_keys"] = list(state.damaged_keys)
    facts["skipped"] = [{"path": one.path, "reason": one.reason} for one in state.skipped]
    if json:
        print_json(facts)
    else:
        for key in state.damaged_keys:
            print(f"damaged: {key}: in quarantine, and built anew when somebody asks for it; put right")
        for one in state.skipped:
            print(f"skipped: {one.path}: {one.reason}; to do: look at it, or move it away, and check again")
        found = f"{state.damaged} damaged, put right" if state.damaged else "no problems"
        if state.skipped:
            found = f"{state.damaged} damaged, {len(state.skipped)} directories skipped"
        print(f"{state.checked} artifacts ({size_text(state.checked_bytes)}) checked by the daemon: {found}")
    return exit_status.FAILED if state.skipped else 0


def _checked(link: DaemonLink, patience_s: float) -> pb.ScrubResponse:
    """The state when the daemon has checked everything.

    Raises :class:`StoreUnavailable` when it cannot list its store, :class:`DeadlineExceeded` when it gets
    nowhere for ``patience_s``, :class:`DaemonUnavailable` when it is not the one that was asked any more.
    """
    state = link.scrub(start=True, timeout=min(_CALL_S, patience_s))
    wanted, failures = state.asked_for, state.failures
    moved, progress = time.monotonic(), (state.passes, state.checked)
    while state.passes < wanted:
        if state.failures > failures:
            raise StoreUnavailable(
                f"the daemon cannot check its store: {state.trouble}",
                hint="look at that directory; the daemon tries again by itself",
            )
        if state.asked_for < wanted:
            raise DaemonUnavailable("the daemon was started anew meanwhile", hint="ask again")
        now = time.monotonic()
        if (state.passes, state.checked) != progress:
            moved, progress = now, (state.passes, state.checked)
        if now - moved > patience_s:
            raise DeadlineExceeded(
                f"the daemon has checked nothing more for {patience_s:g} s",
                hint="it goes on by itself; its log says what it waits for, and --timeout waits longer",
                timeout_s=patience_s,
            )
        time.sleep(min(_POLL_S, patience_s))
        state = link.scrub(start=False, timeout=min(_CALL_S, patience_s))
    return state
