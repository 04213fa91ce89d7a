"""The live view of a cell: gathers what happens to a job, and draws it a few times a second."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from danlu.commands.jobreport import ended_at, text_of
from danlu.notebook.board import Board, Line
from danlu.notebook.curve import History
from danlu.util.plaintext import clean

if TYPE_CHECKING:
    from danlu.jobs.types import JobView, LogLine
    from danlu.training.types import ReplicaId

__all__ = ["LINES", "Live", "Screen", "links", "read"]

#: How many lines of logs are shown where a cell does not say it.
LINES = 200

#: Seconds between two drawings, and where nothing is new but the time.
_INTERVAL, _IDLE = 0.25, 1.0

#: A job that has run for so many seconds is drawn that much less often while nothing is new.
_PATIENT = 60.0

#: So many bytes of a line are looked at.
_LONGEST = 4096


class Screen(Protocol):
    """Where boards are shown, each in the place of the one before."""

    def draw(self, board: Board) -> None:
        """Show it."""


class Live:
    """One job's view (:class:`danlu.notebook.attend.View`), on a screen.

    Lines are kept as they come, the last ``lines`` of them, and become text when they are drawn: a
    job that writes a hundred thousand a second costs little. ``logs`` is the directory of a job's
    logs by its name, ``place`` the directory that a Jupyter server shows (the notebook's).
    """

    newest = True

    def __init__(
        self,
        screen: Screen,
        *,
        lines: int | None = None,
        logs: Callable[[str], Path] | None = None,
        place: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._logs = logs
        self._place = place
        self._clock = clock
        self._lines: deque[LogLine | Line] = deque(maxlen=LINES if lines is None else lines)
        self._said = 0
        self._numbers: dict[ReplicaId, int] = {}
        self._history = History()
        self._view: JobView | None = None
        self._name = ""
        self._phase = "Preparing"
        self._words = ""
        self._notes: dict[str, None] = {}
        self._began = clock()
        self._drawn = float("-inf")
        self._new = True

    # -- what happens -----------------------------------------------------------------------------

    def phase(self, state: str, *, name: str = "") -> None:
        """Say what is done now; drawn at once."""
        self._phase, self._name = state, name or self._name
        self._draw()

    def note(self, text: str) -> None:
        """Say something that stays to be seen."""
        self._notes[text] = None
        self._new = True

    def said(self, who: str, text: str) -> None:
        """A program of ours wrote a line."""
        self._said += 1
        self._lines.append(Line(who, clean(text)))
        self._new = True

    def line(self, line: LogLine) -> None:
        """A replica wrote a line."""
        self._numbers[line.replica] = line.number
        self._lines.append(line)
        self._new = True

    def view(self, view: JobView) -> None:
        """The job changed."""
        self._view, self._name, self._new = view, view.name, True
        # What is done to a job is said of it until it is over.
        if self._phase != "Stopping":
            self._phase = view.state
        for one in view.warnings:
            self._notes[one] = None
        progress = view.progress
        if progress is not None and progress.metrics:
            at = progress.updated or datetime.now(UTC)
            began = view.created or at
            self._history.add((at - began).total_seconds(), dict(progress.metrics))
        self.tick()

    def tick(self) -> None:
        """Draw where something is new, else now and then, since time passes."""
        now = self._clock()
        idle = _IDLE * max(1.0, (now - self._began) / _PATIENT)
        if now - self._drawn >= (_INTERVAL if self._new else min(idle, 10.0)) and not self._words:
            self._draw()

    def ended(self, state: str, words: str) -> None:
        """Draw the end."""
        self._phase, self._words = state, words
        self._draw()

    # -- what is shown ----------------------------------------------------------------------------

    def _draw(self) -> None:
        self._drawn, self._new = self._clock(), False
        self._screen.draw(self.board())

    def board(self) -> Board:
        """How it looks now."""
        view = self._view
        here = view is not None and view.where == "local"
        logs = self._logs(self._name) if self._logs is not None and here else None
        return Board(
            name=self._name or "cell",
            kind=view.kind if view is not None else "",
            state=self._phase,
            seconds=_seconds(view) if view is not None else self._clock() - self._began,
            replicas=view.replicas if view is not None else (),
            progress=view.progress if view is not None else None,
            series=self._history.series(),
            lines=tuple(read(one) for one in self._lines),
            written=self._said + sum(self._numbers.values()) + len(self._numbers),
            notes=tuple(self._notes),
            ended=self._words,
            logs="" if logs is None else str(logs),
            links={} if logs is None else links(logs, self._place),
        )


def _seconds(view: JobView) -> float | None:
    began = view.created or view.status.start_time
    if began is None:
        return None
    return ((ended_at(view) or datetime.now(UTC)) - began).total_seconds()


def read(line: LogLine | Line) -> Line:
    """A line as it is shown."""
    if isinstance(line, Line):
        return line
    data = line.data
    if len(data) > _LONGEST:
        # Of a line that is written over itself the end is what is seen.
        data = data[-_LONGEST:] if b"\r" in data else data[:_LONGEST]
    return Line(str(line.replica), clean(text_of(data)))


def links(logs: Path, place: Path | None) -> dict[str, str]:
    """Addresses of the files in ``logs``, by their names without ``.log``.

    There are some only where Jupyter serves them to a notebook in ``place``: below it, and not
    hidden (``ContentsManager.allow_hidden``).
    """
    if place is None:
        return {}
    path = os.path.relpath(logs, place)
    if any(part.startswith(".") for part in path.split(os.sep)):
        return {}
    return {
        one.stem: quote(f"{path}/{one.name}") for one in sorted(logs.glob("*.log")) if one.is_file()
    }
