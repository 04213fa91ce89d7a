"""A job in the foreground: Ctrl-C stops it, twice kills it, and attached it is left alone."""

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

from danlu.cli.jobs.foreground import Followed, attached, run
from danlu.cli.terminal import OutputClosed, Terminal
from danlu.errors import OutsideError
from danlu.jobs.types import JobView, LogLine, Submission
from danlu.training.types import Job
from tests.commands.fakejobs import FakeJobs, Story, line, view

SUBMISSION = Submission(Job("PyTorchJob", "demo", {}), Path("/"))


class Renderer:
    """Does ``on_view`` at every view, and raises ``broken`` at the first line."""

    def __init__(self, on_view: Callable[[], object] = lambda: None, broken: Any = None) -> None:
        self._on_view = on_view
        self._broken = broken

    def view(self, view: JobView) -> None:
        self._on_view()

    def line(self, line: LogLine) -> None:
        if self._broken is not None:
            raise self._broken

    def tick(self) -> None:
        pass

    def stop(self) -> None:
        pass


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def followed(jobs: FakeJobs, renderer: Renderer) -> Followed:
    return anyio.run(partial(run, jobs, SUBMISSION, renderer, terminal=Terminal(environ={})))


def test_ctrl_c_stops_the_job_and_its_end_is_seen() -> None:
    jobs = FakeJobs()
    jobs.next = Story([view(), view("Failed")], endless=True)
    once = iter([interrupt])
    ended = followed(jobs, Renderer(lambda: next(once, lambda: None)()))
    assert ended.signal == signal.SIGINT
    assert ended.view is not None
    assert ended.view.finished
    ((_, name, grace),) = [call for call in jobs.calls if call[0] == "stop"]
    assert name == "demo"
    assert grace < 5


def test_a_second_ctrl_c_gives_up_a_submission_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = FakeJobs()

    async def frozen(submission: Submission) -> str:
        interrupt()
        interrupt()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(jobs, "submit", frozen)
    assert followed(jobs, Renderer()) == Followed(None, signal.SIGINT, "")
    assert [call[0] for call in jobs.calls] == []


def test_what_began_although_it_was_given_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = FakeJobs()
    jobs.next = Story([view(), view("Failed")], endless=True)
    submit = jobs.submit

    async def late(submission: Submission) -> str:
        interrupt()
        interrupt()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        with anyio.CancelScope(shield=True):
            await submit(submission)
        return "demo"

    monkeypatch.setattr(jobs, "submit", late)
    assert followed(jobs, Renderer()).name == "demo"
    assert ("stop", "demo", 0) in jobs.calls


def test_what_could_not_be_told_to_stop_is_said_and_the_reason_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = FakeJobs()
    jobs.next = Story([view(), view("Failed")], endless=True)

    async def gone(name: str, *, grace: float = 5.0) -> None:
        raise OutsideError("the server is gone")

    monkeypatch.setattr(jobs, "stop", gone)
    once = iter([interrupt])
    with pytest.raises(BaseExceptionGroup) as caught:
        followed(jobs, Renderer(lambda: next(once, lambda: None)()))
    assert caught.group_contains(OutsideError, match="the server is gone")
    assert "demo may still run" in capsys.readouterr().err


def test_a_second_ctrl_c_kills_it_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = FakeJobs()
    jobs.next = Story([view(), view("Failed")], endless=True)
    graces: list[float] = []

    async def deaf(name: str, *, grace: float = 5.0) -> None:
        graces.append(grace)
        if grace:
            interrupt()
            await anyio.sleep_forever()

    monkeypatch.setattr(jobs, "stop", deaf)
    once = iter([interrupt])
    ended = followed(jobs, Renderer(lambda: next(once, lambda: None)()))
    assert ended.signal == signal.SIGINT
    assert graces[-1] == 0


def test_who_closes_stdout_ends_the_job() -> None:
    jobs = FakeJobs()
    jobs.next = Story([view(), view("Failed")], [line("x")], endless=True)
    with pytest.raises(BaseExceptionGroup) as caught:
        followed(jobs, Renderer(broken=OutputClosed()))
    assert caught.group_contains(OutputClosed)
    assert [call[:2] for call in jobs.calls if call[0] == "stop"] == [("stop", "demo")]


def test_an_attached_job_goes_on_after_ctrl_c() -> None:
    jobs = FakeJobs(demo=Story([view(), view("Failed")], endless=True))
    renderer = Renderer(interrupt)
    ended = anyio.run(partial(attached, jobs, "demo", renderer, tail=None))
    assert ended.signal == signal.SIGINT
    assert not [call for call in jobs.calls if call[0] == "stop"]
