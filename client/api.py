"""get_kernel and get_kernels: from a spec to a callable handle, from a composite's to all of its kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kaas.proto.errors import InvalidArgument, InvalidSpec

if TYPE_CHECKING:
    from kaas.client.handle import KernelHandle
    from kaas.client.kernel_chain import KernelChain
    from kaas.client.kernel_client import KernelClient
    from kaas.client.priority import Priority
    from kaas.kernel_library.composite import CompositeSpec
    from kaas.kernel_library.spec import KernelSpec

_memo: dict[tuple[KernelSpec, str | None], KernelHandle] = {}
_client: KernelClient | None = None


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
    neither the store nor the daemon's memory holds raises :class:`StrictMiss`. ``soc_name`` asks for another
    part's kernel, which this node can hold but not launch. ``priority`` says who waits: a ``rank`` of a
    training job goes before a ``user``, who goes before ``prewarm``; by default a process that a launcher
    started (RANK, WORLD_SIZE ...) is a rank. The same question gives the same handle for the life of the
    process.

    Raises :class:`InvalidSpec`, :class:`DaemonUnavailable` (with the command that starts one),
    :class:`DeadlineExceeded`, or whatever the daemon raised.
    """
    try:
        handle = _memo.get((spec, soc_name))
    except TypeError:
        raise _not_a_question(spec, soc_name) from None
    if handle is not None:
        return handle
    client = _client_for(spec, soc_name)
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
    questions = [(stage.spec, soc_name) for stage in stages]
    found: dict[tuple[KernelSpec, str | None], KernelHandle] = {}
    for question in questions:
        handle = _memo.get(question) or client.find(question, strict)
        if handle is not None:
            found[question] = handle
    missing = [question for question in questions if question not in found]
    if missing:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(missing)) as threads:
            fetched = threads.map(lambda question: client.fetch(question, timeout, strict, priority), missing)
            found.update(zip(missing, fetched, strict=True))
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
        return handle
    client = _client_for(spec, soc_name)
    handle = client.find((spec, soc_name), strict)
    if handle is not None:
        return handle
    from kaas.client.waiting_thread import run_in_own_thread

    return await run_in_own_thread(lambda: client.fetch((spec, soc_name), timeout, strict, priority))


def _client_for(spec: KernelSpec, soc_name: str | None) -> KernelClient:
    """This process's client; KAAS_STORE and KAAS_SOCKET are read at the first question."""
    global _client
    from kaas.kernel_library.spec import KernelSpec

    if not isinstance(spec, KernelSpec) or not (soc_name is None or isinstance(soc_name, str)):
        raise _not_a_question(spec, soc_name)
    if _client is None:
        from kaas.client.kernel_client import KernelClient
        from kaas.proto.locations import default_socket, default_store

        _client = KernelClient(default_store(), default_socket(), _memo)
    return _client


def forget() -> None:
    """Drop the memo and the connection; the next question reads KAAS_STORE and KAAS_SOCKET anew."""
    global _client
    _client = None
    _memo.clear()


def _not_a_question(spec: object, soc_name: object) -> InvalidSpec | InvalidArgument:
    from kaas.kernel_library.spec import KernelSpec

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


os.register_at_fork(after_in_child=_renew_in_child)
