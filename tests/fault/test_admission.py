"""Compilers that take much memory: never more at once than the budget holds, nobody killed, ranks first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.daemon import until
from support.staged_node import StagedNode

from kaas.proto.errors import DeadlineExceeded
from kaas.proto.v1 import kernel_service_pb2 as pb

TAKES_MIB = 200
"""What the compiler takes; its interpreter and the worker come on top, some 25 MiB where pages are dear."""

SET_ASIDE_MIB = 250
FITS = 3
BUDGET_MIB = FITS * TAKES_MIB + TAKES_MIB * 4 // 5
"""Room for three by what is set aside at first, and for no fourth by the least that may be learned later."""


def staged(folder: Path) -> StagedNode:
    return StagedNode(
        folder,
        f"hold {TAKES_MIB}",
        workers="16",
        compile_memory_first_guess_bytes=f"{SET_ASIDE_MIB}MiB",
        compile_memory_budget_bytes=f"{BUDGET_MIB}MiB",
        rest_address="off",
    )


@pytest.mark.parametrize("requests", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_a_hungry_compiler_runs_as_often_as_the_budget_holds_and_ranks_come_first(
    tmp_path: Path, requests: int
) -> None:
    numbers = range(1, requests + 1)
    running, waiting = numbers[:FITS], numbers[FITS:]
    users, ranks = waiting[::2], waiting[1::2]
    with staged(tmp_path) as node, ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(node.ask, *running)]
        until(lambda: node.toolkit.waiting() == FITS, what="compilers at the barrier")
        asked.append(threads.submit(node.ask, *users))
        until(lambda: len(node.states()) == FITS + len(users), what="the users in the queue")
        asked.append(threads.submit(node.ask, *ranks, priority="rank"))
        until(lambda: len(node.states()) == requests, what="the ranks in the queue")
        assert node.toolkit.waiting() == FITS
        by_rank = {node.key(number)[:12] for number in ranks}
        queue = sorted((one.place, one.key[:12]) for one in node.states() if one.state == "queued")
        assert [place for place, _ in queue] == list(range(1, len(waiting) + 1))
        assert {key for _, key in queue[: len(ranks)]} == by_rank
        assert all(one.estimate_s > 0 for one in node.states())

        node.toolkit.open_barrier()
        replies = [reply for request in asked for reply in request.result()]

        assert [reply.outcome for reply in replies] == [pb.OUTCOME_COMPILED] * requests
        assert node.toolkit.most_at_once() == FITS
        assert len(node.toolkit.starts()) == requests  # nobody was killed and tried again
        assert "trying a compile again" not in node.daemon.log_text()
        started = node.compiler_starts()
        assert set(started[FITS : FITS + len(ranks)]) == by_rank
        learned = json.loads((node.daemon.store / "compile-costs.json").read_bytes())["staged"]
        assert TAKES_MIB << 20 <= learned["peak_bytes"] <= SET_ASIDE_MIB << 20
        assert learned["compiles"] >= 1


def test_one_that_is_larger_than_the_budget_runs_alone(tmp_path: Path) -> None:
    with StagedNode(
        tmp_path,
        f"hold {TAKES_MIB}",
        workers="8",
        compile_memory_first_guess_bytes="1GiB",
        compile_memory_budget_bytes="64MiB",
        rest_address="off",
    ) as node:
        node.toolkit.open_barrier()
        assert [reply.outcome for reply in node.ask(1, 2, 3)] == [pb.OUTCOME_COMPILED] * 3
        assert node.toolkit.most_at_once() == 1


def test_a_client_whose_deadline_passes_hears_its_place_and_an_estimate(tmp_path: Path) -> None:
    with (
        StagedNode(tmp_path, "barrier", workers="1", rest_address="off") as node,
        ThreadPoolExecutor(4) as threads,
    ):
        first = threads.submit(node.ask, 1)
        until(lambda: node.toolkit.waiting() == 1, what="a compiler at the barrier")
        second = threads.submit(node.ask, 2)
        until(lambda: len(node.states()) == 2, what="a queue")
        (late,) = node.ask(3, timeout=3)
        (early,) = node.ask(1, timeout=3)
        node.toolkit.open_barrier()
        assert isinstance(late, DeadlineExceeded)
        assert (late.details["state"], late.details["place"]) == ("queued", 2)
        assert late.details["estimate_s"] > 0
        assert "queued, number 2, about" in late.message
        assert isinstance(early, DeadlineExceeded)
        assert early.details["state"] == "compiling"
        assert [reply.outcome for reply in first.result() + second.result()] == [pb.OUTCOME_COMPILED] * 2
