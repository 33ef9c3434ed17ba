"""What the main path passes along: a client's request, the checked question, the kernel, the delivery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kaas.kernel_library.spec import KernelSpec
from kaas.proto.passport import KernelKey, Passport
from kaas.proto.target import Target
from kaas.server.scheduler import Priority

ANSWER_MARGIN_S = 0.2
"""Before a call's deadline: time for the answer that says how far the kernel is to reach the client."""

Outcome = Literal["hit", "compiled", "joined", "fetched"]
"""It was in the store; this request started its compile; this request joined one under way; it came from a
remote tier."""


def time_to_answer(left_s: float | None) -> float | None:
    """How long a client with ``left_s`` until its deadline can be kept waiting."""
    return None if left_s is None else left_s - min(ANSWER_MARGIN_S, 0.1 * left_s)


class KernelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks; ``spec`` is JSON text or a plain mapping. Who it is, it says itself."""

    spec: bytes | Mapping[str, Any]
    soc_name: str = ""
    priority: Priority = Priority.USER
    strict: bool = False
    inline: bool = False
    timeout_s: float | None = None
    client: str = ""
    pid: int = 0
    job: str = ""
    rank: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: which kernel it means on this node."""

    spec: KernelSpec
    target: Target
    passport: Passport
    key: KernelKey


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, ready: its file, or its bytes on request or when it could not be stored."""

    key: KernelKey
    outcome: Outcome
    artifact_path: Path | None
    artifact: bytes | None
    compile_seconds: float
    waited_seconds: float


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A finished kernel as the scheduler hands it to every waiter; ``encoded`` only when not stored.

    ``why_absent`` says why it had to be compiled, or from which remote tier it came.
    """

    path: Path | None
    encoded: bytes | None
    compile_seconds: float
    was_compiled: bool
    why_absent: str = ""
