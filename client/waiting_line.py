"""Waiting line: how far a kernel is, on the terminal of whoever waits for it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from kaas.client.progress_text import progress_text
from kaas.proto.errors import KaasError

if TYPE_CHECKING:
    from kaas.client.kernel_client import KernelClient, Question

FIRST_LOOK_S = 0.3
PERIOD_S = 1.0
_ERASE = "\r\x1b[K"


@contextlib.contextmanager
def shown_waiting(
    client: KernelClient, question: Question, stream: TextIO | None = None, period_s: float = PERIOD_S
) -> Iterator[None]:
    """While the block runs, say on ``stream`` (standard error), if it is a terminal, where the kernel is in
    the daemon's queue and how long that may take. Trouble with that is no trouble of the waiter's."""
    shown = stream or sys.stderr
    if not shown.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(client, question, shown, period_s, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join(period_s)
        shown.write(_ERASE)
        shown.flush()


def _tell(
    client: KernelClient, question: Question, stream: TextIO, period_s: float, done: threading.Event
) -> None:
    began = time.monotonic()
    key = ""
    pause_s = min(FIRST_LOOK_S, period_s)
    while not done.wait(pause_s):
        pause_s = period_s
        try:
            key = key or client.key(question)
            page = client.link().list_kernels(text=key, page_size=1, timeout=5)
        except KaasError:
            continue  # whoever waits is told by the request itself
        coming = [one for one in page.kernels if one.state in ("queued", "compiling")]
        if coming and not done.is_set():
            one = coming[0]
            text = progress_text(one.state, one.place, one.estimate_s)
            stream.write(f"{_ERASE}{key[:12]} {text} (waited {time.monotonic() - began:.0f} s)")
            stream.flush()
