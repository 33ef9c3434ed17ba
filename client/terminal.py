"""Terminal: what commands print and how they end; never a traceback."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from kaas.client import exit_status
from kaas.proto.errors import InternalError, InvalidRequest, KaasError

P = ParamSpec("P")

PIPED_WIDTH = 250
"""Columns when the output is no terminal: nobody wants a key cut to what a terminal would hold."""


def out() -> Console:
    """Standard output; plain text when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, soft_wrap=False)


def err() -> Console:
    """Standard error."""
    return Console(
        stderr=True, width=None if sys.stderr.isatty() else PIPED_WIDTH, highlight=False, soft_wrap=True
    )


def print_json(value: Any) -> None:
    """One JSON value on standard output: indented for a person, one line for a pipe."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, sort_keys=False), flush=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table."""
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    out().print(table)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """``name  value`` lines, the values aligned and never cut."""
    pairs = list(fields)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def report(error: KaasError, as_json: bool = False) -> None:
    """An error as one plain line and its hint, or as its record in JSON, on standard error."""
    if as_json:
        print(json.dumps(error.to_record(), default=str), file=sys.stderr)
        return
    print(f"kaas: {error.message}", file=sys.stderr)
    for name in ("log_tail", "source_excerpt"):
        if text := error.details.get(name):
            print(f"--- {name.replace('_', ' ')}\n{str(text).rstrip()}", file=sys.stderr)
    legal = error.details.get("legal")
    if legal and "legal" not in error.message:
        shown = legal if isinstance(legal, str) else ", ".join(map(str, legal))
        print(f"legal: {shown}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """Run a command; whatever it raises becomes one line and an exit status."""

    @functools.wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            status = command(*arguments, **options)
            sys.stdout.flush()
        except KaasError as error:
            report(error, bool(options.get("json")))
            status = exit_status.exit_status(error)
        except KeyboardInterrupt:
            print("kaas: interrupted", file=sys.stderr)
            status = exit_status.INTERRUPTED
        except BrokenPipeError:
            # The reader left (a pager, head). Nothing may be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = exit_status.BROKEN_PIPE
        except (typer.Exit, typer.Abort):
            raise
        except UnicodeEncodeError as error:
            # Only what came in as bytes that are no text has no UTF-8 form.
            word = error.object.encode("ascii", "backslashreplace").decode()
            refused = InvalidRequest(f"{word!r} is not UTF-8 text", field="argument", legal="UTF-8 text")
            report(refused, bool(options.get("json")))
            status = exit_status.exit_status(refused)
        except Exception as error:
            if os.environ.get("KAAS_TRACEBACK"):
                raise
            report(
                InternalError(
                    f"unexpected {type(error).__name__}: {error}",
                    hint="this is a bug in kaas; KAAS_TRACEBACK=1 shows where",
                )
            )
            status = exit_status.INTERNAL
        raise typer.Exit(status or 0)

    return run
