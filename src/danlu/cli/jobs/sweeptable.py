"""A sweep as text: a line for each trial that ends, the sorted table, the best one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from danlu.cli.jobs.table import state_style
from danlu.cli.output import print_table
from danlu.cli.units import duration, plural

if TYPE_CHECKING:
    from danlu.cli.terminal import Terminal
    from danlu.commands.sweepreport import SweepReport, Trial

__all__ = ["SweepLines", "best_line", "fields", "print_report"]


class SweepLines:
    """Tells on stderr of each trial once when it begins and once when it ends.

    ``as_json`` makes each an event of type ``trial``, on a line of its own.
    """

    def __init__(self, terminal: Terminal, *, as_json: bool = False) -> None:
        self._terminal = terminal
        self._json = as_json
        self._told: dict[int, str] = {}

    def changed(self, report: SweepReport) -> None:
        """Tell what is new."""
        ended = sum(one.state != "Running" for one in report.trials)
        for one in report.trials:
            if self._told.get(one.number) != one.state:
                self._told[one.number] = one.state
                self._tell(one, report, ended)

    def _tell(self, one: Trial, report: SweepReport, ended: int) -> None:
        if self._json:
            self._terminal.insist(json.dumps({"type": "trial", **_trial_fields(one)}))
            return
        style = state_style(one.state)
        state = self._terminal.style(_words(one, report), *((style,) if style else ()))
        self._terminal.say(f"[{ended}/{report.total}] {one.name}  {_point(one)}  {state}")


def print_report(report: SweepReport, terminal: Terminal) -> None:
    """Write the table of all trials to stdout, the best first."""
    axes = list(dict.fromkeys(name for one in report.trials for name in one.point))
    metric = report.measure.metric.upper()
    head = ("JOB", *axes, "STATE", metric, "TIME")
    rows = [
        (
            one.name,
            *(one.point.get(name, "-") for name in axes),
            f"{one.state}: {one.reason}" if one.reason else one.state,
            "-" if one.value is None else f"{one.value:.6g}",
            "-" if one.seconds is None else duration(one.seconds),
        )
        for one in report.ranked()
    ]
    places = range(1, len(head))
    print_table(head, rows, terminal, right=[one for one in places if one != len(axes) + 1])


def best_line(report: SweepReport) -> str:
    """The best trial in words, or why there is none."""
    best, measure = report.best, report.measure
    if best is not None and best.value is not None:
        return f"best: {best.name}  {_point(best)}  {measure.metric} {best.value:.6g}"
    succeeded = sum(one.state == "Succeeded" for one in report.trials)
    if not succeeded:
        return f"none of {plural(len(report.trials), 'job')} succeeded"
    if measure.pattern:
        return f"no log has a line that {measure.pattern!r} finds a number in"
    known = report.metrics()
    listed = f"; they reported {', '.join(known)}" if known else ""
    return f"no job reported {measure.metric}{listed}"


def fields(report: SweepReport) -> dict[str, Any]:
    """A sweep as JSON: its trials, the best first."""
    return {
        "metric": report.measure.metric,
        "goal": report.measure.goal,
        "best": None if report.best is None else report.best.name,
        "trials": [_trial_fields(one) for one in report.ranked()],
    }


def _trial_fields(one: Trial) -> dict[str, Any]:
    kept = ("number", "name", "state", "value", "seconds", "reason")
    return {"point": dict(one.point), **{name: getattr(one, name) for name in kept}}


def _point(one: Trial) -> str:
    return " ".join(f"{name}={value}" for name, value in one.point.items())


def _words(one: Trial, report: SweepReport) -> str:
    parts: Sequence[str] = [one.state.lower()]
    if one.seconds is not None:
        parts = [*parts, f"in {duration(one.seconds)}"]
    if one.value is not None:
        parts = [*parts, f" {report.measure.metric} {one.value:.6g}"]
    return " ".join(parts) + (f": {one.reason}" if one.reason else "")
