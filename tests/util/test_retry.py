from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.errors import OutsideError, TemporaryError
from danlu.util.retry import RetryPolicy, retry


class BusyServerError(TemporaryError):
    """A server that sends Retry-After."""

    retry_after = 20.0


class RetryScenario:
    """An attempt that raises each of ``errors``, and a clock that only waiting advances."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waits: list[float] = []
        self.attempts = 0

    async def attempt(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def run(self, backoff: RetryPolicy = RetryPolicy()) -> str:
        return asyncio.run(
            retry(
                self.attempt,
                backoff=backoff,
                sleep=self.sleep,
                clock=lambda: sum(self.waits),
                draw=lambda: 1.0,
            )
        )


def test_success_does_not_wait() -> None:
    scene = RetryScenario()
    assert scene.run() == "done"
    assert scene.waits == []


def test_temporary_errors_are_retried_with_doubling_delays() -> None:
    scene = RetryScenario(*[TemporaryError("x")] * 3)
    assert scene.run() == "done"
    assert scene.waits == [0.5, 1.0, 2.0]


def test_last_error_is_raised() -> None:
    scene = RetryScenario(*[TemporaryError(str(number)) for number in range(9)])
    with pytest.raises(TemporaryError, match="4"):
        scene.run()
    assert scene.attempts == 5


def test_permanent_error_is_raised_without_retry() -> None:
    scene = RetryScenario(OutsideError("no"))
    with pytest.raises(OutsideError, match="no"):
        scene.run()
    assert scene.attempts == 1


def test_retry_after_of_the_server_is_the_shortest_wait() -> None:
    scene = RetryScenario(BusyServerError("busy"))
    scene.run()
    assert scene.waits == [20.0]


def test_no_attempt_starts_after_the_deadline() -> None:
    scene = RetryScenario(*[BusyServerError("busy")] * 9)
    with pytest.raises(BusyServerError):
        scene.run(RetryPolicy(attempts=99, deadline=50))
    assert scene.waits == [20.0, 20.0]


def test_each_wait_is_reported() -> None:
    reported: list[tuple[str, float]] = []
    scene = RetryScenario(TemporaryError("x"))
    asyncio.run(
        retry(
            scene.attempt,
            sleep=scene.sleep,
            draw=lambda: 0.0,
            on_retry=lambda error, wait: reported.append((error.message, wait)),
        )
    )
    assert reported == [("x", 0.25)]


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_delay_never_exceeds_the_maximum(failures: int, draw: float) -> None:
    backoff = RetryPolicy()
    assert 0.25 <= backoff.delay(failures, draw) <= backoff.max_delay
