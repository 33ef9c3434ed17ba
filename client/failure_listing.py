"""What the daemon remembers of failed compiles, as plain values for JSON and as lines for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.kernel_listing import spec_text
from kaas.client.paging import all_of

if TYPE_CHECKING:
    from kaas.client.daemon_link import DaemonLink
    from kaas.proto.v1 import kernel_service_pb2 as pb


def list_failures(link: DaemonLink, limit: int, family: str) -> tuple[list[dict[str, Any]], int]:
    """At most ``limit`` remembered failures, newest first, and how many there are."""
    return all_of(link.list_failures, "failures", failure_record, limit, family=family)


def failure_record(failure: pb.Failure) -> dict[str, Any]:
    """One failure as plain values."""
    record = {field.name: getattr(failure, field.name) for field in failure.DESCRIPTOR.fields}
    record["spec"] = msgspec.json.decode(record.pop("spec_json"))
    record["error"] = msgspec.json.decode(record.pop("error_json"))
    return record


def failure_lines(failures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line per failure with what was asked and when it is forgotten, and below it what went wrong."""
    if not failures:
        yield "no failed compile is remembered"
    for failure in failures:
        yield f"{failure['key'][:12]}  {failure['kind']}  {failure['family']} {spec_text(failure['spec'])}"
        yield (
            f"    failed {_clock(failure['failed_unix'])}, {_times(failure['attempts'])} tried, "
            f"remembered until {_clock(failure['expires_unix'])}, {_times(failure['answered'])} answered"
        )
        yield f"    {failure['error'].get('code')}: {failure['error'].get('message')}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _clock(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))
