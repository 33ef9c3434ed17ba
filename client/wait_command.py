"""``kaas wait``: until the nodes hold a manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kaas.client import exit_status
from kaas.client.cluster_wait import ClusterWait, NodeProgress, Outcome, outcome_record
from kaas.client.coverage_question import LEGAL_NODES, CoverageAnswer, node_at
from kaas.client.kernel_listing import spec_text
from kaas.client.terminal import guarded, print_json, print_table
from kaas.proto.errors import InvalidRequest
from kaas.proto.locations import default_socket

_SHOWN = 5


def add_wait_command(app: typer.Typer) -> None:
    """Hang the command into the command line."""
    app.command()(guarded(wait))


def wait(
    manifest: Annotated[Path, typer.Option("--manifest", help="YAML or JSON file, - for standard input.")],
    coverage: Annotated[float, typer.Option(help="How much of its weight each is to hold, 0 to 1.")] = 1.0,
    nodes: Annotated[
        str,
        typer.Option(
            help="Sockets or REST addresses, comma between them: /run/kaas/kaas.sock,10.0.0.7:7990.",
            show_default="this node's daemon",
        ),
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds; 0 asks each node once.", show_default="no limit")
    ] = None,
    all_targets: Annotated[
        bool, typer.Option("--all-targets", help="Also entries for other parts than a node's own.")
    ] = False,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", envvar="KAAS_SOCKET", help="The daemon's socket.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> int:
    """Wait until every node holds a manifest. Exit status 0: all do; 5: not in time."""
    from kaas.client.manifest import read_manifest

    if not 0 <= coverage <= 1:
        raise InvalidRequest(f"coverage is {coverage:g}", field="coverage", legal="0 to 1")
    entries = read_manifest(manifest)
    addresses = [address.strip() for address in nodes.split(",")] if nodes else []
    if "" in addresses or len(set(addresses)) < len(addresses):
        raise InvalidRequest(
            f"{nodes[:200]!r} names a node twice, or none", field="nodes", legal=f"{LEGAL_NODES}; each once"
        )
    asked = [node_at(address) for address in addresses or [str(socket or default_socket())]]

    def told(progress: NodeProgress) -> None:
        print(_line(progress), file=sys.stderr, flush=True)

    outcome = ClusterWait(
        asked, entries, coverage, all_targets=all_targets, told=(lambda _: None) if json else told
    ).run(timeout)
    if json:
        print_json(outcome_record(outcome))
    else:
        _print(outcome)
    return 0 if outcome.complete else exit_status.TOO_LATE


def _line(node: NodeProgress) -> str:
    if node.answer is None or node.error is not None:
        return f"{node.name}: {node.state}: {node.error.message if node.error else ''}"
    answer = node.answer
    return f"{node.name}: {node.state}, {answer.held} of {answer.total}, coverage {answer.coverage:.4f}"


def _print(outcome: Outcome) -> None:
    print_table(
        ("node", "state", "coverage", "kernels", "ready after"),
        (
            (
                node.name,
                node.state,
                f"{node.answer.coverage:.4f}" if node.answer else "",
                f"{node.answer.held}/{node.answer.total}" if node.answer else "",
                "" if node.ready_after_s is None else f"{node.ready_after_s:.1f} s",
            )
            for node in outcome.nodes
        ),
    )
    for node in outcome.nodes:
        if node.state in ("down", "refused") and node.error:
            print(f"{node.name}: {node.error.message}")
        elif node.state == "waiting" and node.answer:
            _print_missing(node.name, node.answer)
    ready = sum(node.state == "ready" for node in outcome.nodes)
    line = f"{ready} of {len(outcome.nodes)} nodes hold it after {outcome.waited_s:.1f} s"
    print(line if outcome.skew_s is None else f"{line}; skew {outcome.skew_s:.1f} s")


def _print_missing(name: str, answer: CoverageAnswer) -> None:
    for one in answer.missing[:_SHOWN]:
        what = f"{one['spec'].get('family')} {spec_text(one['spec'])}" if one["spec"] else one["key"][:12]
        why = f": {one['error'].get('message')}" if one["error"] else ""
        print(f"{name}: {one['state']}: {what} (weight {one['weight']:g}){why}")
    if (more := answer.total - answer.held - min(_SHOWN, len(answer.missing))) > 0:
        print(f"{name}: and {more} more")
