"""A desk without IPython: variables of a mapping, views that are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danlu.commands.places import jobs_on
from danlu.commands.settings import Settings, load_settings
from danlu.commands.sweepreport import SweepReport
from danlu.jobs.types import Jobs, JobView, LogLine
from danlu.notebook.desk import Namespace
from danlu.util.paths import Paths

__all__ = ["Seen", "TestDesk"]


@dataclass
class Seen:
    """A view that keeps what it was told."""

    phases: list[str] = field(default_factory=list)
    views: list[JobView] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    reports: list[SweepReport] = field(default_factory=list)
    ends: list[tuple[str, str]] = field(default_factory=list)
    newest: bool = False

    def phase(self, state: str, *, name: str = "") -> None:
        self.phases.append(state)

    def said(self, who: str, text: str) -> None:
        self.lines.append(f"{who} │ {text}")

    def view(self, view: JobView) -> None:
        self.views.append(view)

    def line(self, line: LogLine) -> None:
        self.lines.append(f"{line.replica} │ {line.data.decode()}")

    def changed(self, report: SweepReport) -> None:
        self.reports.append(report)

    def tick(self) -> None:
        pass

    def ended(self, state: str, words: str) -> None:
        self.ends.append((state, words))


class TestDesk:
    """A notebook in ``directory`` with a danlu home beside it."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self.names: dict[str, Any] = {}
        self.seen = Seen()
        self._directory = directory

    @property
    def values(self) -> Namespace:
        return Namespace(self.names)

    @property
    def settings(self) -> Settings:
        return load_settings(Paths.of({"DANLU_HOME": str(self._directory / "home")}))

    @property
    def directory(self) -> Path:
        return self._directory

    def view(self, lines: int | None = None) -> Seen:
        self.seen = Seen()
        return self.seen

    def sweep_view(self) -> Seen:
        self.seen = Seen()
        return self.seen

    def jobs(self, on: str = "") -> Jobs:
        return jobs_on(on, self.settings)
