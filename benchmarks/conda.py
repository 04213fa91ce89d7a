"""A conda environment of 60 packages beside rattler's installer: ``python -m benchmarks.conda``.

The channel is made on this machine, since public ones change: Python of the distribution, and real
packages of PyPI (numpy, pandas, scikit-learn, JupyterLab and what they need) repackaged for conda.

The peer does what a Dockerfile's ``RUN`` with rattler, micromamba or pixi does: solve, fetch, link
into a prefix, and write that as one layer. It never has a base to unpack or a container to start.
CPU time is that of all processes of a turn: unlike seconds, it says something on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.base import Base
from benchmarks.machine import description
from benchmarks.page import write
from benchmarks.peers import Setting
from benchmarks.peers.danlu import Danlu
from benchmarks.peers.peer import timed
from tests.fakes.conda import (
    CondaFile,
    index_channel,
    write_interpreter,
    write_package,
    write_wheel_package,
)

HERE = Path(__file__).resolve().parent
COUNT = 60
#: The packages of the environment, with their dependencies; the first 59 wheels are taken.
WANTED = ("jupyterlab", "matplotlib", "pandas", "scikit-learn")
LARGE = ("numpy", "scipy", "pandas", "scikit_learn", "matplotlib", "jupyterlab", "pillow", "babel")
SMALL = tuple(f"extra{number}" for number in range(20))
"""Small packages to add, a new one each time so that nobody has it already."""

ROWS = {
    "first": "first build: solve, fetch and install",
    "first-warm": "the same, with what the installer keeps between builds",
    "written": "first build, and its layers compressed into an OCI layout",
    "add-locked": "add one small package, lock given",
    "add": "add one small package, resolving included",
}


def make_channel(channel: Path, wheels: Path) -> list[str]:
    """Write the channel; return the names of the environment's packages."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not Path(f"/usr/bin/python{minor}").exists():
        raise SystemExit(f"benchmarks: this needs the distribution's Python {minor}")
    version = ".".join(str(number) for number in sys.version_info[:3])
    write_interpreter(channel, Path("/"), version)
    command = [sys.executable, "-m", "pip", "download", "-qqq", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(wheels), *WANTED], check=True)
    found = sorted(wheels.glob("*.whl"), key=lambda path: path.name.lower())
    large = [path for path in found if path.name.lower().startswith(LARGE)]
    chosen = [*large, *(path for path in found if path not in large)][: COUNT - 1]
    for wheel in chosen:
        write_wheel_package(channel, wheel)
    for name in SMALL:
        text = CondaFile(f"'''{name}'''\n".encode() * 200)
        files = {f"site-packages/{name}/{part}.py": text for part in range(10)}
        write_package(channel, name, files=files, noarch="python", depends=["python"])
    index_channel(channel)
    return ["python", *(path.name.split("-")[0].lower() for path in chosen)]


def build_file(channel: Path, names: Sequence[str]) -> str:
    """For danlu."""
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        "def build():\n"
        '    base(os="debian12")\n'
        f'    install.conda_packages([{listed}], channel=["nodefaults", "{channel}"])\n'
    )


async def install(channel: Path, names: Sequence[str], prefix: Path, cache: Path) -> None:
    """Solve and install with rattler, as its users do; ``cache`` is all it may have kept."""
    import rattler

    subdirs = [rattler.Subdir("linux-64"), rattler.Subdir("noarch")]
    records = await rattler.solve(
        [rattler.Channel(channel.as_uri())],
        [rattler.MatchSpec(name) for name in names],
        gateway=rattler.Gateway(cache_dir=cache / "repodata"),
        platforms=subdirs,
        virtual_packages=rattler.VirtualPackage.detect(),
    )
    packages = cache / "packages"
    await rattler.install(records, prefix, cache_dir=packages, show_progress=False)


#: Seconds and CPU seconds of every turn, by builder and row.
Figures = dict[str, dict[str, list[tuple[float, float]]]]


class Installer:
    """rattler's installer in a process of its own, and the prefix as one layer."""

    def __init__(self, directory: Path, channel: Path, log: Path) -> None:
        self.directory = directory
        self.channel = channel
        self.log = log
        directory.mkdir()

    def build(self, names: Sequence[str], *, warm: bool, compressed: bool) -> float:
        """Seconds to install ``names`` into an empty prefix, and to write the layer's archive."""
        prefix, cache = self.directory / "opt/conda", self.directory / "cache"
        shutil.rmtree(prefix, ignore_errors=True)
        if not warm:
            shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-m", "benchmarks.conda", "--install", prefix, "--cache", cache]
        spent = timed([*command, "--channel", self.channel, *names], log=self.log)
        layer = self.directory / "layer.tar"
        archive: list[str | Path] = ["tar", "--numeric-owner", "-C", self.directory]
        archive += ["-czf" if compressed else "-cf", layer, "opt"]
        return spent + timed(archive, log=self.log)


