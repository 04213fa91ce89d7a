"""The rows of the table, and the measurements of one builder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.peer import BuilderPeer
from benchmarks.workload import BuildWorkload

ROWS = {
    "cold": "first build, base image present, nothing downloaded",
    "first": "first build, base image present, downloads kept where the builder can",
    "nothing": "nothing changed",
    "nothing-saved": "nothing changed, build file saved again",
    "write": "write the image after adding a package",
    "bytes": "bytes that the added package adds to the image",
    "add-locked": "add one small package, lock given",
    "add": "add one small package, resolving included",
    "second-locked": "second project, same packages, lock given",
    "second": "second project, same packages",
    "import": "first `import torch` in a fresh container",
    "import-whole": "the same, the whole command",
    "start": "start to a command's first output",
    "start-host": "the same, on the host's network",
    "help": "`danlu --help`, whole process",
}


@dataclass
class BenchmarkResults:
    """Figures by row, in the order of their measurement (in seconds; ``bytes`` in bytes)."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, figure: float) -> None:
        """Add a figure of ``row``."""
        self.figures.setdefault(row, []).append(figure)


@dataclass(frozen=True)
class BuilderRun:
    """Measures the rows for one builder."""

    peer: BuilderPeer
    directory: Path
    runs: int
    log: Path
    say: Callable[[str], None]
    results: BenchmarkResults = field(default_factory=BenchmarkResults)
    _workloads: dict[str, BuildWorkload] = field(default_factory=dict)

    @property
    def main(self) -> Path:
        """The project that is built first."""
        return self.directory / "main"

    def project(self, name: str, work: BuildWorkload) -> Path:
        """Create a project with this workload; return its directory."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        # A file that is written again is a change, even if its content is the same.
        if self._workloads.get(name) != work:
            self.peer.describe(path, work)
            self._workloads[name] = work
        return path

    def record(self, row: str, figure: float) -> None:
        """Record and print a figure."""
        self.say(f"{self.peer.title}: {ROWS[row]}: {figure:.3f}")
        self.results.add(row, figure)

    def first(self) -> None:
        """Measure the first build without downloads, then repeatedly from the base only.

        Raises :class:`RuntimeError` if the builder cannot build the project.
        """
        project = self.project("main", BuildWorkload())
        self.record("cold", self.peer.build(project))
        for _ in range(self.runs):
            self.peer.forget()
            (project / "danlu.lock").unlink(missing_ok=True)
            self.record("first", self.peer.build(project, fresh=True))


def now() -> str:
    """Return the time of day, for lines of progress."""
    return time.strftime("%H:%M:%S")
