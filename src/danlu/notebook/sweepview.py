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
from danlu.notebook.render import coloured, faint, rows
from danlu.util.human import format_duration
from danlu.util.plaintext import clean

if TYPE_CHECKING:
    from danlu.commands.sweepreport import SweepReport, Trial

__all__ = ["SweepLive", "TerminalSweep", "best_sentence", "bundle"]

#: So many trials have a row: those that run, and the best.
_ROWS = 60

#: Characters of one cell.
_LONGEST = 60

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
                self._say("  ".join((*_cells(one, report, _axes(report)),)))

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
    """A sweep by MIME type."""
    head = f"{name} {state}" if report is None else f"{name} {state} {_counts(report)}"
    below = _shown(report) if report is not None else []
    names = ("job", *_axes(report), "state", report.measure.metric, "time") if report else ()
    texts = [_cells(one, report, _axes(report)) for one in below] if report else []
    told = prefixed(lines, len(lines))
    plain = [head, *(table(names, texts) if texts else ()), _more(report), *told, clean(words)]
    return {
        "text/html": _html(report, head=(name, state), names=names, lines=told, words=words),
        "text/plain": "\n".join(filter(None, plain)),
    }


def _html(
    report: SweepReport | None,
    *,
    head: tuple[str, str],
    names: Sequence[str],
    lines: Sequence[str],
    words: str,
) -> str:
    name, state = head
    counts = faint(escape(_counts(report))) if report is not None else ""
    parts = [f"<div><b>{escape(name)}</b> {coloured(state, state)} {counts}</div>"]
    if report is not None and report.trials:
        body = [_row(one, report) for one in _shown(report)]
        parts.append(rows([escape(clean(one)[:_LONGEST]) for one in names], body))
        parts.append(f"<div>{faint(escape(_more(report)))}</div>")
    if lines:
        parts.append(f"<pre style='margin:4px 0'>{escape(chr(10).join(lines))}</pre>")
    if words:
        parts.append(f"<div>{coloured(words, state)}</div>")
    return f"<div class='danlu-sweep'>{''.join(parts)}</div>"


def _row(one: Trial, report: SweepReport) -> list[str]:
    texts = [escape(text) for text in _cells(one, report, _axes(report))]
    place = 1 + len(_axes(report))
    texts[place] = coloured(texts[place], one.state, escaped=True)
    best = report.best
    if best is not None and best.number == one.number:
        texts = [f"<b>{text}</b>" for text in texts]
    return texts


def _axes(report: SweepReport | None) -> list[str]:
    trials = report.trials if report is not None else ()
    return list(dict.fromkeys(name for one in trials for name in one.point))


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


def _shown(report: SweepReport) -> list[Trial]:
    """The trials that have a row: all, or those that run and the best ones."""
    if len(report.trials) <= _ROWS:
        return list(report.trials)
    running = [one for one in report.trials if one.state == "Running"][: _ROWS // 2]
    rest = [one for one in report.ranked() if one.state != "Running"]
    return [*running, *rest[: _ROWS - len(running)]]


def _more(report: SweepReport | None) -> str:
    hidden = len(report.trials) - len(_shown(report)) if report is not None else 0
    return f"… and {hidden} more" if hidden > 0 else ""


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
