"""Fields that the specs of hyper-connection kernels have in common, and their checks."""

from __future__ import annotations

from typing import Annotated

from kaas.kernel_library.spec import require_epsilon, require_int, within

MAX_STREAMS = 4
"""What keeps every mixing matrix in registers; the released models have four streams."""
MAX_HIDDEN = 32768
MAX_WIDTH = MAX_STREAMS * MAX_HIDDEN
MAX_MIXES = 64

Streams = Annotated[int, within(2, MAX_STREAMS)]
"""How many residual streams a token has."""
Hidden = Annotated[int, within(64, MAX_HIDDEN, multiple_of=64)]
Width = Annotated[int, within(64, MAX_WIDTH, multiple_of=64)]
"""All streams of a token side by side."""
Mixes = Annotated[int, within(1, MAX_MIXES)]
"""How many mixing logits a token has; M * (M + 2) with M streams."""
LEAST_SINKHORN_EPSILON = 2.0**-100
"""Cells below fp32's normal range are taken for zero; beside this they are less than a rounding error."""
SinkhornEpsilon = Annotated[float, within(LEAST_SINKHORN_EPSILON, 1.0)]
"""It keeps the divisors of Sinkhorn steps from being 0, and results from hanging on cells taken for 0."""


def require_streams(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal number of streams."""
    require_int(value, "streams", 2, MAX_STREAMS)


def require_hidden(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal width of one stream."""
    require_int(value, "hidden", 64, MAX_HIDDEN, multiple_of=64)


def require_width(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal width of all streams together."""
    require_int(value, "hidden", 64, MAX_WIDTH, multiple_of=64)


def require_mixes(value: int) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal number of mixing logits."""
    require_int(value, "columns", 1, MAX_MIXES)


def require_sinkhorn_epsilon(value: float, field: str) -> None:
    """Raise :class:`InvalidSpec` unless ``value`` is a legal eps of Sinkhorn steps."""
    require_epsilon(value, field, LEAST_SINKHORN_EPSILON)
