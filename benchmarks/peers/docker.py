"""Docker's classic builder, with a separate daemon and data root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import output, which
from benchmarks.peers.peer import PeerMissingError, PeerSetting, run_timed_command, wait_for
from benchmarks.workload import BuildWorkload, dockerfile, requirements


class DockerPeer:
    """``docker build`` without BuildKit: the builder of Debian's docker.io."""

    title = "Docker, classic builder"
    locks = False

    def __init__(self, setting: PeerSetting) -> None:
        self.setting = setting
        self.directory = setting.directory / "docker"
        self.socket = f"unix://{self.directory}/docker.sock"
        self.network: list[str] = []
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        dockerd, client = which("dockerd"), which("docker")
        if not (dockerd and client):
            raise PeerMissingError("no dockerd and docker here")
        # The client of the same version as the daemon, if both are installed together.
        clients = Path(dockerd).with_name("docker"), Path("/usr/bin/docker")
        self.client = str(next((path for path in clients if path.exists()), client))
        self.directory.mkdir(parents=True)
        try:
            self._start_daemon(dockerd)
        except PeerMissingError:
            # Without iptables there is no bridge, so containers use the host's network.
            self.network = ["--network=host"]
            self._start_daemon(dockerd, "--bridge=none", "--iptables=false")
        change = [
            "--change",
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        self._run_docker("import", *change, str(self.setting.base.archive), "base")

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

    def _run_docker(self, *arguments: str | Path, cwd: Path | None = None) -> float:
        command = [self.client, "-H", self.socket, *arguments]
        environment = {"DOCKER_BUILDKIT": "0"}
        return run_timed_command(command, log=self.setting.log, cwd=cwd, environment=environment)

    def describe(self, project: Path, work: BuildWorkload) -> None:
        text = dockerfile(work, base="base", installer="pip", mounts=False)
        (project / "Dockerfile").write_text(text)
        (project / "requirements.txt").write_text(requirements(work))

    def lock(self, project: Path) -> None:
        """Do nothing: a Dockerfile has no lock."""

    def forget(self) -> None:
        self._run_docker("image", "prune", "--force")

    def build(self, project: Path, *, fresh: bool = False) -> float:
        cache = ["--no-cache"] if fresh else []
        return self._run_docker(
            "build", "--network=host", *cache, "-t", project.name, ".", cwd=project
        )

    def write(self, project: Path, destination: Path) -> float:
        shutil.rmtree(destination, ignore_errors=True)
        archive = destination.with_suffix(".tar")
        seconds = self._run_docker("save", "-o", archive, project.name)
        destination.mkdir()
        # Convert the archive of `docker save` to an OCI layout, untimed, to inspect its layers.
        copy = ["skopeo", "copy", "-q", f"docker-archive:{archive}", f"oci:{destination}"]
        run_timed_command(copy, log=self.setting.log)
        archive.unlink()
        return seconds

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        network = ["--network=host"] if host_network else self.network
        return [self.client, "-H", self.socket, "run", "--rm", *network, project.name, *command]
