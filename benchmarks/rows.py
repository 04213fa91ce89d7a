"""The rows of the table, in the order in which one builder goes through them."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import layer_sizes
from benchmarks.peers.peer import Peer
from benchmarks.workload import SMALL, Workload

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

LOCKED = 3
"""Additions with a lock for each without: they take moments, and three figures say little."""


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

    def run(self, wanted: Sequence[str]) -> Results:
        """Every phase that makes a wanted row; one that fails is noted and the next one tried."""
        for phase in (self.first, self.nothing, self.change, self.second):
            rows = PHASES[phase.__name__]
            if phase.__name__ != "first" and not set(rows) & set(wanted):
                continue
            try:
                phase()
            except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                self.say(f"{self.peer.title}: {phase.__name__} failed: {error}")
                self.results.failures[phase.__name__] = str(error)
                if phase.__name__ == "first":
                    break
        return self.results

    def first(self) -> None:
        """Once with nothing downloaded, then again and again from the base only."""
        project = self.project("main", Workload())
        self.record("cold", self.peer.build(project))
        for _ in range(self.runs):
            self.peer.forget()
            (project / "danlu.lock").unlink(missing_ok=True)
            self.record("first", self.peer.build(project, fresh=True))

    def nothing(self) -> None:
        """The same once more."""
        project = self.project("main", Workload())
        self.peer.build(project)
        for _ in range(max(self.runs, 5)):
            self.record("nothing", self.peer.build(project))

    def change(self) -> None:
        """Another small package each time; what is written before is there to be reused."""
        project, layout = self.main, self.directory / "layout"
        shutil.rmtree(layout, ignore_errors=True)
        self.project("main", Workload())
        self.peer.build(project)
        self.peer.write(project, layout)
        before = layer_sizes(layout)
        for package in self._additions():
            self.peer.build(self.project("main", Workload().plus(package)))
            self.record("write", self.peer.write(project, layout))
            now = layer_sizes(layout)
            self.record("bytes", sum(size for digest, size in now.items() if digest not in before))
            before.update(now)
            self._reset(project)
        shutil.rmtree(layout, ignore_errors=True)

    def _additions(self) -> Iterator[str]:
        """Build each addition: timed here, in both ways where the builder knows two."""
        packages = iter(SMALL)
        for _ in range(self.runs):
            for _ in range(LOCKED) if self.peer.locks else ():
                project = self.project("main", Workload().plus(next(packages)))
                self.peer.lock(project)
                self.record("add-locked", self.peer.build(project))
                self._reset(project)
            package = next(packages)
            project = self.project("main", Workload().plus(package))
            self.record("add", self.peer.build(project))
            yield package

    def _reset(self, project: Path) -> None:
        """The project without the added package, built."""
        self.project("main", Workload())
        self.peer.build(project)

    def second(self) -> None:
        """Another project, in another directory."""
        for run in range(self.runs):
            work = Workload().second(run)
            if self.peer.locks:
                project = self.project(f"second-{run}-locked", work)
                shutil.copy(self.main / "danlu.lock", project)
                self.peer.lock(project)
                self.record("second-locked", self.peer.build(project))
            name = f"second-{run}"
            work = Workload(work.packages, variable=name)
            self.record("second", self.peer.build(self.project(name, work)))


PHASES = {
    "first": ("cold", "first"),
    "nothing": ("nothing",),
    "change": ("add", "add-locked", "write", "bytes"),
    "second": ("second", "second-locked"),
}


def now() -> str:
    """The time of day, for lines of progress."""
    return time.strftime("%H:%M:%S")
