"""get_kernel and get_kernels: from a spec to a callable handle, from a composite's to all of its kernels."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from kaas.client.kernel_client import KernelClient
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import InvalidArgument, InvalidConfig, InvalidSpec, StrictMiss
from kaas.proto.locations import default_socket, default_store

if TYPE_CHECKING:
    from kaas.client.handle import KernelHandle
    from kaas.client.kernel_chain import KernelChain
    from kaas.client.missing_kernels import MissingKernel
    from kaas.client.priority import Priority
    from kaas.client.recorder import Recorder
    from kaas.kernel_library.composite import CompositeSpec

_memo: dict[tuple[KernelSpec, str | None], KernelHandle] = {}
_client: KernelClient | None = None
_recorder: Recorder | None = None


def get_kernel(
    spec: KernelSpec,
    *,
    timeout: float | None = 600,
    strict: bool = False,
    soc_name: str | None = None,
    priority: Priority | None = None,
) -> KernelHandle:
    """The kernel of ``spec`` on this node: from this process, else the node's store, else the daemon.

    Store hits need no daemon and no writable file system. A miss asks the daemon, which compiles once for
    everybody and answers within ``timeout`` seconds (``None``: no limit). ``strict`` refuses to compile: what
    neither the store nor the daemon's memory holds raises :class:`StrictMiss`, and what is in the store is
    verified whole before it is returned, not at its first use. ``soc_name`` asks for another
    part's kernel, which this node can hold but not launch. ``priority`` says who waits: a ``rank`` of a
    training job goes before a ``user``, who goes before ``prewarm``; by default a process that a launcher
    started (RANK, WORLD_SIZE ...) is a rank. The same question gives the same handle for the life of the
    process.

    KAAS_STRICT=1 makes every question of the process strict; :func:`missing_kernels` lists what was missing.

    Raises :class:`InvalidSpec`, :class:`DaemonUnavailable` (with the command that starts one),
    :class:`DeadlineExceeded`, or whatever the daemon raised.
    """
    try:
        handle = _memo.get((spec, soc_name))
    except TypeError:
        raise _not_a_question(spec, soc_name) from None
    if handle is not None:
        handle.memo_hits += 1
        if strict:
            handle.verify(strict=True)
        return handle
    client = _client_for(spec, soc_name)
    strict = strict or client.strict
    return client.find((spec, soc_name), strict) or client.fetch((spec, soc_name), timeout, strict, priority)


def get_kernels(
    spec: CompositeSpec,
    *,
    timeout: float | None = 600,
    strict: bool = False,
    soc_name: str | None = None,
    priority: Priority | None = None,
) -> KernelChain:
    """All kernels of a composite, each found or compiled like :func:`get_kernel`, those that miss together.

    ``timeout`` holds for all of them. Raises what :func:`get_kernel` raises.
    """
    from kaas.client.kernel_chain import KernelChain
    from kaas.kernel_library.composite import CompositeSpec

    if not isinstance(spec, CompositeSpec):
        raise InvalidSpec(
            f"a composite spec is needed, not a {type(spec).__name__}; get_kernel takes one kernel's spec",
            field="spec",
            legal="a CompositeSpec such as SparseAttentionSpec()",
        )
    stages = spec.stages()
    client = _client_for(stages[0].spec, soc_name)
    strict = strict or client.strict
    questions = [(stage.spec, soc_name) for stage in stages]
    found: dict[tuple[KernelSpec, str | None], KernelHandle] = {}
    for question in questions:
        handle = _memo.get(question)
        if handle is None:
            handle = client.find(question, strict)
        else:
            handle.memo_hits += 1
            if strict:
                handle.verify(strict=True)
        if handle is not None:
            found[question] = handle
    missing = [question for question in questions if question not in found]
    if missing:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(missing)) as threads:
            coming = {
                question: threads.submit(client.fetch, question, timeout, strict, priority)
                for question in missing
            }
        # All have ended, so that a strict miss among them can name every kernel that is missing.
        refusals = [error for one in coming.values() if isinstance(error := one.exception(), StrictMiss)]
        if refusals:
            raise max(refusals, key=lambda refusal: len(refusal.details.get("missing", ())))
        found.update((question, one.result()) for question, one in coming.items())
    return KernelChain(stages, tuple(found[question] for question in questions))


async def aget_kernel(
    spec: KernelSpec,
    *,
    timeout: float | None = 600,
    strict: bool = False,
    soc_name: str | None = None,
    priority: Priority | None = None,
) -> KernelHandle:
    """:func:`get_kernel` for asyncio: a miss waits in a thread of its own, the loop goes on.

    When the waiting task is cancelled, its request still runs to its end and its result stays in the memo.
    """
    try:
        handle = _memo.get((spec, soc_name))
    except TypeError:
        raise _not_a_question(spec, soc_name) from None
    if handle is not None:
        handle.memo_hits += 1
        if strict and not handle.is_verified:
            from kaas.client.waiting_thread import run_in_own_thread

            await run_in_own_thread(partial(handle.verify, strict=True))
        return handle
    client = _client_for(spec, soc_name)
    strict = strict or client.strict
    handle = client.find((spec, soc_name), strict)
    if handle is not None:
        return handle
    from kaas.client.waiting_thread import run_in_own_thread

    return await run_in_own_thread(lambda: client.fetch((spec, soc_name), timeout, strict, priority))


def _client_for(spec: KernelSpec, soc_name: str | None) -> KernelClient:
    """This process's client; KAAS_STORE and KAAS_SOCKET are read at the first question."""
    global _client, _recorder
    if not isinstance(spec, KernelSpec) or not (soc_name is None or isinstance(soc_name, str)):
        raise _not_a_question(spec, soc_name)
    if _client is None:
        client = KernelClient(default_store(), default_socket(), _memo)
        client.strict = _is_strict()
        if (directory := os.environ.get("KAAS_RECORD")) and _recorder is None:
            from kaas.client.recorder import Recorder

            _recorder = Recorder(directory, client)
        _client = client
    return _client


