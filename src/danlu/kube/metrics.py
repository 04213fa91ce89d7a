"""Numbers to be read by Prometheus: counters, gauges, histograms, and their text.

The text is that of Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

__all__ = ["CONTENT_TYPE", "LATENCIES", "Counter", "Gauge", "Histogram", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCIES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of a histogram's buckets, in seconds."""

Labels = tuple[str, ...]


class _Metric:
    kind = ""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)

    def _values(self, given: Mapping[str, str]) -> Labels:
        if given.keys() != set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {sorted(given)}")
        return tuple(given[name] for name in self.labels)

    def _line(self, values: Labels, number: float, suffix: str = "", *more: str) -> str:
        pairs = [f'{n}="{_escaped(v)}"' for n, v in zip(self.labels, values, strict=True)]
        shown = ",".join([*pairs, *more])
        return (
            f"{self.name}{suffix}{{{shown}}} {_number(number)}"
            if shown
            else (f"{self.name}{suffix} {_number(number)}")
        )

    def lines(self) -> Iterator[str]:
        """The samples, sorted."""
        raise NotImplementedError


_M = TypeVar("_M", bound=_Metric)


class Counter(_Metric):
    """Goes up."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._numbers: dict[Labels, float] = {}

    def add(self, number: float = 1.0, **labels: str) -> None:
        """Count ``number`` more."""
        if number < 0:
            raise ValueError(f"{self.name} cannot go down")
        values = self._values(labels)
        self._numbers[values] = self._numbers.get(values, 0.0) + number

    def value(self, **labels: str) -> float:
        """What has been counted."""
        return self._numbers.get(self._values(labels), 0.0)

    def lines(self) -> Iterator[str]:
        """The samples, sorted."""
        for values, number in sorted(self._numbers.items()):
            yield self._line(values, number)


class Gauge(_Metric):
    """Goes up and down; ``read`` gives all its values at the moment they are asked for."""

    kind = "gauge"

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        *,
        read: Callable[[], Iterable[tuple[Labels, float]]] | None = None,
    ) -> None:
        super().__init__(name, help, labels)
        self._numbers: dict[Labels, float] = {}
        self._read = read

    def set(self, number: float, **labels: str) -> None:
        """Say how it is."""
        self._numbers[self._values(labels)] = number

    def lines(self) -> Iterator[str]:
        """The samples, sorted."""
        found = self._read() if self._read is not None else self._numbers.items()
        for values, number in sorted(found):
            yield self._line(values, number)


class Histogram(_Metric):
    """How many of what was observed are at most as big as each of some bounds."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float] = LATENCIES,
    ) -> None:
        super().__init__(name, help, labels)
        self._bounds = tuple(bounds)
        self._seen: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, number: float, **labels: str) -> None:
        """Count one more."""
        values = self._values(labels)
        if values not in self._seen:
            self._seen[values] = ([0] * (len(self._bounds) + 1), [0.0])
        counts, total = self._seen[values]
        counts[bisect_left(self._bounds, number)] += 1
        total[0] += number

    def lines(self) -> Iterator[str]:
        """The samples, sorted."""
        for values, (counts, total) in sorted(self._seen.items()):
            below = 0
            for bound, count in zip((*self._bounds, math.inf), counts, strict=True):
                below += count
                yield self._line(values, below, "_bucket", f'le="{_number(bound)}"')
            yield self._line(values, total[0], "_sum")
            yield self._line(values, below, "_count")


class Metrics:
    """All metrics of a program; each name once."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        """A new counter, whose name ends in ``_total``."""
        return self._add(Counter(name, help, labels))

    def gauge(
        self,
        name: str,
        help: str,
        *labels: str,
        read: Callable[[], Iterable[tuple[Labels, float]]] | None = None,
    ) -> Gauge:
        """A new gauge."""
        return self._add(Gauge(name, help, labels, read=read))

    def histogram(
        self, name: str, help: str, *labels: str, bounds: Sequence[float] = LATENCIES
    ) -> Histogram:
        """A new histogram."""
        return self._add(Histogram(name, help, labels, bounds=bounds))

    def text(self) -> str:
        """All of them as Prometheus reads them."""
        lines: list[str] = []
        for name, metric in sorted(self._metrics.items()):
            lines.append(f"# HELP {name} {_escaped(metric.help)}")
            lines.append(f"# TYPE {name} {metric.kind}")
            lines.extend(metric.lines())
        return "\n".join(lines) + "\n" if lines else ""

    def _add(self, metric: _M) -> _M:
        if metric.name in self._metrics:
            raise ValueError(f"there is a metric {metric.name} already")
        self._metrics[metric.name] = metric
        return metric


def _number(number: float) -> str:
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number == int(number) else repr(number)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
