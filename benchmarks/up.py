"""Time to enter an environment, compared with Docker: ``python -m benchmarks.up [--runs 9]``.

Every turn opens bash on a terminal and waits for its prompt, or runs ``true``: in a running
environment, in a stopped one, and with ``exec`` and ``run`` of Docker in containers of a base image
of the same Debian. OpenSSH's client connects to ``NAME.danlu``. Then the same with environments in
Docker and Podman, beside the engine's own ``exec`` and ``run`` of the same image; and the bytes
that an added package moves to the engine.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.base import BaseImage
from benchmarks.machine import description
from benchmarks.page import write
from benchmarks.peers import PeerSetting
from benchmarks.peers.danlu import BASE, DanluPeer
from benchmarks.peers.docker import DockerPeer
from tests.engines import engine_variables

HERE = Path(__file__).resolve().parent
_LIMIT = 60.0


@dataclass(frozen=True)
class Row:
    """One line of the table: what is timed, and the row that its ratio is to."""

    title: str
    reference: str = ""


OWN_ROWS = {
    "up": Row("danlu up, environment runs: to the shell's first output", "docker-run"),
    "up-stopped": Row("danlu up, environment stopped: to the shell's first output", "docker-run"),
    "docker-exec": Row("docker exec -it bash", "docker-run"),
    "docker-run": Row("docker run --rm -it bash", "docker-run"),
    "docker-run-host": Row("docker run --rm -it --network=host bash", "docker-run"),
    "exec": Row("danlu exec true", "docker-exec-true"),
    "docker-exec-true": Row("docker exec true", "docker-exec-true"),
    "ssh-first": Row("danlu up -d of a stopped environment, then ssh NAME.danlu true"),
    "ssh": Row("ssh NAME.danlu true"),
}


def engine_rows(engine: str) -> dict[str, Row]:
    """Return the rows of environments in Docker or Podman."""
    here = f"danlu up --on {engine}, environment"
    return {
        f"{engine}:up": Row(f"{here} runs: to the shell's first output", f"{engine}:exec-it"),
        f"{engine}:exec-it": Row(f"{engine} exec -it bash", f"{engine}:exec-it"),
        f"{engine}:up-stopped": Row(f"{here} stopped", f"{engine}:run"),
        f"{engine}:start": Row(f"{engine} start, then {engine} exec -it bash", f"{engine}:run"),
        f"{engine}:run": Row(f"{engine} run --rm -it bash", f"{engine}:run"),
        f"{engine}:exec": Row(f"danlu exec true, in {engine}", f"{engine}:exec-true"),
        f"{engine}:exec-true": Row(f"{engine} exec true", f"{engine}:exec-true"),
        f"{engine}:ssh-first": Row(
            f"danlu up -d --on {engine} of a stopped environment, then ssh NAME.danlu true"
        ),
        f"{engine}:ssh": Row(f"ssh NAME.danlu true, in {engine}"),
    }


def time_first_output(command: Sequence[str], directory: Path) -> float:
    """Return the seconds until the shell of ``command`` writes to its terminal; then end it."""
    began = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(directory)
        os.execvp(command[0], list(command))
    try:
        readable, _, _ = select.select([terminal], [], [], _LIMIT)
        seconds = time.monotonic() - began
        if not readable:
            raise SystemExit(f"benchmarks: {' '.join(command)} printed nothing")
        os.write(terminal, b"exit\r")
        output = read_terminal(terminal)
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise SystemExit(f"benchmarks: {' '.join(command)} failed:\n{output}")
    return seconds


def read_terminal(terminal: int) -> str:
    """Read a terminal until it is closed."""
    output = b""
    # Linux reports a closed terminal as an I/O error.
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            output += data
    return output.decode(errors="replace")


def time_command(command: Sequence[str | Path], directory: Path) -> float:
    """Return the seconds of a command that must succeed."""
    began = time.monotonic()
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return time.monotonic() - began


class Project:
    """A project whose environment is entered with danlu's command line."""

    def __init__(self, danlu: Path, directory: Path, configuration: Path, *, on: str = "") -> None:
        self.danlu = danlu
        self.directory = directory
        self.configuration = configuration
        self.up = [str(danlu), "up", *(["--on", on] if on else [])]
        directory.mkdir()
        self.describe(BASE)

    def describe(self, text: str) -> None:
        (self.directory / "build.envd").write_text(text)

    def run(self, *words: str) -> float:
        return time_command([self.danlu, *words], self.directory)

    def stop(self) -> None:
        self.run("stop")

    def enter(self) -> float:
        return time_first_output(self.up, self.directory)

    def start_and_enter(self) -> float:
        self.stop()
        return self.enter()

    def start_and_connect(self) -> float:
        self.stop()
        return time_command([*self.up, "-d"], self.directory) + self.connect()

    def connect(self) -> float:
        host = f"{self.directory.name}.danlu"
        return time_command(["ssh", "-F", str(self.configuration), host, "true"], self.directory)