class Course:
    """danlu and the installer on the same packages, by turns."""

    def __init__(self, work: Path, runs: int) -> None:
        self.runs = runs
        self.figures: Figures = {"danlu": {}, "rattler": {}}
        log = work / "log"
        (work / "wheels").mkdir()
        self.channel = work / "channel"
        self.names = make_channel(self.channel, work / "wheels")
        self.danlu = Danlu(Setting(work, Base(work / "base"), log))
        self.danlu.start()
        self.installer = Installer(work / "rattler", self.channel, log)
        self.project = work / "project"
        self.project.mkdir()
        self.layout = work / "layout"

    def record(self, who: str, row: str, measure: Callable[[], float]) -> None:
        """Keep and show the seconds that ``measure`` returns, and the CPU time meanwhile."""
        os.sync()
        before = os.times()
        seconds = measure()
        after = os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        print(f"{who}: {ROWS[row]}: {seconds:.3f}, CPU {cpu:.3f}", file=sys.stderr, flush=True)
        self.figures[who].setdefault(row, []).append((seconds, cpu))

    def describe(self, names: Sequence[str]) -> None:
        """Write the project's build file."""
        (self.project / "build.envd").write_text(build_file(self.channel, names))

    def measure(self) -> None:
        """Every row, as often as was asked for."""
        for _ in range(self.runs):
            self.describe(self.names)
            self.record("rattler", "first", self._install)
            self._forget()
            self.record("danlu", "first", self._build)
            self.record("rattler", "first-warm", lambda: self._install(warm=True))
            self._forget(downloads=False)
            self.record("danlu", "first-warm", self._build)
            self.record("rattler", "written", lambda: self._install(compressed=True))
            self._forget()
            shutil.rmtree(self.layout, ignore_errors=True)
            self.record("danlu", "written", self._build_and_write)
        for turn in range(0, 2 * self.runs, 2):
            for row, name in (("add-locked", SMALL[turn]), ("add", SMALL[turn + 1])):
                names = [*self.names, name]
                self.describe(names)
                if row == "add-locked":
                    self.danlu.lock(self.project)
                self.record("danlu", row, self._build)
                # A changed `RUN` starts from an empty prefix; only its caches stay.
                self.record("rattler", row, partial(self._install, names, warm=True))
                self.describe(self.names)
                self._build()

    def _install(
        self, names: Sequence[str] = (), *, warm: bool = False, compressed: bool = False
    ) -> float:
        return self.installer.build(names or self.names, warm=warm, compressed=compressed)

    def _build(self) -> float:
        return self.danlu.build(self.project)

    def _build_and_write(self) -> float:
        return self._build() + self.danlu.write(self.project, self.layout)

    def _forget(self, *, downloads: bool = True) -> None:
        """Forget all but the base, and what was resolved."""
        self.danlu.forget()
        for name in ("answered", "conda", "http", "resolved") if downloads else ("answered",):
            shutil.rmtree(self.danlu.home / "cache" / name, ignore_errors=True)
        (self.project / "danlu.lock").unlink(missing_ok=True)


def render_table(figures: Figures) -> str:
    """The medians, and danlu's share of the installer's time in the same turn."""
    lines = [
        "| | danlu | rattler and one layer | ratio | ratio of CPU time | danlu must |",
        "|---|---|---|---|---|---|",
    ]
    goals = {"first": "≤ 0.5 ×", "add-locked": "≤ 0.5 s"}
    for row, title in ROWS.items():
        cells = []
        for who in figures:
            seconds, cpu = (
                statistics.median(some) for some in zip(*figures[who][row], strict=True)
            )
            cells.append(f"{seconds:.2f} s (CPU {cpu:.2f} s)")
        turns = list(zip(figures["danlu"][row], figures["rattler"][row], strict=True))
        for part in (0, 1):
            ratio = statistics.median(mine[part] / theirs[part] for mine, theirs in turns)
            cells.append(f"{ratio:.2f}")
        lines.append(f"| {title} | {' | '.join(cells)} | {goals.get(row, '')} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conda", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, choices=range(1, len(SMALL) // 2 + 1))
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--install", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--channel", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.install:
        asyncio.run(install(options.channel, options.names, options.install, options.cache))
        # rattler's threads may crash the interpreter while it ends, after all is installed.
        os._exit(0)
    machine = description({})
    work = Path(tempfile.mkdtemp(prefix="danlu-bench.", dir="/var/tmp"))
    try:
        course = Course(work, options.runs)
        course.measure()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    machine["load after"] = "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
    machine["packages"] = str(len(course.names))
    page = options.output / f"{machine['date']}-conda.md"
    print(write(page, "conda environments", render_table(course.figures), machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
