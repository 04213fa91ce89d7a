"""Delays between attempts."""

import pytest

from danlu.util.backoff import ExponentialBackoff, exponential_delay


def test_delay_doubles_up_to_the_longest() -> None:
    assert [exponential_delay(0.5, 3, failures) for failures in range(5)] == [0.5, 1, 2, 3, 3]
    assert exponential_delay(0.005, 1000, 10_000) == 1000


def test_backoff_starts_over_after_a_quiet_period() -> None:
    now = 0.0
    backoff = ExponentialBackoff(1, 60, reset=100, monotonic=lambda: now, draw=lambda: 0.5)
    assert [backoff.next_delay(), backoff.next_delay(), backoff.next_delay()] == [1.5, 3, 6]
    now = 101
    assert backoff.next_delay() == 1.5


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_no_delay_is_longer_than_the_limit(draw: float) -> None:
    backoff = ExponentialBackoff(0.5, 30, draw=lambda: draw)
    delays = [backoff.next_delay() for _ in range(10)]
    assert delays[0] == 0.5 * (1 + draw)
    assert delays == sorted(delays)
    # Jitter spreads the delays at the limit too.
    assert delays[-1] == 15 * (1 + draw) <= 30


def test_backoff_that_is_reset_starts_over() -> None:
    backoff = ExponentialBackoff(1, 60, draw=lambda: 0.0)
    assert [backoff.next_delay(), backoff.next_delay()] == [1, 2]
    backoff.reset()
    assert backoff.next_delay() == 1
