"""Charts of metrics over time: collected from a job's progress, drawn as small SVG images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from danlu.replica_runtime.report import merge_points, thin_points
from danlu.submission.job_view_model import MetricSeries, format_metric
from danlu.training.progress import Points, TrainingProgress
from danlu.util.sanitize import strip_control_sequences

_WIDTH, _HEIGHT = 300, 130
_MAX_LABEL_LENGTH = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 24, 22

#: Readable on white and on black: an image does not know the notebook's theme.
_LINE, _TEXT, _AXIS = "#2f81d6", "#767676", "#a0a0a0"


#: Eight colours that people with any colour vision tell apart (after Okabe and Ito, 2008), readable
#: on white and on black; the second four are dashed as well.
CURVE_STYLES = (
    *(("#2f81d6", ""), ("#c75000", ""), ("#00845f", ""), ("#b65a92", "")),
    *(("#b8860b", "6 3"), ("#3a9bc9", "6 3"), ("#8a5fd0", "6 3"), ("#767676", "6 3")),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart: pairs of seconds and value, in the order of time."""

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    dashes: str = ""


class MetricHistory:
    """Collects the metrics of one job."""

    def __init__(self) -> None:
        self._points: dict[str, Points] = {}
        self._last: Mapping[str, float] = {}
        self._began = 0.0

    def update(self, progress: TrainingProgress, began: float) -> None:
        """Add the progress of a job; ``began`` is when it was created (Unix time)."""
        self._began, self._last = began, progress.metrics
        history = progress.history
        if not history and progress.updated is not None:
            # Other implementations of the protocol only keep the last value.
            at = progress.updated.timestamp()
            history = {
                name: ((at, value),)
                for name, value in progress.metrics.items()
                if math.isfinite(value)
            }
            history = merge_points(self._points, history)
        self._points = dict(history)

    def series(self) -> tuple[MetricSeries, ...]:
        """Return all metrics in the order in which they were first reported."""
        names = [*self._points, *(name for name in self._last if name not in self._points)]
        began = self._began
        # Programs report whole seconds, so the first may seem to be before the job.
        return tuple(
            MetricSeries(
                name,
                tuple((max(0.0, at - began), value) for at, value in self._points.get(name, ())),
                self._last[name],
            )
            for name in names
            if name in self._last
        )


def render_svg(series: MetricSeries) -> str:
    """Draw a metric as an SVG image, with its range and the time on the axes."""
    curve = Curve("", series.points, _LINE)
    title = f"{series.name} {format_metric(series.last)}"
    return render_curves([curve], title, shortened=series.name)


def render_curves(
    curves: Sequence[Curve],
    title: str,
    *,
    shortened: str = "",
    width: int = _WIDTH,
    height: int = _HEIGHT,
) -> str:
    """Draw curves over the same axes, thinned so that no extreme is lost.

    ``shortened`` is the part of the title that is truncated if it is long.
    """
    area = _PlotArea(width - _RIGHT, height - _BOTTOM)
    thinned = [(curve, thin_points(curve.points, width * 2 // 5)) for curve in curves]
    title = strip_control_sequences(title)
    if shortened:
        name = strip_control_sequences(shortened)
        title = title.replace(name, _truncate_name(name), 1)
    points = [point for _, thin in thinned for point in thin]
    bounds = _PlotBounds.of(points) if points else None
    lines = [_draw_line(thin, curve, bounds, area) for curve, thin in thinned if bounds and thin]
    color = curves[0].color if len(curves) == 1 else _TEXT
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'"
        f" viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='11'>",
        _draw_label(_LEFT, 14, escape(title), color=color, weight="bold"),
        *_draw_axes(bounds, area),
        *lines,
        "</svg>",
    ]
    return "".join(parts)


def _truncate_name(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


@dataclass(frozen=True, slots=True)
class _PlotArea:
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class _PlotBounds:
    begin: float
    end: float
    low: float
    high: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> _PlotBounds:
        times = [at for at, _ in points]
        return cls(min(times), max(times), *_value_range([value for _, value in points]))


def _draw_axes(bounds: _PlotBounds | None, area: _PlotArea) -> list[str]:
    bottom, right = area.bottom, area.right
    parts = [
        f"<path d='M{_LEFT} {_TOP}V{bottom}H{right}' fill='none' stroke='{_AXIS}'/>",
    ]
    if bounds is None:
        return parts
    parts += [
        _draw_label(_LEFT - 4, _TOP + 8, _format_limit(bounds.high), anchor="end"),
        _draw_label(_LEFT - 4, bottom, _format_limit(bounds.low), anchor="end"),
        _draw_label(_LEFT, bottom + 14, _format_time(bounds.begin)),
        _draw_label(right, bottom + 14, _format_time(bounds.end), anchor="end"),
        _draw_label((_LEFT + right) // 2, bottom + 14, "time", anchor="middle"),
    ]
    return parts


def _draw_line(
    points: Sequence[tuple[float, float]], curve: Curve, bounds: _PlotBounds, area: _PlotArea
) -> str:
    begin, end = bounds.begin, bounds.end
    width, height = area.right - _LEFT, area.bottom - _TOP
    coordinates = [
        (
            _LEFT + width * ((at - begin) / (end - begin) if end > begin else 1.0),
            _TOP + height * (1 - _relative_position(value, bounds.low, bounds.high)),
        )
        for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in coordinates)
    x, y = coordinates[-1]
    dashes = f" stroke-dasharray='{curve.dashes}'" if curve.dashes else ""
    name = escape(strip_control_sequences(curve.label))
    end_tag = f"><title>{name}</title></polyline>" if name else "/>"
    return (
        f"<polyline points='{line}' fill='none' stroke='{curve.color}' stroke-width='1.5'{dashes}"
        f"{end_tag}"
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{curve.color}'/>"
    )


def _relative_position(value: float, low: float, high: float) -> float:
    """Return the position of a value between ``low`` (0) and ``high`` (1)."""
    # Scale first: the difference of two floats can overflow, and half of the smallest is zero.
    scale = max(abs(low), abs(high))
    whole = high / scale - low / scale
    return (value / scale - low / scale) / whole if whole else 0.5


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _draw_label(
    x: int, y: int, text: str, *, anchor: str = "start", color: str = _TEXT, weight: str = "normal"
) -> str:
    return (
        f"<text x='{x}' y='{y}' fill='{color}' text-anchor='{anchor}'"
        f" font-weight='{weight}'>{text}</text>"
    )


def _format_limit(value: float) -> str:
    """Format a value so that it fits next to the axis."""
    text = format_metric(value)
    return text if len(text) <= _MAX_LABEL_LENGTH else f"{value:.1e}"


def _format_time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