def forget() -> None:
    """Drop the memo and the connection; the next question reads KAAS_STORE and KAAS_SOCKET anew."""
    global _client, _recorder
    recorder, _recorder, _client = _recorder, None, None
    if recorder is not None:
        recorder.close()
    _memo.clear()


def missing_kernels() -> tuple[MissingKernel, ...]:
    """Every kernel that this process asked for and that was not in the node's store, in that order.

    Also those that the daemon compiled since, or that failed: what a rollout should have warmed.
    """
    from kaas.client.missing_kernels import missing_of

    return () if _client is None else missing_of(_client)


def _is_strict() -> bool:
    """Whether KAAS_STRICT makes every question of this process a strict one. Raises InvalidConfig."""
    text = os.environ.get("KAAS_STRICT", "").strip().casefold()
    if text in ("", "0", "false", "no"):
        return False
    if text in ("1", "true", "yes"):
        return True
    raise InvalidConfig(f"KAAS_STRICT is {text[:80]!r}; legal: 1 or 0", field="KAAS_STRICT", legal=["1", "0"])


def _not_a_question(spec: object, soc_name: object) -> InvalidSpec | InvalidArgument:
    if isinstance(spec, KernelSpec):
        return InvalidArgument(
            f"soc_name is a {type(soc_name).__name__}; legal: a SoC name such as Ascend950PR_9579, or None",
            argument="soc_name",
            legal="a SoC name, or None",
        )
    from kaas.kernel_library.composite import CompositeSpec

    if isinstance(spec, CompositeSpec):
        return InvalidSpec(
            f"{type(spec).__name__} stands for several kernels: kaas.get_kernels gets all of them",
            field="spec",
            legal="get_kernels(spec), or one kernel's spec",
        )
    return InvalidSpec(
        f"a spec object is needed, not a {type(spec).__name__}; kaas.parse_spec makes one of JSON or a dict",
        field="spec",
        legal="a KernelSpec such as GemmSpec(n=4096, k=4096)",
    )


def _renew_in_child() -> None:
    if _client is not None:
        _client.renew_in_child()
    if _recorder is not None:
        _recorder.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)
