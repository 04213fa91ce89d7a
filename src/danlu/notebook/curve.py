"""Metrics over time: gathered from a job's progress, drawn as a small SVG curve for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

from danlu.util.plaintext import clean

__all__ = ["History", "Series", "svg"]

#: So many points are kept of a metric; of more, every second one is dropped.
_POINTS = 256

#: So many are drawn: one in three pixels.
_DRAWN = 80

_WIDTH, _HEIGHT = 300, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 24, 22

#: Between black and white, so that they can be read on both: a picture knows no theme.
_LINE, _TEXT, _AXIS = "#2f81d6", "#767676", "#a0a0a0"


class Series(msgspec.Struct, frozen=True):
    """One metric: its values at seconds since the job was made, in order; the last one reported.

    ``last`` may be no number (NaN, infinite), which no point is.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    last: float


class History:
    """The metrics of one job as they come."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[float, float]]] = {}
        self._last: dict[str, float] = {}

    def add(self, seconds: float, metrics: dict[str, float]) -> None:
        """What was reported at ``seconds``."""
        for name, value in metrics.items():
            self._last[name] = value
            points = self._points.setdefault(name, [])
            if math.isfinite(value) and (not points or points[-1][0] < seconds):
                points.append((seconds, value))
            if len(points) > _POINTS:
                # The first and the last stay.
                points[:] = [*points[:-1:2], points[-1]]

    def series(self) -> tuple[Series, ...]:
        """All metrics, in the order in which they first came."""
        return tuple(
            Series(name, tuple(points), self._last[name]) for name, points in self._points.items()
        )


def svg(series: Series) -> str:
    """A picture of a metric: its range and the time on the axes, its last value by name."""
    points = _thinned(series.points)
    name = escape(_short(clean(series.name)))
    title = f"{name} {number(series.last)}"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}'"
        f" viewBox='0 0 {_WIDTH} {_HEIGHT}' font-family='sans-serif' font-size='11'>",
        _label(_LEFT, 14, title, colour=_LINE, weight="bold"),
        *_axes(points),
        _drawn(points),
        "</svg>",
    ]
    return "".join(parts)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    step = math.ceil(len(points) / _DRAWN)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def _axes(points: Sequence[tuple[float, float]]) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f"<path d='M{_LEFT} {_TOP}V{bottom}H{right}' fill='none' stroke='{_AXIS}'/>",
    ]
    if not points:
        return parts
    low, high = _range([value for _, value in points])
    begin, end = points[0][0], points[-1][0]
    parts += [
        _label(_LEFT - 4, _TOP + 8, number(high), anchor="end"),
        _label(_LEFT - 4, bottom, number(low), anchor="end"),
        _label(_LEFT, bottom + 14, _time(begin)),
        _label(right, bottom + 14, _time(end), anchor="end"),
        _label((_LEFT + right) // 2, bottom + 14, "time", anchor="middle"),
    ]
    return parts


def _drawn(points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    low, high = _range([value for _, value in points])
    begin, end = points[0][0], points[-1][0]
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    places = [
        (
            _LEFT + width * ((at - begin) / (end - begin) if end > begin else 1.0),
            _TOP + height * (1 - _part(value, low, high)),
        )
        for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return (
        f"<polyline points='{line}' fill='none' stroke='{_LINE}' stroke-width='1.5'/>"
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{_LINE}'/>"
    )


def _part(value: float, low: float, high: float) -> float:
    """Where between ``low`` (0) and ``high`` (1) a value is."""
    # The difference of two numbers may be infinite, and half of the smallest is none.
    scale = max(abs(low), abs(high))
    whole = high / scale - low / scale
    return (value / scale - low / scale) / whole if whole else 0.5


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    space = abs(low) / 2 or 0.5
    return low - space, high + space


def _label(
    x: int, y: int, text: str, *, anchor: str = "start", colour: str = _TEXT, weight: str = "normal"
) -> str:
    return (
        f"<text x='{x}' y='{y}' fill='{colour}' text-anchor='{anchor}'"
        f" font-weight='{weight}'>{text}</text>"
    )


def number(value: float) -> str:
    """A value in four digits: ``0.3125``, ``1.2e+06``."""
    return f"{value:.4g}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
