"""Docker's classic builder, with a daemon and a data root of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import output, which
from benchmarks.peers.peer import Missing, Setting, timed, wait_for
from benchmarks.workload import Workload, dockerfile, requirements


class Docker:
    """``docker build`` without BuildKit: the builder of Debian's docker.io."""

    title = "Docker, classic builder"
    locks = False

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.directory = setting.directory / "docker"
        self.socket = f"unix://{self.directory}/docker.sock"
        self.network: list[str] = []
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        dockerd, client = which("dockerd"), which("docker")
        if not (dockerd and client):
            raise Missing("no dockerd and docker here")
        beside = Path(dockerd).with_name("docker"), Path("/usr/bin/docker")
        self.client = str(next((path for path in beside if path.exists()), client))
        self.directory.mkdir(parents=True)
        try:
            self._start_daemon(dockerd)
        except (
            Missing
        ):  # a machine without iptables: no bridge, so everything on the host's network
            self.network = ["--network=host"]
            self._start_daemon(dockerd, "--bridge=none", "--iptables=false")
        change = [
            "--change",
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        self._docker("import", *change, str(self.setting.base.archive), "base")

    def _start_daemon(self, dockerd: str, *options: str) -> None:
        command = [dockerd, "--host", self.socket, "--data-root", f"{self.directory}/data"]
        command += ["--exec-root", f"{self.directory}/exec", "--pidfile", f"{self.directory}/pid"]
        with self.setting.log.open("ab") as log:
            self.daemon = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        wait_for([self.client, "-H", self.socket, "version"], self.daemon)

    def stop(self) -> None:
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait(60)
        output("umount", f"{self.directory}/exec/netns/default")
        shutil.rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        return output(self.client, "-H", self.socket, "version", "--format", "{{.Server.Version}}")

    def _docker(self, *arguments: str | Path, cwd: Path | None = None) -> float:
        command = [self.client, "-H", self.socket, *arguments]
        environment = {"DOCKER_BUILDKIT": "0"}
        return timed(command, log=self.setting.log, cwd=cwd, environment=environment)

    def describe(self, project: Path, work: Workload) -> None:
        text = dockerfile(work, base="base", installer="pip", mounts=False)
        (project / "Dockerfile").write_text(text)
        (project / "requirements.txt").write_text(requirements(work))

    def lock(self, project: Path) -> None:
        """Pip has no lock."""

    def forget(self) -> None:
        self._docker("image", "prune", "--force")

    def build(self, project: Path, *, fresh: bool = False) -> float:
        cache = ["--no-cache"] if fresh else []
        return self._docker("build", "--network=host", *cache, "-t", project.name, ".", cwd=project)

    def write(self, project: Path, destination: Path) -> float:
        shutil.rmtree(destination, ignore_errors=True)
        archive = destination.with_suffix(".tar")
        seconds = self._docker("save", "-o", archive, project.name)
        destination.mkdir()
        # The archive of `docker save` is no layout: made into one, untimed, to look at its layers.
        copy = ["skopeo", "copy", "-q", f"docker-archive:{archive}", f"oci:{destination}"]
        timed(copy, log=self.setting.log)
        archive.unlink()
        return seconds

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        network = ["--network=host"] if host_network else self.network
        return [self.client, "-H", self.socket, "run", "--rm", *network, project.name, *command]
