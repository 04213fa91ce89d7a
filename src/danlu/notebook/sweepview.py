"""The live table of a sweep: drawn in a cell, or told line by line at a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Protocol, TextIO

from danlu.notebook.board import Line
from danlu.notebook.curve import number
from danlu.notebook.plain import prefixed, table
from danlu.notebook.render import MOST, coloured, faint, rows, size
from danlu.util.human import format_duration
from danlu.util.plaintext import clean

if TYPE_CHECKING:
    from danlu.commands.sweepreport import SweepReport, Trial

__all__ = ["SweepLive", "TerminalSweep", "best_sentence", "bundle"]

#: How many trials have a row, those that run and the best; fewer where they are large.
_ROOMS = (60, 20, 5, 1)

#: Characters of one cell, and of the sentence at the end.
_LONGEST, _ENDED = 60, 1000

#: So many names that are varied have a column.
_AXES = 12

_INTERVAL = 0.25

#: So many lines of a program that builds are shown.
_LINES = 40


class DataScreen(Protocol):
    """Where pieces by MIME type are shown, each in the place of the one before."""

    def show(self, data: dict[str, str]) -> None:
        """Show it."""


class SweepLive:
    """A sweep's view (:class:`danlu.notebook.desk.SweepView`) in a cell."""

    def __init__(self, screen: DataScreen, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._name = "sweep"
        self._state = "Preparing"
        self._report: SweepReport | None = None
        self._words = ""
        self._lines: deque[Line] = deque(maxlen=_LINES)
        self._drawn = float("-inf")
        self._new = True

    def phase(self, state: str, *, name: str = "") -> None:
        """Say what is done now; drawn at once."""
        self._state, self._name = state, name or self._name
        self._draw()

    def said(self, who: str, text: str) -> None:
        """A program of ours wrote a line."""
        self._lines.append(Line(who, clean(text)))
        self._new = True

    def changed(self, report: SweepReport) -> None:
        """A trial changed."""
        self._report, self._new = report, True
        self._lines.clear()
        if self._state != "Stopping":
            self._state = "Running"
        self.tick()

    def tick(self) -> None:
        """Draw where something is new."""
        if self._new and not self._words and self._clock() - self._drawn >= _INTERVAL:
            self._draw()

    def ended(self, state: str, words: str) -> None:
        """Draw the end."""
        self._state, self._words = state, words
        self._draw()

    def _draw(self) -> None:
        self._drawn, self._new = self._clock(), False
        self._screen.show(
            bundle(
                self._report,
                name=self._name,
                state=self._state,
                words=self._words,
                lines=tuple(self._lines),
            )
        )


class TerminalSweep:
    """Tells of each trial when it begins and when it ends."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._told: dict[int, str] = {}

    def phase(self, state: str, *, name: str = "") -> None:
        """Say it."""
        self._say(f"{name or 'sweep'}: {state}")

    def said(self, who: str, text: str) -> None:
        """Write it."""
        self._say(f"{who} │ {clean(text)}")

    def changed(self, report: SweepReport) -> None:
        """Tell what is new."""
        for one in report.trials:
            if self._told.get(one.number) != one.state:
                self._told[one.number] = one.state
                self._say("  ".join(_cells(one, report, _axes(report))))

    def tick(self) -> None:
        """Nothing waits."""

    def ended(self, state: str, words: str) -> None:
        """Say it."""
        self._say(words)

    def _say(self, text: str) -> None:
        print(text, file=self._out or sys.stdout, flush=True)


def bundle(
    report: SweepReport | None,
    *,
    name: str,
    state: str,
    words: str = "",
    lines: Sequence[Line] = (),
) -> dict[str, str]:
    """A sweep by MIME type, of :data:`danlu.notebook.render.MOST` bytes at most."""
    told = prefixed(lines, len(lines))
    for room in _ROOMS:
        seen = _Seen(name, state, report, words=clean(words)[:_ENDED], lines=told, room=room)
        shown = {"text/html": seen.html(), "text/plain": seen.plain()}
        if sum(map(size, shown.values())) < MOST - 256:
            break
    return shown


class _Seen:
    """A sweep at a moment, of which at most ``room`` trials have a row."""

    def __init__(
        self,
        name: str,
        state: str,
        report: SweepReport | None,
        *,
        words: str,
        lines: Sequence[str],
        room: int,
    ) -> None:
        self._name = name
        self._state = state
        self._report = report
        self._words = words
        self._lines = lines
        self._axes = _axes(report)
        self._trials = _chosen(report, room)
        hidden = len(report.trials) - len(self._trials) if report is not None else 0
        self._more = f"… and {hidden} more" if hidden else ""

    def plain(self) -> str:
        """As text."""
        counts = [_counts(self._report)] if self._report is not None else []
        parts = [" ".join([self._name, self._state, *counts])]
        if self._report is not None and self._trials:
            body = [_cells(one, self._report, self._axes) for one in self._trials]
            parts += table(self._head(self._report), body)
        return "\n".join(filter(None, [*parts, self._more, *self._lines, self._words]))

    def html(self) -> str:
        """As HTML."""
        counts = faint(_counts(self._report)) if self._report is not None else ""
        head = f"<b>{_escaped(self._name)}</b> {coloured(self._state, self._state)} {counts}"
        parts = [f"<div>{head}</div>"]
        if self._report is not None and self._trials:
            body = [_row(one, self._report, self._axes) for one in self._trials]
            parts.append(rows([_escaped(one) for one in self._head(self._report)], body))
        if self._more:
            parts.append(f"<div>{faint(self._more)}</div>")
        if self._lines:
            parts.append(f"<pre style='margin:4px 0'>{_escaped(chr(10).join(self._lines))}</pre>")
        if self._words:
            parts.append(f"<div>{coloured(self._words, self._state)}</div>")
        return f"<div class='danlu-sweep'>{''.join(parts)}</div>"

    def _head(self, report: SweepReport) -> list[str]:
        names = ("job", *self._axes, "state", report.measure.metric, "time")
        return [clean(one)[:_LONGEST] for one in names]


def _escaped(text: str) -> str:
    return escape(text, quote=False)


def _row(one: Trial, report: SweepReport, axes: Sequence[str]) -> list[str]:
    texts = [_escaped(text) for text in _cells(one, report, axes)]
    place = 1 + len(axes)
    texts[place] = coloured(texts[place], one.state, escaped=True)
    best = report.best
    if best is not None and best.number == one.number:
        texts = [f"<b>{text}</b>" for text in texts]
    return texts


def _axes(report: SweepReport | None) -> list[str]:
    trials = report.trials if report is not None else ()
    return list(dict.fromkeys(name for one in trials for name in one.point))[:_AXES]


def _cells(one: Trial, report: SweepReport, axes: Sequence[str]) -> tuple[str, ...]:
    state = f"{one.state}: {one.reason}" if one.reason else str(one.state)
    progress = one.progress
    if one.state == "Running" and progress is not None and progress.percentage is not None:
        state = f"{state} {progress.percentage} %"
    value = one.value
    if value is None and progress is not None:
        value = progress.metrics.get(report.measure.metric)
    texts = (
        one.name,
        *(one.point.get(name, "-") for name in axes),
        state,
        "-" if value is None else number(value),
        "-" if one.seconds is None else format_duration(one.seconds),
    )
    return tuple(clean(text)[:_LONGEST] for text in texts)


def _chosen(report: SweepReport | None, room: int) -> list[Trial]:
    """The trials that have a row: all, or those that run and the best ones."""
    if report is None or len(report.trials) <= room:
        return list(report.trials) if report is not None else []
    running = [one for one in report.trials if one.state == "Running"][: room // 2]
    rest = [one for one in report.ranked() if one.state != "Running"]
    return [*running, *rest[: room - len(running)]]


def _counts(report: SweepReport) -> str:
    ended = sum(one.state != "Running" for one in report.trials)
    return f"{ended} of {report.total} ended"


def best_sentence(report: SweepReport) -> str:
    """The best trial in words, or why there is none."""
    best, measure = report.best, report.measure
    if best is not None and best.value is not None:
        point = ", ".join(f"{name}={value}" for name, value in best.point.items())
        return f"best: {best.name} ({point}) with {measure.metric} {number(best.value)}"
    if not any(one.state == "Succeeded" for one in report.trials):
        return f"none of {len(report.trials)} jobs succeeded"
    if measure.pattern:
        return f"no log has a line that {measure.pattern!r} finds a number in"
    known = report.metrics()
    return f"no job reported {measure.metric}" + (f", but {', '.join(known)}" if known else "")
