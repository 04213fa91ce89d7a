"""BuildKit: the one that ``BUILDKIT_HOST`` names, else a ``buildkitd`` started here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import configuration, output, which
from benchmarks.peers.peer import PeerMissingError, PeerSetting, run_timed_command, wait_for
from benchmarks.workload import BuildWorkload, dockerfile, requirements


class BuildKit:
    """``buildctl build`` of a Dockerfile; ``mounts`` keeps downloads in cache mounts."""

    locks = False

    def __init__(self, setting: PeerSetting, *, installer: str, mounts: bool) -> None:
        self.setting = setting
        self.installer = installer
        self.mounts = mounts
        self.title = f"BuildKit + {installer}" + (" + cache mounts" if mounts else "")
        self.directory = setting.directory / f"buildkit-{installer}-{mounts}"
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client = which("buildctl")
        daemon = which("buildkitd")
        self.address = os.environ.get("BUILDKIT_HOST", "")
        if not client or not (self.address or daemon):
            raise PeerMissingError("no buildctl, or neither BUILDKIT_HOST nor a buildkitd")
        self.client = client
        self.directory.mkdir(parents=True)
        if self.address or not daemon:
            return
        self.address = f"unix://{self.directory}/buildkitd.sock"
        command = [daemon, "--addr", self.address, "--root", f"{self.directory}/root"]
        command += ["--oci-worker-net=host", "--containerd-worker=false"]
        with self.setting.log.open("ab") as log:
            self.daemon = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for([client, "--addr", self.address, "debug", "workers"], self.daemon)

    def stop(self) -> None:
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait(60)
        shutil.rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        return " ".join(output(self.client, "--version").split()[2:3]) or "unknown"

    def describe(self, project: Path, work: BuildWorkload) -> None:
        settings = configuration().uv if self.installer == "uv" else {}
        work = BuildWorkload(work.packages, work.variable, settings)
        text = dockerfile(work, base="base", installer=self.installer, mounts=self.mounts)
        (project / "Dockerfile").write_text(text)
        (project / "requirements.txt").write_text(requirements(work))

    def lock(self, project: Path) -> None:
        """Do nothing: a Dockerfile has no lock."""

    def forget(self) -> None:
        """Do nothing: fresh builds use ``--no-cache``."""

    def build(self, project: Path, *, fresh: bool = False) -> float:
        return self._run_build(project, *(["--no-cache"] if fresh else []))

    def _run_build(self, project: Path, *options: str) -> float:
        layout, digest = self.setting.base.layout
        command = [self.client, "--addr", self.address, "build", "--progress=plain"]
        command += [
            "--frontend",
            "dockerfile.v0",
            "--local",
            "context=.",
            "--local",
            "dockerfile=.",
        ]
        command += ["--oci-layout", f"base={layout}"]
        command += ["--opt", f"context:base=oci-layout://base@{digest}", *options]
        return run_timed_command(command, log=self.setting.log, cwd=project)

    def write(self, project: Path, destination: Path) -> float:
        kind = "type=oci,tar=false,compression=zstd,force-compression=false"
        return self._run_build(project, "--output", f"{kind},dest={destination}")

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        return None
