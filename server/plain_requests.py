"""Plain requests: a rank's question for one kernel on the plain socket, answered with a line."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from kaas.proto.plain_request import Given, Want
from kaas.server.kernel_request import Delivery, KernelRequest, time_to_answer
from kaas.server.scheduler import Priority
from kaas.server.status import as_kaas_error

log = logging.getLogger(__name__)

MAX_JOB = 64
MAX_RANK = 16

Ask = Callable[[KernelRequest], Awaitable[Delivery]]
"""Finds or compiles one kernel."""

_DECODER = msgspec.json.Decoder(Want)
_PRIORITIES = {"rank": Priority.RANK, "user": Priority.USER, "prewarm": Priority.PREWARM}


def is_want(line: bytes) -> bool:
    """Whether a connection's first line asks for a kernel. Raises ``ValueError`` if it is no JSON object."""
    return "want" in msgspec.json.decode(line, type=dict[str, msgspec.Raw])


def decode_want(line: bytes) -> Want:
    """Raises ``ValueError``."""
    return _DECODER.decode(line)


async def answer(want: Want, pid: int, ask: Ask) -> bytes:
    """The line that answers the process ``pid``; every failure is one, too."""
    job, rank = want.job[:MAX_JOB], want.rank[:MAX_RANK]
    named = {"pid": pid, "job": job, "rank": rank}
    request = KernelRequest(
        spec=bytes(want.spec),
        soc_name=want.soc_name,
        priority=_PRIORITIES[want.priority],
        strict=want.strict,
        timeout_s=time_to_answer(want.timeout_s),
        client=",".join(f"{name}:{value}" for name, value in named.items() if value),
        pid=pid,
        job=job,
        rank=rank,
    )
    try:
        delivery = await ask(request)
        given = Given(
            key=delivery.key,
            outcome=delivery.outcome,
            path=str(delivery.artifact_path or ""),
            compile_seconds=delivery.compile_seconds,
            waited_seconds=delivery.waited_seconds,
        )
    except Exception as raised:  # the border of the process: nothing but an error's record may leave
        given = Given(error=as_kaas_error(raised).to_record())
    return msgspec.json.encode(given) + b"\n"
