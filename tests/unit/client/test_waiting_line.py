"""How far a kernel is, on a terminal of whoever waits; and who is taken for a rank."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from kaas.client.failure_listing import failure_lines, failure_record
from kaas.client.priority import RANK_VARIABLES, chosen_priority
from kaas.client.waiting_line import shown_waiting
from kaas.proto.errors import DaemonUnavailable, InvalidArgument
from kaas.proto.v1 import kernel_service_pb2 as pb

KEY = "ab" * 32


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Client:
    """A client and its link in one: answers listings in turn, the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.was_asked_enough = threading.Event()

    def key(self, _: Any) -> str:
        return KEY

    def link(self) -> Client:
        return self

    def list_kernels(self, **filters: Any) -> pb.ListKernelsResponse:
        assert filters["text"] == KEY
        self.asked += 1
        if self.asked > len(self._answers):
            self.was_asked_enough.set()
        answer = self._answers[min(self.asked, len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return pb.ListKernelsResponse(kernels=[pb.KernelSummary(key=KEY, **answer)])


def test_a_terminal_shows_place_and_estimate_and_is_clean_afterwards() -> None:
    client = Client(
        {"state": "queued", "place": 3, "estimate_s": 12.4},
        DaemonUnavailable("gone for a moment"),
        {"state": "compiling", "estimate_s": 4.0},
    )
    terminal = Terminal()
    with shown_waiting(client, ("spec", None), terminal, period_s=0.001):  # type: ignore[arg-type]
        assert client.was_asked_enough.wait(30)
    text = terminal.getvalue()
    assert f"{KEY[:12]} queued, number 3, about 12 s (waited" in text
    assert f"{KEY[:12]} compiling, about 4 s (waited" in text
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text


def test_what_is_no_terminal_hears_nothing() -> None:
    client = Client({"state": "queued", "place": 1})
    pipe = io.StringIO()
    with shown_waiting(client, ("spec", None), pipe, period_s=0.001):  # type: ignore[arg-type]
        pass
    assert (pipe.getvalue(), client.asked) == ("", 0)


@pytest.mark.parametrize("variable", RANK_VARIABLES)
def test_a_process_that_a_launcher_started_is_a_rank(variable: str) -> None:
    assert chosen_priority(None, {variable: "0"}) == "rank"
    assert chosen_priority("user", {variable: "0"}) == "user"


def test_everybody_else_is_a_user_and_a_misspelt_priority_is_refused() -> None:
    assert chosen_priority(None, {"RANK": ""}) == "user"
    with pytest.raises(InvalidArgument, match="rank, user, prewarm") as refusal:
        chosen_priority("foreground")
    assert refusal.value.details["argument"] == "priority"


def test_failures_are_told_in_lines() -> None:
    failure = pb.Failure(
        key=KEY,
        family="gemm",
        spec_json='{"family":"gemm","n":64}',
        kind="transient",
        attempts=2,
        failed_unix=1.8e9,
        expires_unix=1.8e9 + 30,
        answered=1,
        error_json='{"code":"compile_timeout","message":"killed after 600 s","details":{}}',
    )
    lines = list(failure_lines([failure_record(failure)]))
    assert lines[0] == f"{KEY[:12]}  transient  gemm n=64"
    assert "2 times tried" in lines[1]
    assert "once answered" in lines[1]
    assert lines[2].strip() == "compile_timeout: killed after 600 s"
    assert list(failure_lines([])) == ["no failed compile is remembered"]
