"""Other container engines, each with its own store, to run what danlu built."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import remove_tree
from tests.programs import SYSTEM_PATH, lacking


@dataclass(frozen=True)
class Engine:
    """A command line: ``command`` with the options of its store, ``options`` those of a run."""

    command: list[str]
    options: list[str]
    insecure: list[str]

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def pull(self, name: str) -> None:
        """From a registry without TLS on this machine."""
        self("pull", "--quiet", *self.insecure, name)

    def load(self, archive: Path) -> None:
        """Images of a file."""
        self("load", "-i", str(archive))

    def run(self, name: str, *words: str) -> str:
        """What the image, or a command in it, prints; without a network."""
        return self("run", "--rm", "--network=none", *self.options, name, *words).strip()


def missing(engine: str) -> str:
    """Why ``podman`` or ``docker`` cannot be used here, or nothing."""
    if engine == "podman":
        return lacking("podman")
    return lacking("docker", "dockerd", "root")


@contextmanager
def short_place() -> Iterator[Path]:
    """A directory of a short name, as podman and Docker's sockets need it."""
    place = Path(tempfile.mkdtemp(prefix="dl"))
    try:
        yield place
    finally:
        # Docker's name spaces, its data and podman's storage may stay mounted when they end.
        for mount in ("exec/netns/default", "data", "root/overlay"):
            subprocess.run(["umount", "-R", str(place / mount)], capture_output=True, check=False)
        remove_tree(place)


@contextmanager
def podman(*, storage: str = "") -> Iterator[Engine]:
    """podman with a store of its own; ``storage`` names its driver."""
    with short_place() as place:
        command = ["podman", "--root", str(place / "root"), "--runroot", str(place / "run")]
        command += ["--storage-driver", storage] if storage else []
        # It asks for its own limits, which not every machine's root may set.
        limits = ["--ulimit=nofile=1024:4096", "--ulimit=nproc=1024:4096"]
        engine = Engine(command, limits, ["--tls-verify=false"])
        try:
            yield engine
        finally:
            engine("rmi", "--all", "--force")


@contextmanager
def docker_daemon(*, storage: str = "") -> Iterator[Engine]:
    """docker with a daemon of its own, which touches neither bridges nor iptables."""
    with short_place() as place:
        socket = f"unix://{place}/docker.sock"
        options = ["--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "-H", socket]
        options += ["--pidfile", f"{place}/pid", "--bridge", "none", "--iptables=false"]
        options += ["--ip6tables=false", *(["--storage-driver", storage] if storage else [])]
        program = shutil.which("dockerd", path=SYSTEM_PATH) or "dockerd"
        log = place / "log"
        with log.open("w") as file:
            daemon = subprocess.Popen([program, *options], stdout=file, stderr=file)
        try:
            _wait(["docker", "-H", socket, "info"], daemon, log)
            yield Engine(["docker", "-H", socket], [], [])
        finally:
            daemon.terminate()
            daemon.wait(30)


def _wait(ready: list[str], daemon: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while subprocess.run(ready, capture_output=True, check=False).returncode:
        assert daemon.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


ENGINES: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
    "docker": docker_daemon,
    "podman": podman,
}
