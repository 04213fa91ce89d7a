"""60 conda packages, compared with rattler's installer: ``python -m benchmarks.conda``.

The channel is created on this machine, because public ones change: Python of the distribution, and
packages from PyPI (numpy, pandas, scikit-learn, JupyterLab and dependencies) repackaged for conda.
All installers use it through a local server.

``rattler`` does what a Dockerfile's ``RUN`` with rattler, micromamba or pixi does: solve, fetch,
link into a prefix, and write that as one layer. Unlike a real ``RUN``, it has no base to unpack and
no container to start, and can link from its cache instead of copying. ``docker`` runs
``docker build`` with that ``RUN`` on a base image with rattler; it keeps no downloads. CPU time
covers all processes of a turn, and is comparable even on a busy machine; Docker's is spent in its
daemon and not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.base import BaseImage
from benchmarks.machine import description
from benchmarks.page import write
from benchmarks.peers import PeerSetting
from benchmarks.peers.danlu import DanluPeer
from benchmarks.peers.docker import DockerPeer
from benchmarks.peers.peer import PeerMissingError, run_timed_command
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
"""Small packages to add, a new one each time so that no installer has it cached."""

ROWS = {
    "first": "first build: solve, fetch and install",
    "first-warm": "the same, with what the installer keeps between builds: danlu archives, rattler"
    " unpacked packages",
    "other": "another project, same packages in another order",
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


def build_file(channel: str, names: Sequence[str]) -> str:
    """Return the build file for danlu."""
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        "def build():\n"
        '    base(os="debian12")\n'
        f'    install.conda_packages([{listed}], channel=["nodefaults", "{channel}"])\n'
    )


#: Solves and installs with rattler; only its cache is kept between runs.
INSTALL = """
import asyncio, os, pathlib, sys
import rattler

async def install(channel, prefix, cache, *names):
    subdirs = [rattler.Subdir("linux-64"), rattler.Subdir("noarch")]
    records = await rattler.solve(
        [rattler.Channel(channel)],
        [rattler.MatchSpec(name) for name in names],
        gateway=rattler.Gateway(cache_dir=pathlib.Path(cache, "repodata")),
        platforms=subdirs,
        virtual_packages=rattler.VirtualPackage.detect(),
    )
    packages = pathlib.Path(cache, "packages")
    await rattler.install(records, prefix, cache_dir=packages, show_progress=False)

asyncio.run(install(*sys.argv[1:]))
# rattler's threads may crash the interpreter during its shutdown.
os._exit(0)
"""

#: Serves a directory; prints the port. The standard library's server refuses many connections.
SERVE = """
import asyncio, sys
from aiohttp import web

async def serve(directory):
    app = web.Application()
    app.router.add_static("/", directory)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(serve(sys.argv[1]))
