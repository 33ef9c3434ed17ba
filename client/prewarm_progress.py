"""Showing a pre-warm: a live bar with the time that is left, a line per kernel, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kaas.client import exit_status
from kaas.client.compile_plan import CostTable
from kaas.client.kernel_listing import spec_text
from kaas.client.prewarm_run import PrewarmRun, Task, TaskEnd
from kaas.proto.errors import DaemonUnavailable

if TYPE_CHECKING:
    from kaas.client.daemon_link import DaemonLink
    from kaas.client.manifest import Entry

_OUTCOMES = ("", "hit", "compiled", "joined", "fetched")


def follow(link: DaemonLink, entries: Sequence[Entry], label: str, as_json: bool) -> int:
    """Have the daemon warm these entries and show it; returns 0 when every kernel is warm, else 1.

    Raises :class:`DaemonUnavailable` when the daemon goes away before the end.
    """
    tasks = [Task(position, entry) for position, entry in enumerate(entries)]
    return show(PrewarmRun(tasks, CostTable()), ends_of_job(link, tasks, label), as_json)


def ends_of_job(link: DaemonLink, tasks: Sequence[Task], label: str) -> Iterator[TaskEnd]:
    """Run a job to its end.

    Raises :class:`DaemonUnavailable` when the daemon goes away before it.
    """
    last = None
    for last in link.prewarm([(task.entry.spec.canonical(), task.entry.soc_name) for task in tasks], label):
        if last.key or last.error_json:
            yield TaskEnd(
                task=tasks[last.index],
                key=last.key,
                outcome=_OUTCOMES[last.outcome] if last.outcome < len(_OUTCOMES) else str(last.outcome),
                seconds=last.seconds,
                error=json.loads(last.error_json) if last.error_json else None,
            )
    if last is None or not last.finished or last.ready + last.failed < last.total:
        raise DaemonUnavailable(
            "the daemon ended the job before it was done", hint="run it again; it goes on"
        )


def show(run: PrewarmRun, ends: Iterator[TaskEnd], as_json: bool, about: dict[str, Any] | None = None) -> int:
    """Show every end as it comes and count it; returns 0 when every kernel is warm, else 1.

    ``about`` is added to every JSON line.
    """
    about = about or {}
    out = sys.stdout  # as it is now: what runs meanwhile may print as well, and is sent elsewhere
    if as_json:
        for end in _counted(run, ends):
            print(json.dumps({**about, **_numbers(run), **_end_record(end)}), file=out, flush=True)
        summary = {"finished": True, "outcomes": run.outcomes, "seconds": round(run.elapsed_s, 3)}
        print(json.dumps({**about, **_numbers(run), **summary}), file=out, flush=True)
    else:
        if sys.stderr.isatty():
            _show_bar(run, ends)
        else:
            for end in _counted(run, ends):
                print(f"[{run.done}/{run.total}] {_line(end)}", file=out, flush=True)
        how = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.outcomes.items()))
        print(
            f"{run.ready} of {run.total} kernels are warm{f' ({how})' if how else ''}, "
            f"{len(run.failures)} failed",
            file=out,
        )
    return 0 if run.ready == run.total else exit_status.FAILED


def _counted(run: PrewarmRun, ends: Iterator[TaskEnd]) -> Iterator[TaskEnd]:
    for end in ends:
        run.note(end)
        yield end


def _numbers(run: PrewarmRun) -> dict[str, Any]:
    left = run.eta_s()
    return {
        "total": run.total,
        "done": run.done,
        "ready": run.ready,
        "failed": len(run.failures),
        "finished": False,
        "eta_s": None if left is None else round(left, 1),
    }


def _end_record(end: TaskEnd) -> dict[str, Any]:
    record = {
        "index": end.task.position,
        "line": end.task.entry.line,
        "key": end.key,
        "outcome": end.outcome,
        "seconds": end.seconds,
        "error": end.error,
    }
    return {**record, "where": end.where} if end.where else record


def _show_bar(run: PrewarmRun, ends: Iterator[TaskEnd]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("warming", total=run.total, left="")
        for end in _counted(run, ends):
            progress.update(bar, completed=run.done, left=_left_text(run.eta_s()))
            if end.error is not None:
                progress.console.print(_line(end), markup=False, highlight=False)


def _left_text(seconds: float | None) -> str:
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"about {hours}:{minutes:02}:{rest:02} left" if hours else f"about {minutes}:{rest:02} left"


def _line(end: TaskEnd) -> str:
    entry = end.task.entry
    what = f"{entry.spec.family} {spec_text(entry.spec.to_record())}"
    where = f" on {end.where}" if end.where else ""
    if end.error is not None:
        return f"failed (line {entry.line}){where}: {what}: {end.error.get('message', end.error)}"
    return f"{end.outcome:<8} {end.key[:12]} {what} ({end.seconds:.1f} s{where})"
