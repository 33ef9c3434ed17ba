"""Awaiting a blocking call in a thread of its own.

Not the loop's default pool: its few threads would queue up many kernels that could be compiled together.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_own_thread(call: Callable[[], Result]) -> Result:
    """The result of ``call()``. Cancelling the awaiting task leaves the call running to its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits any more.
            return

    threading.Thread(target=run, name="kaas-get-kernel", daemon=True).start()
    return await future
