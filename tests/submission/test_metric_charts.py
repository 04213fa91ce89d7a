"""Charts: which points of a metric are kept and drawn."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from danlu.submission.job_view_model import MetricSeries
from danlu.submission.metric_charts import MetricHistory, render_svg
from danlu.training.progress import TrainingProgress

_SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{_SVG}text")]


def line(picture: str) -> list[tuple[float, float]]:
    result = ElementTree.fromstring(picture).find(f"{_SVG}polyline")
    assert result is not None
    pairs = [pair.split(",") for pair in result.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_chart_has_name_last_value_and_axis_labels() -> None:
    series = MetricSeries("loss", ((0.0, 4.0), (30.0, 1.0), (90.0, 2.0)), 2.0)
    output = texts(render_svg(series))
    assert output == ["loss 2", "4", "1", "0 s", "1:30 min", "time"]


def test_chart_axes_point_up_and_right() -> None:
    points = line(render_svg(MetricSeries("loss", ((0.0, 4.0), (30.0, 1.0), (90.0, 2.0)), 2.0)))
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x0 < x1 < x2
    assert y0 < y2 < y1


def test_constant_metric_is_drawn_in_the_middle() -> None:
    for points in (((5.0, 3.0),), ((5.0, 3.0), (9.0, 3.0)), ((5.0, 0.0), (9.0, 0.0))):
        heights = {y for _, y in line(render_svg(MetricSeries("loss", points, 3.0)))}
        assert heights == {66.0}


def test_metric_that_is_always_nan_has_no_line() -> None:
    picture = render_svg(MetricSeries("loss", (), math.nan))
    assert texts(picture) == ["loss nan"]
    assert "polyline" not in picture


def test_metric_name_is_escaped_in_svg() -> None:
    picture = render_svg(MetricSeries("</text><script>\x1b[31m&'", ((0.0, 1.0),), 1.0))
    assert texts(picture)[0] == "</text><script>&' 1"


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324])
def test_extreme_values_are_drawn(value: float) -> None:
    points = line(render_svg(MetricSeries("loss", ((0.0, value), (1.0, -value)), -value)))
    assert all(math.isfinite(y) for _, y in points)


def make_progress(*points: tuple[float, float], last: float | None = None) -> TrainingProgress:
    """Return progress with a history of the metric ``loss``."""
    return TrainingProgress(metrics={"loss": last or points[-1][1]}, history={"loss": points})


def test_all_points_are_drawn_relative_to_the_start() -> None:
    history = MetricHistory()
    points = [(1000.0 + epoch, 1.0 / (epoch + 1)) for epoch in range(15)]
    history.update(make_progress(*points[:6]), 1000.0)
    history.update(make_progress(*points), 1000.0)
    (series,) = history.series()
    assert series == MetricSeries(
        "loss", tuple((at - 1000.0, value) for at, value in points), 1 / 15
    )
    assert len(line(render_svg(series))) == 15


def test_many_points_are_thinned_to_ends_and_extremes() -> None:
    points = [(float(step), 0.0) for step in range(10_000)]
    points[777], points[5001] = (777.0, 9.0), (5001.0, -9.0)
    picture = render_svg(MetricSeries("loss", tuple(points), 0.0))
    assert texts(picture)[1:3] == ["9", "-9"]
    heights = [y for _, y in line(picture)]
    assert (min(heights), max(heights)) == (24.0, 108.0)
    assert len(picture) < 8000


def test_reports_of_another_replica_start_a_new_series() -> None:
    history = MetricHistory()
    history.update(make_progress((1.0, 5.0), (2.0, 4.0)), 0.0)
    history.update(make_progress((1.5, 1.0)), 0.0)
    assert history.series()[0].points == ((1.5, 1.0),)


def test_report_of_the_second_in_which_the_job_began_is_at_its_beginning() -> None:
    history = MetricHistory()
    history.update(make_progress((7.0, 5.0), (8.0, 4.0)), 7.4)
    assert history.series()[0].points == ((0.0, 5.0), (8.0 - 7.4, 4.0))


def test_without_history_the_series_is_built_from_last_values() -> None:
    history = MetricHistory()
    for second in (1, 1, 2):
        at = datetime.fromtimestamp(100 + second, UTC)
        history.update(
            TrainingProgress(metrics={"loss": 5.0 - second, "rate": 0.1}, updated=at), 100.0
        )
    loss, rate = history.series()
    assert loss == MetricSeries("loss", ((1.0, 4.0), (2.0, 3.0)), 3.0)
    assert rate == MetricSeries("rate", ((1.0, 0.1), (2.0, 0.1)), 0.1)