def take_turns(turns: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Return the seconds of every row; the first turn only fills caches."""
    figures: dict[str, list[float]] = {row: [] for row in turns}
    for turn in range(runs + 1):
        for row, take in turns.items():
            seconds = take()
            if turn:
                figures[row].append(seconds)
    return figures


def measure_own(project: Project, docker: DockerPeer, runs: int) -> dict[str, list[float]]:
    """Return the seconds of environments in danlu's own engine and of Docker."""
    client = [docker.client, "-H", docker.socket]
    subprocess.run([*project.up, "-d"], cwd=project.directory, check=True)
    identity = read_output([*client, "run", "-d", "--network=host", "base", "sleep", "infinity"])

    def run_docker(*options: str) -> float:
        command = [*client, "run", "--rm", "-it", *options, "base", "bash"]
        return time_first_output(command, project.directory)

    figures = take_turns(
        {
            "up": project.enter,
            "up-stopped": project.start_and_enter,
            "docker-exec": lambda: time_first_output(
                [*client, "exec", "-it", identity, "bash"], project.directory
            ),
            "docker-run": lambda: run_docker(*docker.network),
            "docker-run-host": lambda: run_docker("--network=host"),
            "exec": lambda: project.run("exec", "true"),
            "docker-exec-true": lambda: time_command(
                [*client, "exec", identity, "true"], project.directory
            ),
            "ssh-first": project.start_and_connect,
            "ssh": project.connect,
        },
        runs,
    )
    project.run("down")
    return figures


def measure_engine(project: Project, engine: str, runs: int) -> dict[str, list[float]]:
    """Return the seconds of environments in Docker or Podman, and of the engine alone."""
    here = project.directory
    subprocess.run([*project.up, "-d"], cwd=here, check=True)
    container = read_output([engine, "ps", "--quiet", "--latest"])
    image = read_output([engine, "inspect", "-f", "{{.Config.Image}}", container])
    words = ["--network=host", "--rm", "-it", "--entrypoint", "bash", image]
    run = [engine, "run", *words]
    sleep = ["--network=host", "--entrypoint", "sleep", image, "infinity"]
    stopped = read_output([engine, "create", *sleep])

    def start_and_enter() -> float:
        """Do what `danlu up` does in a stopped environment, with the engine's own commands."""
        seconds = time_command([engine, "start", stopped], here)
        seconds += time_first_output([engine, "exec", "-it", stopped, "bash"], here)
        time_command([engine, "kill", stopped], here)
        return seconds

    figures = take_turns(
        {
            f"{engine}:up": project.enter,
            f"{engine}:exec-it": lambda: time_first_output(
                [engine, "exec", "-it", container, "bash"], here
            ),
            f"{engine}:up-stopped": project.start_and_enter,
            f"{engine}:start": start_and_enter,
            f"{engine}:run": lambda: time_first_output(run, here),
            f"{engine}:exec": lambda: project.run("exec", "true"),
            f"{engine}:exec-true": lambda: time_command([engine, "exec", container, "true"], here),
            # The first connection after a start also starts the SSH server.
            f"{engine}:ssh-first": project.start_and_connect,
            f"{engine}:ssh": project.connect,
        },
        runs,
    )
    time_command([engine, "rm", stopped], here)
    project.run("down")
    return figures


def read_output(command: Sequence[str]) -> str:
    """Return what a command that must succeed prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure_bytes(project: Project, socket_path: Path) -> tuple[int, int]:
    """Return the bytes sent to Docker for an image, and then for it with one more package."""
    sent = []
    for text in (BASE, f'{BASE}    install.apt_packages(["less"])\n'):
        project.describe(text)
        project.run("build")
        with count_bytes(socket_path) as (address, counter):
            command = [*project.up, "-d", "--recreate"]
            variables = {**os.environ, "DOCKER_HOST": address}
            subprocess.run(command, cwd=project.directory, env=variables, check=True)
            # It is stopped through the address at which it was started.
            command = [str(project.danlu), "stop"]
            subprocess.run(command, cwd=project.directory, env=variables, check=True)
        sent.append(counter[0])
    project.run("down")
    return sent[0], sent[1]


@contextmanager
def count_bytes(target: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the address of a socket that forwards to ``target``, and the bytes sent through it."""
    sent = [0]
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/docker.sock"
        listener.bind(path)
        listener.listen()

        def copy(source: socket.socket, destination: socket.socket, *, counts: bool) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 18):
                    sent[0] += len(data) if counts else 0
                    destination.sendall(data)
                destination.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    daemon = socket.socket(socket.AF_UNIX)
                    daemon.connect(str(target))
                    for pair, counts in (((client, daemon), True), ((daemon, client), False)):
                        threading.Thread(
                            target=copy, args=pair, kwargs={"counts": counts}, daemon=True
                        ).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"unix://{path}", sent


