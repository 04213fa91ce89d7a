"""A context without IPython: variables of a mapping, views that are kept."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.engine.settings import Settings, load_settings
from danlu.graph.progress import Event
from danlu.jobs.backends import select_backend
from danlu.jobs.types import JobBackend, JobView, LogLine
from danlu.notebook.variables import UserNamespace
from danlu.sweeps.report import SweepReport
from danlu.util.paths import Paths

__all__ = ["FakeCellContext", "RecordingView"]


@dataclass
class RecordingView:
    """A view of a job or sweep that records all calls."""

    phases: list[str] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    reports: list[SweepReport] = field(default_factory=list)
    build_events: list[Event] = field(default_factory=list)
    ends: list[tuple[str, str]] = field(default_factory=list)
    newest: bool = False

    def phase(self, state: str, *, name: str = "") -> None:
        self.phases.append(state)

    def add_output(self, source: str, text: str) -> None:
        self.lines.append(f"{source} │ {text}")

    def build_event(self, event: Event) -> None:
        self.build_events.append(event)

    def view(self, view: JobView) -> None:
        self.views.append(view)

    def line(self, line: LogLine) -> None:
        self.lines.append(f"{line.replica} │ {line.data.decode()}")

    def update(self, report: SweepReport) -> None:
        self.reports.append(report)

    def tick(self) -> None:
        pass

    def finish(self, state: str, message: str) -> None:
        self.ends.append((state, message))


class FakeCellContext:
    """The context of a notebook in ``directory``, with danlu's home next to it."""

    __test__ = False
    is_rich = False
    working_directory = ""

    def __init__(self, directory: Path) -> None:
        self.names: dict[str, Any] = {}
        self.last_view = RecordingView()
        self._directory = directory

    @property
    def values(self) -> UserNamespace:
        return UserNamespace(self.names)

    @property
    def settings(self) -> Settings:
        return load_settings(Paths.of({"DANLU_HOME": str(self._directory / "home")}))

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def search_path(self) -> list[str]:
        return [entry or str(self._directory) for entry in sys.path]

    def view(self, lines: int | None = None) -> RecordingView:
        self.last_view = RecordingView()
        return self.last_view

    def sweep_view(self) -> RecordingView:
        self.last_view = RecordingView()
        return self.last_view

    def jobs(self, on: str = "") -> JobBackend:
        return select_backend(on, self.settings)
