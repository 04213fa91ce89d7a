"""Types of the public API for type checkers: `make check` runs mypy on this file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import danlu
from danlu.errors import DanluError

if TYPE_CHECKING:
    from danlu.jobs.report import JobSummary

    def fit(epochs: int, *, rate: float = 0.1) -> dict[str, float]: ...

    async def fit_later(epochs: int) -> bytes: ...

    def check_values(wanted: bool) -> None:
        assert_type(danlu.train(fit, workers=2, args=[3], log=None), dict[str, float])
        assert_type(danlu.train(fit_later, kwargs={"epochs": 3}), bytes)
        assert_type(danlu.train(partial(fit, 3)), dict[str, float])
        assert_type(danlu.train(fit, every=True), dict[str, dict[str, float]])
        assert_type(danlu.train(fit_later, every=True), dict[str, bytes])
        assert_type(danlu.train(fit, every=wanted), Any)

    def check_jobs() -> None:
        assert_type(danlu.train(fit, detach=True), str)
        assert_type(danlu.train("train.py", detach=True), str)
        assert_type(danlu.train("train.py"), JobSummary)
        assert_type(danlu.train(Path("job.yaml"), gpu=0, claims={"data": "here"}), JobSummary)

    def check_mistakes() -> None:
        danlu.train(fit, wrkers=2)  # type: ignore[call-overload]
        danlu.train(3)  # type: ignore[call-overload]

    def check_errors() -> None:
        try:
            danlu.train(fit)
        except danlu.JobFailed as error:
            assert_type(error, danlu.JobFailed)
            assert_type(error.details, tuple[str, ...])


def test_the_error_of_a_failed_job_is_public() -> None:
    assert "JobFailed" in danlu.__all__
    assert issubclass(danlu.JobFailed, DanluError)
    assert danlu.JobFailed.exit_code == 1
