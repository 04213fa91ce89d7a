"""Buildah, with uv and cache mounts; podman runs the image."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import configuration, output, which
from benchmarks.peers.peer import PeerMissingError, PeerSetting, run_timed_command
from benchmarks.workload import BuildWorkload, dockerfile, requirements


class BuildahPeer:
    """``buildah build --layers``, daemonless like danlu."""

    title = "buildah + uv + cache mounts"
    locks = False

    def __init__(self, setting: PeerSetting) -> None:
        self.setting = setting
        self.directory = setting.directory / "buildah"
        self.storage = ["--root", f"{self.directory}/root", "--runroot", f"{self.directory}/run"]

    def start(self) -> None:
        if not which("buildah"):
            raise PeerMissingError("no buildah here")
        self.directory.mkdir(parents=True)
        layout, _ = self.setting.base.layout
        self._run_buildah("pull", f"oci:{layout}:base")
        image = output("buildah", *self.storage, "images", "--quiet").split()[0]
        self._run_buildah("tag", image, "localhost/base")

    def stop(self) -> None:
        # Leftover overlay mounts would keep the tree from being removed.
        output("buildah", *self.storage, "rm", "--all")
        output("umount", "-R", f"{self.directory}/root/overlay")
        shutil.rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        return output("buildah", "--version").split()[2]

    def _run_buildah(self, *arguments: str | Path, cwd: Path | None = None) -> float:
        environment = {"TMPDIR": str(self.directory)}
        command = ["buildah", *self.storage, *arguments]
        return run_timed_command(command, log=self.setting.log, cwd=cwd, environment=environment)

    def describe(self, project: Path, work: BuildWorkload) -> None:
        work = BuildWorkload(work.packages, work.variable, configuration().uv)
        text = dockerfile(work, base="localhost/base", installer="uv", mounts=True)
        # Buildah 1.28 knows cache mounts, but locks none of them by itself.
        (project / "Dockerfile").write_text(text.replace("sharing=locked,", ""))
        (project / "requirements.txt").write_text(requirements(work))

    def lock(self, project: Path) -> None:
        """Do nothing: a Dockerfile has no lock."""

    def forget(self) -> None:
        self._run_buildah("rmi", "--prune", "--force")

    def build(self, project: Path, *, fresh: bool = False) -> float:
        options = ["--layers", "--pull-never", "--network=host", "--isolation=oci"]
        options += ["--no-cache"] if fresh else []
        return self._run_buildah("build", *options, "-t", project.name, ".", cwd=project)

    def write(self, project: Path, destination: Path) -> float:
        target = f"oci:{destination}:latest"
        return self._run_buildah("push", "--compression-format=zstd", project.name, target)

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        if not which("podman"):
            return None
        # Podman's default limits exceed what some machines allow.
        limits = ["--ulimit=nofile=1024:4096", "--ulimit=nproc=1024:4096"]
        start = ["podman", *self.storage, "run", "--rm", "--network=host", *limits]
        return [*start, f"localhost/{project.name}", *command]
