"""Restart delay: how long to wait before the next zygote when the last ones came to nothing."""

from __future__ import annotations

FIRST_S = 0.1
LONGEST_S = 5.0


class RestartDelay:
    """None at first; 0.1 s after one failure, twice as long after each further one, 5 s at most."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def failed(self) -> None:
        """A zygote died or did not start."""
        self.seconds = min(2 * self.seconds, LONGEST_S) or FIRST_S

    def succeeded(self) -> None:
        """A job came to its end: the next failure is a first one."""
        self.seconds = 0.0
