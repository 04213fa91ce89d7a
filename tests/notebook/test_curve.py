"""Curves: what is kept of a metric, and what is drawn."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from danlu.notebook.curve import History, Series, svg

_SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter(f"{_SVG}text")]


def line(picture: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(picture).find(f"{_SVG}polyline")
    assert found is not None
    pairs = [one.split(",") for one in found.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_curve_has_its_name_its_last_value_and_labels_on_both_axes() -> None:
    series = Series("loss", ((0.0, 4.0), (30.0, 1.0), (90.0, 2.0)), 2.0)
    said = texts(svg(series))
    assert said == ["loss 2", "4", "1", "0 s", "1:30 min", "time"]


def test_a_larger_value_stands_higher_and_a_later_one_further_right() -> None:
    points = line(svg(Series("loss", ((0.0, 4.0), (30.0, 1.0), (90.0, 2.0)), 2.0)))
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x0 < x1 < x2
    assert y0 < y2 < y1


def test_one_value_and_equal_values_are_drawn_in_the_middle() -> None:
    for points in (((5.0, 3.0),), ((5.0, 3.0), (9.0, 3.0)), ((5.0, 0.0), (9.0, 0.0))):
        heights = {y for _, y in line(svg(Series("loss", points, 3.0)))}
        assert heights == {66.0}


def test_a_metric_that_was_never_a_number_has_axes_and_no_line() -> None:
    picture = svg(Series("loss", (), math.nan))
    assert texts(picture) == ["loss nan"]
    assert "polyline" not in picture


def test_a_name_cannot_leave_its_place() -> None:
    picture = svg(Series("</text><script>\x1b[31m&'", ((0.0, 1.0),), 1.0))
    assert texts(picture)[0] == "</text><script>&' 1"


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324])
def test_the_largest_numbers_have_a_place(value: float) -> None:
    points = line(svg(Series("loss", ((0.0, value), (1.0, -value)), -value)))
    assert all(math.isfinite(y) for _, y in points)


def test_history_keeps_the_first_the_last_and_so_many_between() -> None:
    history = History()
    for step in range(10_000):
        history.add(float(step), {"loss": float(-step)})
    (series,) = history.series()
    assert len(series.points) <= 256
    assert series.points[0] == (0.0, 0.0)
    assert series.points[-1] == (9999.0, -9999.0)
    assert len(svg(series)) < 6000


def test_history_tells_the_last_value_and_draws_only_numbers() -> None:
    history = History()
    history.add(1.0, {"loss": 2.0, "rate": 0.1})
    history.add(2.0, {"loss": math.inf})
    loss, rate = history.series()
    assert loss == Series("loss", ((1.0, 2.0),), math.inf)
    assert rate == Series("rate", ((1.0, 0.1),), 0.1)


def test_a_report_that_is_seen_twice_is_one_point() -> None:
    history = History()
    history.add(1.0, {"loss": 2.0})
    history.add(1.0, {"loss": 2.0})
    assert history.series()[0].points == ((1.0, 2.0),)
