"""A job in the foreground: Ctrl-C stops it, a second one kills it; attached jobs keep running."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.cli.job_output.foreground import (
    FollowResult,
    attach,
    run_job_in_foreground,
    stop_signals,
)
from danlu.cli.terminal import OutputClosed, Terminal
from danlu.errors import OutsideError
from danlu.jobs.report import describe_kills
from danlu.jobs.types import JobView, LogLine, ReplicaView, Submission
from danlu.training.types import Job
from tests.jobs.fake_jobs import FakeJobs, JobScript, line, replica, view

SUBMISSION = Submission(Job("PyTorchJob", "demo", {}), Path("/"))


class RecordingRenderer:
    """Does ``on_view`` at every view, and raises ``broken`` at the first line."""

    def __init__(self, on_view: Callable[[], object] = lambda: None, broken: Any = None) -> None:
        self._on_view = on_view
        self._broken = broken
        self.noticed: list[str] = []

    def view(self, view: JobView) -> None:
        self._on_view()

    def line(self, line: LogLine) -> None:
        if self._broken is not None:
            raise self._broken

    def notice(self, text: str) -> None:
        self.noticed.append(text)

    def tick(self) -> None:
        pass

    def stop(self) -> None:
        pass


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def follow_in_foreground(jobs: FakeJobs, renderer: RecordingRenderer) -> FollowResult:
    return anyio.run(
        partial(run_job_in_foreground, jobs, SUBMISSION, renderer, terminal=Terminal(environ={}))
    )


def test_ctrl_c_stops_the_job_and_waits_for_its_end() -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)
    once = iter([interrupt])
    result = follow_in_foreground(jobs, RecordingRenderer(lambda: next(once, lambda: None)()))
    assert result.signal == signal.SIGINT
    assert result.view is not None
    assert result.view.finished
    # Each replica has the time that its pod says.
    assert [call for call in jobs.calls if call[0] == "stop"] == [("stop", "demo", None)]


def test_grace_period_is_counted_down() -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)
    renderer = RecordingRenderer()

    async def submit_slowly(name: str, *, grace: float | None = None) -> None:
        while not renderer.noticed:
            await anyio.sleep(0.01)
        jobs.stories[name].stopped.set()

    jobs.stop = submit_slowly  # type: ignore[method-assign]
    once = iter([interrupt])
    renderer._on_view = lambda: next(once, lambda: None)()
    follow_in_foreground(jobs, renderer)
    assert renderer.noticed[0] == (
        "stopping: waiting up to 30 s for worker-0, worker-1 to save (Ctrl-C: kill now)"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_stop_the_job(number: signal.Signals) -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)
    once = iter([lambda: os.kill(os.getpid(), number)])
    # It may be ignored where the tests run, as under nohup.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        result = follow_in_foreground(jobs, RecordingRenderer(lambda: next(once, lambda: None)()))
    finally:
        signal.signal(number, before)
    assert result.signal == number
    assert [call for call in jobs.calls if call[0] == "stop"] == [("stop", "demo", None)]


def test_sighup_ignored_by_nohup_is_still_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_killed_replicas_are_named() -> None:
    killed = [ReplicaView(replica(index), "Stopped", reason="Killed") for index in range(2)]
    gentle = ReplicaView(replica(2), "Stopped", exit_code=143)
    assert describe_kills(view("Failed", *killed, gentle)) == (
        "worker-0, worker-1 had not ended and were killed"
    )
    assert describe_kills(view("Failed", gentle)) == ""


def test_second_ctrl_c_cancels_a_hanging_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = FakeJobs()

    async def hang_in_submit(submission: Submission) -> str:
        interrupt()
        interrupt()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(jobs, "submit", hang_in_submit)
    assert follow_in_foreground(jobs, RecordingRenderer()) == FollowResult(None, signal.SIGINT, "")
    assert [call[0] for call in jobs.calls] == []


def test_job_submitted_after_cancellation_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)
    submit = jobs.submit

    async def submit_late(submission: Submission) -> str:
        interrupt()
        interrupt()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        with anyio.CancelScope(shield=True):
            await submit(submission)
        return "demo"

    monkeypatch.setattr(jobs, "submit", submit_late)
    assert follow_in_foreground(jobs, RecordingRenderer()).name == "demo"
    assert ("stop", "demo", 0) in jobs.calls


def test_failed_stop_is_reported_with_the_original_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)

    async def fail_to_stop(name: str, *, grace: float | None = None) -> None:
        raise OutsideError("the server is gone")

    monkeypatch.setattr(jobs, "stop", fail_to_stop)
    once = iter([interrupt])
    with pytest.raises(BaseExceptionGroup) as caught:
        follow_in_foreground(jobs, RecordingRenderer(lambda: next(once, lambda: None)()))
    assert caught.group_contains(OutsideError, match="the server is gone")
    assert "demo may still be running" in capsys.readouterr().err


def test_second_ctrl_c_kills_the_job_without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], endless=True)
    graces: list[float | None] = []

    async def ignore_stop(name: str, *, grace: float | None = None) -> None:
        graces.append(grace)
        if grace is None:
            interrupt()
            await anyio.sleep_forever()

    monkeypatch.setattr(jobs, "stop", ignore_stop)
    once = iter([interrupt])
    result = follow_in_foreground(jobs, RecordingRenderer(lambda: next(once, lambda: None)()))
    assert result.signal == signal.SIGINT
    assert graces[-1] == 0


def test_closed_stdout_stops_the_job() -> None:
    jobs = FakeJobs()
    jobs.next = JobScript([view(), view("Failed")], [line("x")], endless=True)
    with pytest.raises(BaseExceptionGroup) as caught:
        follow_in_foreground(jobs, RecordingRenderer(broken=OutputClosed()))
    assert caught.group_contains(OutputClosed)
    assert [call[:2] for call in jobs.calls if call[0] == "stop"] == [("stop", "demo")]


def test_ctrl_c_detaches_from_an_attached_job() -> None:
    jobs = FakeJobs(demo=JobScript([view(), view("Failed")], endless=True))
    renderer = RecordingRenderer(interrupt)
    result = anyio.run(partial(attach, jobs, "demo", renderer, tail=None))
    assert result.signal == signal.SIGINT
    assert not [call for call in jobs.calls if call[0] == "stop"]
