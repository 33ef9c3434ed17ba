"""The breaker of a remote tier: when it opens, whom it lets through, what closes it."""

from __future__ import annotations

from kaas.cache.remote_breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(open_after=3, open_s=10.0, clock=clock)
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(open_after=3, open_s=10.0, clock=Clock())
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert (breaker.state, breaker.times_opened) == ("closed", 0)


def test_while_open_nobody_passes_and_then_one_decides() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert (breaker.state, breaker.allows(), breaker.opens_in_s) == ("open", False, 10.0)
    clock.now += 10.0
    assert breaker.state == "half-open"
    assert breaker.allows()
    assert not breaker.allows(), "one at a time"
    breaker.failed()
    assert (breaker.state, breaker.times_opened) == ("open", 2)
    clock.now += 10.0
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.allows()


def test_who_gave_up_for_reasons_of_its_own_lets_the_next_one_try() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10.0
    assert breaker.allows()
    breaker.withdrew()
    assert breaker.allows()
