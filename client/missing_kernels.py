"""Missing kernels: what a process asked for and its node's store did not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kaas.proto.errors import KaasError

if TYPE_CHECKING:
    from kaas.client.kernel_client import KernelClient
    from kaas.kernel_library.spec import KernelSpec


class MissingKernel(NamedTuple):
    """One of them. ``outcome`` is what became of the last question for it: ``compiled``, ``joined``, ``hit``
    (the daemon had it after all) or an error's code such as ``strict_miss``; ``waited_s`` is for all of them.
    """

    spec: KernelSpec
    soc_name: str | None
    key: str
    outcome: str
    asked: int
    waited_s: float


def missing_of(client: KernelClient) -> tuple[MissingKernel, ...]:
    """All misses of a client so far; the key is empty where it cannot be computed without a daemon."""
    found = []
    for question, miss in client.misses.copy().items():
        try:
            key = client.published_key(question)
        except KaasError:
            key = ""
        found.append(MissingKernel(*question, key, miss.outcome, sum(miss.outcomes.values()), miss.waited_s))
    return tuple(found)
