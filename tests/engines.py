"""Other container engines, each with its own store, that run danlu's images."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import pytest
from _pytest.mark import ParameterSet

from danlu.engine.registry import find_engine, list_engine_names
from tests.conftest import remove_tree
from tests.programs import SYSTEM_PATH, lacking


@dataclass(frozen=True)
class Engine:
    """A command line: ``command`` with the options of its store, ``options`` those of a run."""

    command: list[str]
    options: list[str]
    insecure: list[str]

    def __call__(self, *words: str) -> str:
        result = subprocess.run(
            [*self.command, *words], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def pull(self, name: str) -> None:
        """From a registry without TLS on this machine."""
        self("pull", "--quiet", *self.insecure, name)

    def load(self, archive: Path) -> None:
        """Images of a file."""
        self("load", "-i", str(archive))

    def run(self, name: str, *words: str) -> str:
        """Run a command in the image without a network, and return its output."""
        return self("run", "--rm", "--network=none", *self.options, name, *words).strip()


def missing(engine: str) -> str:
    """Why ``podman`` or ``docker`` cannot be used here, or nothing."""
    if engine == "podman":
        return lacking("podman")
    return lacking("docker", "dockerd", "root")


@contextmanager
def make_short_directory() -> Iterator[Path]:
    """A directory of a short name, as podman and Docker's sockets need it."""
    directory = Path(tempfile.mkdtemp(prefix="dl"))
    try:
        yield directory
    finally:
        # Docker's name spaces, its data and podman's storage may stay mounted when they end.
        for mount in ("exec/netns/default", "data", "root/overlay"):
            subprocess.run(
                ["umount", "-R", str(directory / mount)], capture_output=True, check=False
            )
        remove_tree(directory)


@contextmanager
def podman(*, storage: str = "") -> Iterator[Engine]:
    """Return podman with a separate store; ``storage`` is its driver."""
    with make_short_directory() as directory:
        command = ["podman", "--root", str(directory / "root"), "--runroot", str(directory / "run")]
        command += ["--storage-driver", storage] if storage else []
        # It asks for its own limits, which not every machine's root may set.
        limits = ["--ulimit=nofile=1024:4096", "--ulimit=nproc=1024:4096"]
        engine = Engine(command, limits, ["--tls-verify=false"])
        try:
            yield engine
        finally:
            engine("rmi", "--all", "--force")


class DockerDaemon:
    """A daemon in a directory of a short name, which changes neither bridges nor iptables."""

    def __init__(self, directory: Path, *, storage: str = "") -> None:
        self.socket = directory / "docker.sock"
        self.address = f"unix://{self.socket}"
        self._log = directory / "log"
        self._containerd_pid = directory / "exec/containerd/containerd.pid"
        program = shutil.which("dockerd", path=SYSTEM_PATH) or "dockerd"
        self._command = [program, "--data-root", f"{directory}/data", "-H", self.address]
        self._command += ["--exec-root", f"{directory}/exec", "--pidfile", f"{directory}/pid"]
        self._command += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
        self._command += ["--storage-driver", storage] if storage else []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("a") as file:
            self._process = subprocess.Popen(self._command, stdout=file, stderr=file)
        _wait_until_ready(["docker", "-H", self.address, "info"], self._process, self._log)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self, signal: int = SIGTERM) -> None:
        """Stop it; do nothing if it does not run.

        By default its containers are stopped; after SIGKILL they run until it is started again.
        """
        if self._process is not None:
            self._process.send_signal(signal)
            self._process.wait(60)
            self._process = None
            # containerd is killed with it. Until it is reaped, the next daemon would take it for
            # alive and wait for it in vain.
            self._containerd_pid.unlink(missing_ok=True)


@contextmanager
def docker_daemon(*, storage: str = "") -> Iterator[Engine]:
    """Start docker with a separate daemon."""
    with make_short_directory() as directory:
        daemon = DockerDaemon(directory, storage=storage)
        engine = Engine(["docker", "-H", daemon.address], [], [])
        try:
            daemon.start()
            yield engine
        finally:
            if daemon.runs:
                # Their bridges would stay on this machine.
                engine("network", "prune", "--force")
            daemon.stop()


def _wait_until_ready(ready: list[str], daemon: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while subprocess.run(ready, capture_output=True, check=False).returncode:
        assert daemon.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


_PODMAN_CONFIG = """
[containers]
# It asks for its own limits, which not every machine's root may set.
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
[engine]
# crun 1.8 cannot use a hybrid hierarchy of control groups.
runtime = "runc"
"""
_PODMAN_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{place}/root"
rootless_storage_path = "{place}/root"
runroot = "{place}/run"
"""


@contextmanager
def engine_variables(name: str) -> Iterator[dict[str, str]]:
    """Yield variables with which the plain command line of an engine has a store for a test."""
    if name == "docker":
        with docker_daemon() as engine:
            yield {"DOCKER_HOST": engine.command[-1]}
        return
    if name != "podman":
        yield {}
        return
    with make_short_directory() as directory:
        (directory / "containers.conf").write_text(_PODMAN_CONFIG)
        (directory / "storage.conf").write_text(_PODMAN_STORAGE.format(place=directory))
        variables = {
            "CONTAINERS_CONF": str(directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
        }
        commands = [["rm", "--all", "--force"], ["rmi", "--all", "--force"]]
        if os.geteuid() != 0:
            # It also ends the process that keeps the namespaces.
            variables["XDG_RUNTIME_DIR"] = str(directory)
            commands.append(["system", "migrate"])
        yield variables
        environ = {**os.environ, **variables}
        for command in commands:
            subprocess.run(["podman", *command], env=environ, capture_output=True, check=False)


#: What engines need to be tested, apart from danlu's own.
_MARKS = {
    "docker": [pytest.mark.needs("docker", "dockerd", "root")],
    "podman": [pytest.mark.needs("podman"), pytest.mark.slow],
    "kubernetes": [pytest.mark.needs("root")],
}


def make_engine_param(name: str) -> ParameterSet:
    """Return an engine as a parameter of tests."""
    return pytest.param(name, marks=_MARKS.get(name, ()))


def list_engine_params(**features: object) -> list[ParameterSet]:
    """Return the engines that have these features, those of installed packages among them."""
    return [
        make_engine_param(name)
        for name in list_engine_names()
        if features.items() <= vars(find_engine(name).features).items()
    ]


ENGINES: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
    "docker": docker_daemon,
    "podman": podman,
}
