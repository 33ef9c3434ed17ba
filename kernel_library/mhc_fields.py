"""Fields that the specs of hyper-connection kernels have in common, and their checks."""

from __future__ import annotations

from typing import Annotated

from kaas.kernel_library.spec import require_int, within

MAX_STREAMS = 4
"""What keeps every mixing matrix in registers; the released models have four streams."""
MAX_HIDDEN = 32768

Streams = Annotated[int, within(2, MAX_STREAMS)]
"""How many residual streams a token has."""
Hidden = Annotated[int, within(64, MAX_HIDDEN, multiple_of=64)]
Epsilon = Annotated[float, within(0.0, 1.0)]


def require_streams(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal number of streams."""
    require_int(value, "streams", 2, MAX_STREAMS)


def require_hidden(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal width of one stream."""
    require_int(value, "hidden", 64, MAX_HIDDEN, multiple_of=64)
