"""The view model of a sweep: the texts about its trials that every renderer shares."""

from __future__ import annotations

from danlu.sweeps.report import SweepReport, SweepTrial
from danlu.util.human import format_duration, pluralize


def axis_names(report: SweepReport) -> list[str]:
    """Return the names of all parameters, in the order given by the user."""
    return list(dict.fromkeys(name for trial in report.trials for name in trial.point))


def trial_row(trial: SweepTrial, report: SweepReport, axes: list[str]) -> tuple[str, ...]:
    """Return a trial's job, parameters, state, value and duration; ``-`` for unknown values."""
    state = f"{trial.state}: {trial.reason}" if trial.reason else str(trial.state)
    progress = trial.progress
    if trial.state == "Running" and progress is not None and progress.percentage is not None:
        state = f"{state} {progress.percentage} %"
    value = trial.value
    if value is None and progress is not None:
        value = progress.metrics.get(report.measure.metric)
    return (
        trial.name,
        *(trial.point.get(name, "-") for name in axes),
        state,
        "-" if value is None else _format_value(value),
        "-" if trial.seconds is None else format_duration(trial.seconds),
    )


def count_finished(report: SweepReport) -> int:
    """Return how many trials have finished."""
    return sum(trial.state != "Running" for trial in report.trials)


def format_point(trial: SweepTrial) -> str:
    """Return ``lr=0.1 depth=2``."""
    return " ".join(f"{name}={value}" for name, value in trial.point.items())


def format_outcome(trial: SweepTrial, report: SweepReport) -> str:
    """Return ``running``, ``succeeded in 12 s  loss 0.31`` or ``failed in 1 s: why``."""
    after = "" if trial.seconds is None else f" in {format_duration(trial.seconds)}"
    value = "" if trial.value is None else f"  {report.measure.title} {_format_value(trial.value)}"
    return f"{trial.state.lower()}{after}{value}" + (f": {trial.reason}" if trial.reason else "")


def describe_best(report: SweepReport) -> str:
    """Return a sentence about the best trial, or why no trial is the best."""
    best, objective = report.best, report.measure
    compared = [trial for trial in report.trials if trial.is_comparable]
    if best is not None and best.value is not None:
        if len(compared) > 1 and len({trial.value for trial in compared}) == 1:
            return (
                f"all {len(compared)} jobs have the same {objective.metric},"
                f" {_format_value(best.value)}: does the program use {', '.join(best.point)}?"
            )
        value = f"{objective.metric} {_format_value(best.value)}"
        return f"best: {best.name}  {format_point(best)}  {value}"
    if not any(trial.state == "Succeeded" for trial in report.trials):
        return f"none of {pluralize(len(report.trials), 'job')} succeeded"
    if objective.pattern:
        return f"no log line matches {objective.pattern!r} with a number"
    names = report.metric_names()
    reported = f"; reported metrics: {', '.join(names)}" if names else ""
    return f"no job reported {objective.metric}{reported}"


def _format_value(value: float) -> str:
    # More digits than elsewhere: trials are compared, and good ones differ little.
    return f"{value:.6g}"
