"""Parallel coordinates of a sweep: an axis for each parameter, and the compared value last.

Lines are coloured by rank, from dark to faint. Colours differ in lightness, and the best line is
also the thickest. What it shows is also in the table of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from danlu.submission.job_view_model import format_metric
from danlu.sweeps.report import SweepReport, SweepTrial
from danlu.ui.html import MAX_TEXT_LENGTH, Html, element

_MAX_AXES, _MAX_TICKS, _MAX_LABEL = 12, 8, 14
_STEP, _HEIGHT = 140, 300
_TOP, _BOTTOM, _SIDE = 34, 24, 70
#: From this ratio of the largest value to the smallest on, a scale is logarithmic.
_LOG_RATIO = 50.0
#: Classes of lines by their share of all that are as good or better.
_RANKS = ((0.1, "top"), (0.35, "good"), (1.0, "rest"))


@dataclass(frozen=True)
class _Axis:
    """An axis; ``place`` returns the height of a value from 0 to 1, None if it has none."""

    title: str
    place: Callable[[str], float | None]
    ticks: Sequence[tuple[str, float]]


def render_parallel_coordinates(
    report: SweepReport, axes: Sequence[str], titled: Sequence[str]
) -> Html:
    """Return the chart of all trials; lines of jobs in ``titled`` say which they are."""
    axes = axes[: _MAX_AXES - 1]
    drawn = [
        _make_axis(name, [trial.point.get(name, "") for trial in report.trials]) for name in axes
    ]
    values = [str(trial.value) for trial in report.trials if trial.value is not None]
    drawn.append(_make_axis(report.measure.title, values, falling=report.measure.goal == "min"))
    width = 2 * _SIDE + _STEP * (len(drawn) - 1)
    names = ", ".join(axis.title for axis in drawn)
    return element(
        "svg",
        [_draw_line(axis, _SIDE + _STEP * index) for index, axis in enumerate(drawn)],
        _draw_trials(report, axes, drawn, frozenset(titled)),
        [_draw_labels(axis, _SIDE + _STEP * index) for index, axis in enumerate(drawn)],
        class_="parallel long" if len(drawn) > 6 else "parallel",
        viewBox=f"0 0 {width} {_HEIGHT}",
        role="img",
        aria_label=f"Parallel coordinates of {names}; the table has the same values",
    )


# -- axes -----------------------------------------------------------------------------------------


def _make_axis(title: str, values: Sequence[str], *, falling: bool = False) -> _Axis:
    """Return the axis of values; with ``falling`` the smallest one is at the top."""
    numbers = [_parse_number(value) for value in values]
    finite = [number for number in numbers if number is not None]
    if finite and len(finite) == len(values):
        return _make_number_axis(title, finite, falling=falling)
    known = {value: index for index, value in enumerate(dict.fromkeys(sorted(values)))}
    last = max(1, len(known) - 1)
    shown = list(known.items())[:: 1 + len(known) // (_MAX_TICKS + 1)]
    places = {value: index / last for value, index in known.items()}
    return _Axis(title, places.get, [(value, index / last) for value, index in shown])


def _make_number_axis(title: str, numbers: Sequence[float], *, falling: bool) -> _Axis:
    low, high = min(numbers), max(numbers)
    scale: Callable[[float], float] = math.log if low > 0 and high / low >= _LOG_RATIO else float
    begin, length = scale(low), scale(high) - scale(low)

    def place(value: str) -> float | None:
        number = _parse_number(value)
        if number is None:
            return None
        share = (scale(number) - begin) / length if length else 0.5
        return 1 - share if falling else share

    distinct = sorted(set(numbers))
    if len(distinct) > _MAX_TICKS:
        middle = math.exp(begin + length / 2) if scale is math.log else (low + high) / 2
        distinct = [low, middle, high]
    ticks = [(format_metric(number), place(repr(number)) or 0.0) for number in distinct]
    return _Axis(title, place, ticks)


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _draw_line(axis: _Axis, x: int) -> Html:
    marks = "".join(f"M{x - 3} {_find_y(place)}h6" for _, place in axis.ticks)
    return element("path", class_="axis", d=f"M{x} {_TOP}V{_HEIGHT - _BOTTOM}{marks}")


def _draw_labels(axis: _Axis, x: int) -> Html:
    title = element("title", axis.title)
    labels = [
        element("text", _cut_text(text), x=x - 7, y=_find_y(place) + 4, text_anchor="end")
        for text, place in axis.ticks
    ]
    head = element(
        "text", title, _cut_text(axis.title, 20), x=x, y=16, text_anchor="middle", class_="title"
    )
    return element("g", head, labels)


def _cut_text(text: str, length: int = _MAX_LABEL) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _find_y(place: float) -> int:
    return round(_HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM))


# -- lines ----------------------------------------------------------------------------------------


def _draw_trials(
    report: SweepReport, names: Sequence[str], axes: Sequence[_Axis], titled: frozenset[str]
) -> list[Html]:
    """Return a path for each titled job, and one for all others of a class, the best on top."""
    ranked = report.rank_trials()
    compared = sum(trial.is_comparable for trial in ranked)
    plain: dict[str, list[str]] = {}
    own: list[Html] = []
    for index, trial in enumerate(ranked):
        kind = _classify_rank(trial, index, compared)
        data = _trace_trial(trial, names, axes)
        if trial.name in titled:
            title = f"{trial.name}: {' '.join(f'{key}={trial.point[key]}' for key in trial.point)}"
            own.append(element("path", element("title", title), class_=f"trial {kind}", d=data))
        else:
            _append_data(plain.setdefault(kind, [""]), data)
    below = [
        element("path", class_=f"trial {kind}", d=data)
        for kind, parts in plain.items()
        for data in parts
    ]
    return [*below[::-1], *own[::-1]]


def _append_data(parts: list[str], data: str) -> None:
    """Add data to the last part; attributes have a limit."""
    if len(parts[-1]) + len(data) > MAX_TEXT_LENGTH:
        parts.append("")
    parts[-1] += data


def _classify_rank(trial: SweepTrial, index: int, compared: int) -> str:
    if not trial.is_comparable:
        return "unknown"
    if index == 0:
        return "best"
    return next(kind for share, kind in _RANKS if (index + 1) / compared <= share)


def _trace_trial(trial: SweepTrial, names: Sequence[str], axes: Sequence[_Axis]) -> str:
    """Return the path of a trial; it has gaps where it has no value."""
    texts = [trial.point.get(name, "") for name in names]
    texts.append("" if trial.value is None else str(trial.value))
    data, pen = [], "M"
    for index, (axis, text) in enumerate(zip(axes, texts, strict=True)):
        place = axis.place(text)
        if place is None:
            pen = "M"
        else:
            data.append(f"{pen}{_SIDE + _STEP * index} {_find_y(place)}")
            pen = "L"
    return "".join(data)
