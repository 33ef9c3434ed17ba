"""Waiting for nodes that hold a manifest, do not, are down, refuse, or say nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kaas.client import cluster_wait
from kaas.client.cluster_wait import ClusterWait, NodeProgress, outcome_record
from kaas.client.coverage_question import CoverageAnswer, RestNode, SocketNode, node_at
from kaas.client.manifest import Entry, parse_manifest
from kaas.proto.errors import DaemonUnavailable, InvalidRequest, KaasError

ENTRIES = parse_manifest("[{family: gemm, n: 64, k: 64}, {family: gemm, n: 64, k: 128}]")


class ScriptedNode:
    """Answers with a number of held kernels, or raises, in turn; the last answer stays."""

    def __init__(self, name: str, *answers: int | KaasError) -> None:
        self.name = name
        self.waits: list[float] = []
        self._answers = list(answers)

    def ask(self, entries: Sequence[Entry], *, wait_s: float, **_: Any) -> CoverageAnswer:
        self.waits.append(wait_s)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, KaasError):
            raise answer
        total = len(entries)
        missing = tuple({"index": index} for index in range(answer, total))
        return CoverageAnswer(answer / total, total, answer, total, answer, 0, "part", "9.2.0", missing)


class SilentNode(ScriptedNode):
    """Takes the question and never answers, as behind a network that swallows packets."""

    def ask(self, entries: Sequence[Entry], *, wait_s: float, **_: Any) -> CoverageAnswer:
        threading.Event().wait()
        raise AssertionError


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_wait, "RETRY_S", 0.0)
    monkeypatch.setattr(cluster_wait, "GRACE_S", 0.0)
    monkeypatch.setattr(cluster_wait, "STEP_S", 0.01)


def test_all_nodes_hold_it() -> None:
    told: list[NodeProgress] = []
    nodes = [ScriptedNode("a", 2), ScriptedNode("b", 0, 1, 2)]
    outcome = ClusterWait(nodes, ENTRIES, 1.0, told=told.append).run(None)
    assert outcome.complete
    assert outcome.skew_s is not None
    assert [one.answer.held for one in told if one.name == "b" and one.answer] == [0, 1, 2]
    assert nodes[1].waits == [0.0, cluster_wait.LONGEST_WAIT_S, cluster_wait.LONGEST_WAIT_S]


def test_a_part_of_the_weight_may_be_enough() -> None:
    assert ClusterWait([ScriptedNode("a", 1)], ENTRIES, 0.5).run(0).complete


def test_a_node_that_is_down_does_not_end_the_wait() -> None:
    down = DaemonUnavailable("nobody listens")
    refused = InvalidRequest("not for this node", field="entries", legal="others")
    nodes = [ScriptedNode("a", 2), ScriptedNode("b", down, refused, down, 2)]
    assert ClusterWait(nodes, ENTRIES, 1.0).run(None).complete


def test_when_the_time_is_over_each_node_says_how_far_it_is() -> None:
    refused = InvalidRequest("not for this node", field="entries", legal="others")
    nodes = [
        ScriptedNode("ready", 2),
        ScriptedNode("waiting", 1),
        ScriptedNode("down", DaemonUnavailable("nobody listens")),
        ScriptedNode("refuses", refused),
        SilentNode("silent", 0),
    ]
    outcome = ClusterWait(nodes, ENTRIES, 1.0).run(0.05)
    record = outcome_record(outcome)
    assert [node["state"] for node in record["nodes"]] == ["ready", "waiting", "down", "refused", "down"]
    assert (record["complete"], record["skew_s"]) == (False, None)
    assert record["nodes"][1]["missing"] == [{"index": 1}]
    assert record["nodes"][3]["error"]["code"] == "invalid_request"
    assert "does not answer" in record["nodes"][4]["error"]["message"]


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("/run/kaas/kaas.sock", SocketNode, "/run/kaas/kaas.sock"),
        ("unix:/run/kaas/kaas.sock", SocketNode, "/run/kaas/kaas.sock"),
        ("127.0.0.2:7990", RestNode, "http://127.0.0.2:7990"),
        ("http://node-1:7990/", RestNode, "http://node-1:7990/"),
    ],
)
def test_addresses_name_sockets_and_rest(address: str, kind: type, name: str) -> None:
    node = node_at(address)
    assert isinstance(node, kind)
    assert node.name == name


@pytest.mark.parametrize("address", ["node", "https://node:1", "http://node:70000", "http://u@node:1", "a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is no node"):
        node_at(address)
