"""Following a pre-warm job: a live bar on a terminal, a line per kernel elsewhere, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kaas.client import exit_status
from kaas.client.kernel_listing import spec_text
from kaas.proto.errors import DaemonUnavailable

if TYPE_CHECKING:
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.manifest import Entry
    from kaas.proto.v1 import kernel_service_pb2 as pb

_OUTCOMES = ("", "hit", "compiled", "joined")


def follow(link: DaemonLink, entries: Sequence[Entry], label: str, as_json: bool) -> int:
    """Run the job to its end; returns 0 when every kernel is warm, else 1.

    Raises :class:`DaemonUnavailable` when the daemon goes away before the end.
    """
    events = link.prewarm([(entry.spec.canonical(), entry.soc_name) for entry in entries], label)
    if as_json:
        last = _print_events(events, entries)
    elif sys.stderr.isatty():
        last = _show_bar(events, entries)
    else:
        last = _print_lines(events, entries)
    if last is None or not last.finished or last.ready + last.failed < last.total:
        raise DaemonUnavailable(
            "the daemon ended the job before it was done", hint="run it again; it goes on"
        )
    if not as_json:
        print(f"{last.ready} of {last.total} kernels are warm, {last.failed} failed")
    return 0 if last.ready == last.total else exit_status.FAILED


def _print_events(events: Iterator[pb.PrewarmEvent], entries: Sequence[Entry]) -> pb.PrewarmEvent | None:
    last = None
    for last in events:
        record: dict[str, Any] = {
            "total": last.total,
            "done": last.done,
            "ready": last.ready,
            "failed": last.failed,
            "finished": last.finished,
            "job_id": last.job_id,
        }
        if _is_entry(last):
            record |= {
                "index": last.index,
                "line": entries[last.index].line,
                "key": last.key,
                "outcome": _OUTCOMES[last.outcome],
                "seconds": last.seconds,
                "error": json.loads(last.error_json) if last.error_json else None,
            }
        print(json.dumps(record), flush=True)
    return last


def _print_lines(events: Iterator[pb.PrewarmEvent], entries: Sequence[Entry]) -> pb.PrewarmEvent | None:
    last = None
    for last in events:
        if _is_entry(last):
            print(f"[{last.done}/{last.total}] {_line(last, entries)}", flush=True)
    return last


def _show_bar(events: Iterator[pb.PrewarmEvent], entries: Sequence[Entry]) -> pb.PrewarmEvent | None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    last = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("warming", total=len(entries))
        for last in events:
            progress.update(task, completed=last.done, total=last.total)
            if _is_entry(last) and last.error_json:
                progress.console.print(_line(last, entries), markup=False, highlight=False)
    return last


def _is_entry(event: pb.PrewarmEvent) -> bool:
    return bool(event.key or event.error_json)


def _line(event: pb.PrewarmEvent, entries: Sequence[Entry]) -> str:
    entry = entries[event.index]
    what = f"{entry.spec.family} {spec_text(entry.spec.to_record())}"
    if event.error_json:
        message = json.loads(event.error_json).get("message", event.error_json)
        return f"failed (line {entry.line}): {what}: {message}"
    return f"{_OUTCOMES[event.outcome]:<8} {event.key[:12]} {what} ({event.seconds:.1f} s)"
