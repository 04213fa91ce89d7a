"""A progress report, and the replica that it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from danlu.replica_runtime.report import merge_points
from danlu.training.progress import TrainingProgress
from danlu.util.decoding import decode_json

PROGRESS_KEY, SOURCE_KEY = "progress", "speaker"
"""The keys of the ConfigMap's data."""

MAX_HISTORY_POINTS = 256
"""The number of points per metric that are stored."""

_SOURCE = re.compile(r"(leader|replicas)/([a-z]*)-(\d{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class ReportSource:
    """The replica that sent a report. The smallest counts: the leader, then by type and index.

    An order is needed because the operator's processes do not all receive the same reports first.
    """

    is_follower: bool
    type: str
    index: int

    @classmethod
    def from_path(cls, role: str | None, replica: str | None) -> ReportSource:
        """Return the source of a URL path: ``leader`` or ``replicas``, and ``worker-0``."""
        type, _, index = (replica or "").rpartition("-")
        return cls(role != "leader", type, int(index or 0))

    @classmethod
    def parse(cls, text: str) -> ReportSource | None:
        """Parse the result of :meth:`__str__`; return None if it is invalid."""
        match = _SOURCE.fullmatch(text)
        return cls.from_path(match[1], f"{match[2]}-{match[3]}") if match else None

    def __str__(self) -> str:
        role = "replicas" if self.is_follower else "leader"
        return f"{role}/{self.type}-{self.index}"


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A stored report; ``text`` is the JSON of a :class:`TrainingProgress`."""

    source: ReportSource
    text: str
    updated: datetime | None

    @classmethod
    def from_progress(cls, source: ReportSource, progress: TrainingProgress) -> ProgressReport:
        """Return the report of what a replica sent."""
        return cls(source, msgspec.json.encode(progress).decode(), progress.updated)

    @classmethod
    def from_data(cls, data: Mapping[str, str]) -> ProgressReport | None:
        """Return the report in a ConfigMap's data, or None if it is missing or invalid."""
        text, source = data.get(PROGRESS_KEY, ""), ReportSource.parse(data.get(SOURCE_KEY, ""))
        try:
            progress = _decode_progress(text)
        except msgspec.MsgspecError:
            return None
        return cls(source, text, progress.updated) if source else None

    def to_data(self) -> dict[str, str]:
        """Return the report as data of a ConfigMap."""
        return {PROGRESS_KEY: self.text, SOURCE_KEY: str(self.source)}

    def merge_history(self, before: ProgressReport) -> ProgressReport:
        """Return this report with the history of an earlier one of the same replica."""
        if self.source != before.source:
            return self
        progress, earlier = _decode_progress(self.text), _decode_progress(before.text)
        history = merge_points(earlier.history, progress.history, MAX_HISTORY_POINTS)
        merged = msgspec.structs.replace(progress, history=history)
        return ProgressReport.from_progress(self.source, merged)

    def to_trainer_status(self) -> dict[str, Any]:
        """Return the report as the ``trainerStatus`` of a TrainJob."""
        progress = _decode_progress(self.text)
        metrics = [
            {"name": name, "value": str(value)} for name, value in sorted(progress.metrics.items())
        ]
        fields = {
            "progressPercentage": progress.percentage,
            "estimatedRemainingSeconds": progress.seconds_left,
            "metrics": metrics,
            "lastUpdatedTime": progress.updated and progress.updated.replace(microsecond=0),
        }
        plain: dict[str, Any] = msgspec.to_builtins(fields)
        return plain

    def supersedes(self, other: ProgressReport) -> bool:
        """Return whether this report replaces one that another process stored."""
        if self.source != other.source:
            return self.source < other.source
        return not (self.updated and other.updated) or self.updated >= other.updated


def _decode_progress(text: str) -> TrainingProgress:
    return decode_json(text, TrainingProgress)
