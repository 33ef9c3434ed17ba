"""The daemon's answers as errors, and what is asked again."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kaas.client import daemon_link
from kaas.client.daemon_link import DaemonLink
from kaas.proto import errors
from kaas.proto.errors import KaasError
from kaas.proto.locations import lease_socket
from kaas.proto.v1 import kernel_service_pb2 as pb


class Refused(grpc.RpcError):
    """What a stub raises: a status and trailing metadata."""

    def __init__(self, code: grpc.StatusCode, record: bytes | None = None) -> None:
        self._code, self._record = code, record

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "some details"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...] | None:
        return None if self._record is None else (("kaas-error-bin", self._record),)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(daemon_link.time, "sleep", taken.append)
    monkeypatch.setattr(daemon_link, "require_daemon", lambda *_: None)
    return taken


def link_answering(
    monkeypatch: pytest.MonkeyPatch, *answers: Any, at: Path = Path("/nowhere/kaas.sock")
) -> DaemonLink:
    """A link whose calls end with ``answers`` in turn, the last one for ever."""
    left = list(answers)

    def call(_: Callable[[Any], Any]) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    link = DaemonLink(at)
    monkeypatch.setattr(link, "_open", lambda: None)
    monkeypatch.setattr(link, "_on_channel", lambda _call, _patience: _translated(link, call))
    return link


def _translated(link: DaemonLink, call: Callable[[Any], Any]) -> Any:
    try:
        return call(lambda: None)
    except grpc.RpcError as error:
        raise link._translate(error) from None


@pytest.mark.parametrize(
    "error",
    [
        errors.CompileFailed("no", stage="lower", log_tail="...", hint="look"),
        errors.StrictMiss("no"),
        errors.DoesNotFit("no", field="tile", excess_bytes=3),
        errors.Overloaded("no"),
    ],
)
def test_the_daemons_error_is_raised_as_the_same_class(error: KaasError) -> None:
    link = DaemonLink(Path("/nowhere/kaas.sock"))
    translated = link._translate(Refused(grpc.StatusCode.INTERNAL, json.dumps(error.to_record()).encode()))
    assert type(translated) is type(error)
    assert translated.to_record() == error.to_record()


@pytest.mark.parametrize(
    ("code", "record", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, None, errors.DaemonUnavailable),
        (grpc.StatusCode.CANCELLED, None, errors.DaemonUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, errors.DeadlineExceeded),
        (grpc.StatusCode.PERMISSION_DENIED, None, errors.PermissionDenied),
        (grpc.StatusCode.UNIMPLEMENTED, None, errors.InternalError),
        (grpc.StatusCode.UNKNOWN, None, errors.InternalError),
        (grpc.StatusCode.UNAVAILABLE, b"not json", errors.DaemonUnavailable),
    ],
)
def test_a_bare_status_says_what_happened_to_the_transport(
    code: grpc.StatusCode, record: bytes | None, cls: type[KaasError]
) -> None:
    assert type(DaemonLink(Path("/nowhere"))._translate(Refused(code, record))) is cls


@pytest.mark.parametrize(
    "trouble",
    [errors.Overloaded("full"), errors.ShuttingDown("stopping"), Refused(grpc.StatusCode.UNAVAILABLE)],
)
def test_passing_trouble_is_asked_again_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, naps: list[float], trouble: Exception
) -> None:
    link = link_answering(monkeypatch, trouble, trouble, trouble, pb.GetKernelResponse(key="k"))
    assert link.get_kernel(b"{}").key == "k"
    assert len(naps) == 3
    assert naps[0] < naps[2]


def test_a_verdict_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    link = link_answering(monkeypatch, errors.CompileFailed("no"))
    with pytest.raises(errors.CompileFailed):
        link.get_kernel(b"{}")
    assert naps == []


def test_the_deadline_ends_the_asking_and_names_the_trouble(
    monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(daemon_link.time, "monotonic", lambda: float(next(clock)))
    link = link_answering(monkeypatch, errors.Overloaded("the queue is full"))
    with pytest.raises(errors.DeadlineExceeded, match=r"within 5 s; before that: the queue is full"):
        link.get_kernel(b"{}", timeout=5.0)


@pytest.mark.parametrize("trouble", [None, Refused(grpc.StatusCode.UNAVAILABLE)])
def test_a_plain_connection_that_is_ended_unanswered_makes_it_ask_by_grpc(
    monkeypatch: pytest.MonkeyPatch,
    naps: list[float],
    caplog: pytest.LogCaptureFixture,
    trouble: Exception | None,
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="kaas-"))
    answers = [trouble] if trouble else []
    link = link_answering(monkeypatch, *answers, pb.GetKernelResponse(key="k"), at=directory / "kaas.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lease_socket(directory / "kaas.sock")))
        listener.listen()
        ending = threading.Thread(target=lambda: listener.accept()[0].close())
        ending.start()
        assert link.get_kernel(b"{}").key == "k"
        ending.join()
    shutil.rmtree(directory)
    # A daemon that does not answer by gRPC either went away, which is worth a word.
    assert ("was lost" in caplog.text) == bool(trouble)
    assert bool(caplog.records) == bool(trouble)
