"""The rows of the table, and one builder's way through them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.peer import Peer
from benchmarks.workload import Workload

ROWS = {
    "cold": "first build, base image present, nothing downloaded",
    "first": "first build, base image present, downloads kept where the builder can",
    "nothing": "nothing changed",
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
class Results:
    """Figures (seconds; for ``bytes``, bytes) by row, as they come."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, figure: float) -> None:
        """One more figure of ``row``."""
        self.figures.setdefault(row, []).append(figure)


@dataclass(frozen=True)
class Course:
    """One builder's way through the rows."""

    peer: Peer
    directory: Path
    runs: int
    log: Path
    say: Callable[[str], None]
    results: Results = field(default_factory=Results)

    @property
    def main(self) -> Path:
        """The project that was built first, and is built."""
        return self.directory / "main"

    def project(self, name: str, work: Workload) -> Path:
        """A directory that asks for ``work``."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        self.peer.describe(path, work)
        return path

    def record(self, row: str, figure: float) -> None:
        """Keep and show a figure."""
        self.say(f"{self.peer.title}: {ROWS[row]}: {figure:.3f}")
        self.results.add(row, figure)

    def first(self) -> None:
        """Once with nothing downloaded, then again and again from the base only.

        Raises :class:`RuntimeError` where the builder cannot build the project at all.
        """
        project = self.project("main", Workload())
        self.record("cold", self.peer.build(project))
        for _ in range(self.runs):
            self.peer.forget()
            (project / "danlu.lock").unlink(missing_ok=True)
            self.record("first", self.peer.build(project, fresh=True))


def now() -> str:
    """The time of day, for lines of progress."""
    return time.strftime("%H:%M:%S")
