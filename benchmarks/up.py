"""Time to enter an environment, compared with Docker: ``python -m benchmarks.up [--runs 9]``.

Every turn opens bash on a terminal and waits for its prompt: in a running environment, in a stopped
one, and with ``docker exec`` and ``docker run -it`` in containers of a base image of the same
Debian. OpenSSH's client connects to ``NAME.danlu``.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.base import BaseImage
from benchmarks.machine import description
from benchmarks.page import write
from benchmarks.peers import PeerSetting
from benchmarks.peers.danlu import BASE, DanluPeer
from benchmarks.peers.docker import DockerPeer

HERE = Path(__file__).resolve().parent
_LIMIT = 60.0

ROWS = {
    "up": "danlu up, environment runs: to the shell's first output",
    "up-stopped": "danlu up, environment stopped: to the shell's first output",
    "docker-exec": "docker exec -it bash",
    "docker-run": "docker run --rm -it bash",
    "docker-run-host": "docker run --rm -it --network=host bash",
    "ssh-first": "danlu up -d of a stopped environment, then ssh NAME.danlu true",
    "ssh": "ssh NAME.danlu true",
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


def measure(work: Path, runs: int) -> dict[str, list[float]]:
    """Return the seconds of every row; the first turn only fills caches."""
    setting = PeerSetting(work, BaseImage(work / "base"), work / "log")
    ours, docker = DanluPeer(setting), DockerPeer(setting)
    project = work / "entered"
    project.mkdir()
    (project / "build.envd").write_text(BASE)
    # OpenSSH reads the configuration of the account's home directory, whatever HOME is.
    configuration = work / "ssh_config"
    ours.start()
    docker.start()
    danlu = str(ours.program)
    try:
        configure = ["ssh", "-F", str(configuration)]
        subprocess.run([danlu, "up", "-d"], cwd=project, check=True)
        hosts = Path(os.environ["DANLU_HOME"], "config/ssh.d")
        configuration.write_text(f"Include {hosts}/*.conf\n")
        container = [docker.client, "-H", docker.socket, *("run", "-d", "--network=host", "base")]
        identity = subprocess.run(
            [*container, "sleep", "infinity"], check=True, capture_output=True, text=True
        ).stdout.strip()

        def stop() -> None:
            subprocess.run([danlu, "stop"], cwd=project, check=True, capture_output=True)

        def connect_first() -> float:
            stop()
            return time_command([danlu, "up", "-d"], project) + time_command(
                [*configure, "entered.danlu", "true"], project
            )

        def start_and_enter() -> float:
            stop()
            return time_first_output([danlu, "up"], project)

        def run_docker(*options: str) -> float:
            command = [docker.client, "-H", docker.socket, "run", "--rm", "-it", *options]
            return time_first_output([*command, "base", "bash"], project)

        turns: dict[str, Callable[[], float]] = {
            "up": lambda: time_first_output([danlu, "up"], project),
            "up-stopped": start_and_enter,
            "docker-exec": lambda: time_first_output(
                [docker.client, "-H", docker.socket, "exec", "-it", identity, "bash"], project
            ),
            "docker-run": lambda: run_docker(*docker.network),
            "docker-run-host": lambda: run_docker("--network=host"),
            "ssh-first": connect_first,
            "ssh": lambda: time_command([*configure, "entered.danlu", "true"], project),
        }
        figures: dict[str, list[float]] = {row: [] for row in turns}
        for turn in range(runs + 1):
            for row, take in turns.items():
                seconds = take()
                if turn:
                    figures[row].append(seconds)
        subprocess.run([danlu, "down"], cwd=project, check=True, capture_output=True)
        return figures
    finally:
        docker.stop()
        ours.stop()


def format_table(figures: dict[str, list[float]]) -> str:
    """Return the medians and their ratios to ``docker run``."""
    medians = {row: statistics.median(seconds) for row, seconds in figures.items()}
    lines = ["| row | seconds | ratio to docker run |", "|---|---|---|"]
    for row, seconds in medians.items():
        lines.append(f"| {ROWS[row]} | {seconds:.3f} | {seconds / medians['docker-run']:.2f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.up", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="turns; the table has the medians")
    parser.add_argument("--page", action="store_true", help="write a page of results")
    options = parser.parse_args()
    if shutil.which("ssh") is None:
        raise SystemExit("benchmarks: OpenSSH's client is missing: scripts/setup.sh --tests")
    os.environ["DANLU_SSH_CONFIG"] = "off"
    with tempfile.TemporaryDirectory(prefix="danlu-bench.") as name:
        table = format_table(measure(Path(name), options.runs))
    print(table)
    if options.page:
        machine = description({})
        path = HERE / "results" / f"{machine['date']}-up.md"
        write(path, "Entering an environment", table, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