def format_table(rows: Mapping[str, Row], figures: Mapping[str, list[float]]) -> str:
    """Return the medians and their ratios to the rows that they are compared with."""
    medians = {row: statistics.median(seconds) for row, seconds in figures.items()}
    lines = ["| row | seconds | ratio | to |", "|---|---|---|---|"]
    for name, seconds in medians.items():
        row = rows[name]
        ratio, to = "", ""
        if row.reference and row.reference != name:
            ratio, to = f"{seconds / medians[row.reference]:.2f}", rows[row.reference].title
        lines.append(f"| {row.title} | {seconds:.3f} | {ratio} | {to} |")
    return "\n".join(lines)


def measure(work: Path, runs: int) -> str:
    """Return the table of all rows."""
    setting = PeerSetting(work, BaseImage(work / "base"), work / "log")
    ours, docker = DanluPeer(setting), DockerPeer(setting)
    # OpenSSH reads the configuration of the account's home directory, whatever HOME is.
    configuration = work / "ssh_config"
    rows, figures = dict(OWN_ROWS), {}
    try:
        ours.start()
        docker.start()
        hosts = Path(os.environ["DANLU_HOME"], "config/ssh.d")
        configuration.write_text(f"Include {hosts}/*.conf\n")
        own = Project(ours.program, work / "entered", configuration)
        figures |= measure_own(own, docker, runs)
        os.environ["DOCKER_HOST"] = docker.socket
        for engine in ("docker", *(["podman"] if shutil.which("podman") else [])):
            rows |= engine_rows(engine)
            project = Project(ours.program, work / f"in-{engine}", configuration, on=engine)
            with engine_variables(engine) if engine == "podman" else nullcontext({}) as variables:
                os.environ.update(variables)
                figures |= measure_engine(project, engine, runs)
        moved = Project(ours.program, work / "moved", configuration, on="docker")
        first, second = measure_bytes(moved, Path(docker.socket.removeprefix("unix://")))
    finally:
        docker.stop()
        ours.stop()
    text = format_table(rows, figures)
    return (
        f"{text}\n\nBytes sent to Docker: {first:,} for the image of the base, {second:,} for the"
        " same with one more package."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.up", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="turns; the table has the medians")
    parser.add_argument("--page", action="store_true", help="write a page of results")
    options = parser.parse_args()
    if shutil.which("ssh") is None:
        raise SystemExit("benchmarks: OpenSSH's client is missing: scripts/setup.sh --tests")
    os.environ["DANLU_SSH_CONFIG"] = "off"
    with tempfile.TemporaryDirectory(prefix="danlu-bench.") as name:
        table = measure(Path(name), options.runs)
    print(table)
    if options.page:
        machine = description({})
        path = HERE / "results" / f"{machine['date']}-up.md"
        write(path, "Entering an environment", table, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
