"""The exit status of a pre-warm says whether every kernel is warm."""

import json
from collections.abc import Iterator, Sequence

import pytest

from kaas.client.manifest import Entry
from kaas.client.prewarm_progress import follow
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.proto.errors import CompileFailed, DaemonUnavailable
from kaas.proto.v1 import kernel_service_pb2 as pb

ENTRIES = [Entry(spec=GemmSpec(n=64, k=64), soc_name="", line=line) for line in (1, 2)]
FAILURE = json.dumps(CompileFailed("no", stage="lower", deterministic=True).to_record())


class Link:
    def __init__(self, *events: pb.PrewarmEvent) -> None:
        self.events = events

    def prewarm(self, entries: Sequence[tuple[bytes, str]], label: str = "") -> Iterator[pb.PrewarmEvent]:
        return iter(self.events)


def events(ready: int, failed: int) -> list[pb.PrewarmEvent]:
    """One for each entry that got so far."""
    total = len(ENTRIES)
    ends = [pb.PrewarmEvent(total=total, index=i, key="k", outcome=pb.OUTCOME_COMPILED) for i in range(ready)]
    return ends + [
        pb.PrewarmEvent(total=total, index=ready + i, error_json=FAILURE, failed=i + 1) for i in range(failed)
    ]


def summary(ready: int, failed: int) -> pb.PrewarmEvent:
    return pb.PrewarmEvent(total=2, done=ready + failed, ready=ready, failed=failed, finished=True)


@pytest.mark.parametrize(("ready", "failed", "status"), [(2, 0, 0), (1, 1, 1), (0, 2, 1)])
def test_only_all_warm_is_success(ready: int, failed: int, status: int) -> None:
    link = Link(*events(ready, failed), summary(ready, failed))
    assert follow(link, ENTRIES, "", as_json=True) == status


@pytest.mark.parametrize("given", [(), (summary(1, 0),), (pb.PrewarmEvent(total=2, done=1, ready=1),)])
def test_a_job_that_a_stopping_daemon_cut_short_is_no_success(given: tuple[pb.PrewarmEvent, ...]) -> None:
    with pytest.raises(DaemonUnavailable, match="before it was done"):
        follow(Link(*given), ENTRIES, "", as_json=True)