"""


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Serve ``directory``; yield its address."""
    command = [sys.executable, "-c", SERVE, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


#: Seconds and CPU seconds of every turn, by builder and row.
Figures = dict[str, dict[str, list[tuple[float, float]]]]


class RattlerInstaller:
    """Run rattler's installer in a separate process, and write the prefix as one layer."""

    def __init__(self, directory: Path, channel: str, log: Path) -> None:
        self.directory = directory
        self.channel = channel
        self.log = log
        directory.mkdir()

    def build(self, names: Sequence[str], *, warm: bool, compressed: bool) -> float:
        """Install ``names`` into an empty prefix, archive it, and return the seconds."""
        prefix, cache = self.directory / "opt/conda", self.directory / "cache"
        shutil.rmtree(prefix, ignore_errors=True)
        if not warm:
            shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-c", INSTALL, self.channel, str(prefix), str(cache)]
        spent = run_timed_command([*command, *names], log=self.log)
        layer = self.directory / "layer.tar"
        archive: list[str | Path] = ["tar", "--numeric-owner", "-C", self.directory]
        archive += ["-czf" if compressed else "-cf", layer, "opt"]
        return spent + run_timed_command(archive, log=self.log)


class DockerRun:
    """``docker build`` with rattler's installer in a ``RUN``, over an image that has it."""

    def __init__(self, setting: PeerSetting, channel: str) -> None:
        self.channel = channel
        self.project = setting.directory / "run"
        self.docker = DockerPeer(setting)
        self.docker.start()
        base = setting.directory / "rattler-base"
        base.mkdir()
        shutil.copytree(Path(str(find_spec("rattler").origin)).parent, base / "rattler")  # type: ignore[union-attr]
        (base / "install.py").write_text(INSTALL)
        (base / "Dockerfile").write_text(
            "FROM base\nRUN apt-get update && apt-get install -y --no-install-recommends python3\n"
            "COPY rattler /usr/lib/python3/dist-packages/rattler\nCOPY install.py /\n"
        )
        self.docker.build(base)
        self.project.mkdir()

    def build(self, names: Sequence[str]) -> float:
        """Build an image with ``names`` on the base and return the seconds."""
        words = " ".join(["python3", "/install.py", self.channel, "/opt/conda", "/cache", *names])
        text = f"FROM rattler-base\nRUN {words} && rm -r /cache\n"
        (self.project / "Dockerfile").write_text(text)
        return self.docker.build(self.project, fresh=True)


class CondaComparison:
    """Measures danlu and the other installers with the same packages, in turns."""

    def __init__(self, work: Path, runs: int) -> None:
        self.runs = runs
        self.figures: Figures = {"danlu": {}, "rattler": {}, "docker": {}}
        self.work = work
        self.log = work / "log"
        (work / "wheels").mkdir()
        self.names = make_channel(work / "channel", work / "wheels")

    def start(self, channel: str) -> None:
        """Start all installers."""
        work, log = self.work, self.log
        self.channel = channel
        setting = PeerSetting(work, BaseImage(work / "base"), log)
        self.danlu = DanluPeer(setting)
        self.danlu.start()
        self.docker: DockerRun | None = None
        try:
            self.docker = DockerRun(setting, channel)
        except PeerMissingError as error:
            print(f"docker: {error}", file=sys.stderr)
        self.installer = RattlerInstaller(work / "rattler", self.channel, log)
        self.project = work / "project"
        self.other = work / "other"
        self.project.mkdir()
        self.other.mkdir()
        self.layout = work / "layout"

    def record(self, who: str, row: str, measure: Callable[[], float]) -> None:
        """Record and print the seconds that ``measure`` returns, and its CPU time."""
        os.sync()
        before = os.times()
        seconds = measure()
        after = os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        print(f"{who}: {ROWS[row]}: {seconds:.3f}, CPU {cpu:.3f}", file=sys.stderr, flush=True)
        self.figures[who].setdefault(row, []).append((seconds, cpu))

    def stop(self) -> None:
        """Stop what was started."""
        if self.docker is not None:
            self.docker.docker.stop()

    def describe(self, names: Sequence[str], project: Path | None = None) -> None:
        """Write a project's build file."""
        (project or self.project).joinpath("build.envd").write_text(build_file(self.channel, names))

    def measure(self) -> None:
        """Measure every row in each run."""
        for _ in range(self.runs):
            self.describe(self.names)
            self.record("rattler", "first", self._run_installer)
            self._drop_caches()
            self.record("danlu", "first", self._time_build)
            self._record_docker("first", self.names)
            backwards = [self.names[0], *reversed(self.names[1:])]
            self.describe(backwards, self.other)
            (self.other / "danlu.lock").unlink(missing_ok=True)
            self.record("danlu", "other", lambda: self.danlu.build(self.other))
            self.record("rattler", "other", partial(self._run_installer, backwards, warm=True))
            self._record_docker("other", backwards)
            self.record("rattler", "first-warm", lambda: self._run_installer(warm=True))
            self._drop_caches(downloads=False)
            self.record("danlu", "first-warm", self._time_build)
            self.record("rattler", "written", lambda: self._run_installer(compressed=True))
            self._drop_caches()
            shutil.rmtree(self.layout, ignore_errors=True)
            self.record("danlu", "written", self._build_and_write)
        for turn in range(0, 2 * self.runs, 2):
            for row, name in (("add-locked", SMALL[turn]), ("add", SMALL[turn + 1])):
                names = [*self.names, name]
                self.describe(names)
                if row == "add-locked":
                    self.danlu.lock(self.project)
                self.record("danlu", row, self._time_build)
                # A changed `RUN` starts from an empty prefix; only its caches stay.
                self.record("rattler", row, partial(self._run_installer, names, warm=True))
                if turn < self.runs:
                    self._record_docker(row, names)
                self.describe(self.names)
                self._time_build()

    def _record_docker(self, row: str, names: Sequence[str]) -> None:
        if self.docker is not None:
            self.record("docker", row, partial(self.docker.build, names))

    def _run_installer(
        self, names: Sequence[str] = (), *, warm: bool = False, compressed: bool = False
    ) -> float:
        return self.installer.build(names or self.names, warm=warm, compressed=compressed)

    def _time_build(self) -> float:
        return self.danlu.build(self.project)

    def _build_and_write(self) -> float:
        return self._time_build() + self.danlu.write(self.project, self.layout)

    def _drop_caches(self, *, downloads: bool = True) -> None:
        """Remove everything but the base and, without ``downloads``, the downloads."""
        self.danlu.forget()
        for name in ("answered", "conda", "http", "resolved") if downloads else ("answered",):
            shutil.rmtree(self.danlu.home / "cache" / name, ignore_errors=True)
        (self.project / "danlu.lock").unlink(missing_ok=True)


def render_table(figures: Figures) -> str:
    """Render the medians, and the median ratios of danlu to the others in the same turn."""
    lines = [
        "| | danlu | rattler and one layer | `docker build` | ratio to rattler | of CPU time"
        " | ratio to Docker | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    goals = {"first": "≤ 1 ×", "first-warm": "≤ 1 ×", "add-locked": "≤ 0.5 s"}
    for row, title in ROWS.items():
        cells = []
        for who in figures:
            turns = figures[who].get(row, [])
            seconds, cpu = ([turn[part] for turn in turns] for part in (0, 1))
            text = f"{statistics.median(seconds):.2f} s" if turns else "–"
            shown = turns and who != "docker"
            cells.append(f"{text} (CPU {statistics.median(cpu):.2f} s)" if shown else text)
        for who, part in (("rattler", 0), ("rattler", 1), ("docker", 0)):
            pairs = list(zip(figures["danlu"][row], figures[who].get(row, []), strict=False))
            ratios = [mine[part] / theirs[part] for mine, theirs in pairs]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "–")
        lines.append(f"| {title} | {' | '.join(cells)} | {goals.get(row, '')} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conda", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, choices=range(1, len(SMALL) // 2 + 1))
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    machine = description({})
    work = Path(tempfile.mkdtemp(prefix="danlu-bench.", dir="/var/tmp"))
    try:
        course = CondaComparison(work, options.runs)
        with serve(work / "channel") as channel:
            try:
                course.start(channel)
                course.measure()
            finally:
                course.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    machine["load after"] = "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
    machine["packages"] = str(len(course.names))
    page = options.output / f"{machine['date']}-conda.md"
    print(write(page, "conda environments", render_table(course.figures), machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
