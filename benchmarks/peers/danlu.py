"""danlu itself, by its command line only, with a separate home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import output
from benchmarks.peers.peer import PeerMissingError, PeerSetting, run_timed_command
from benchmarks.workload import BuildWorkload, build_envd

BASE = 'def build():\n    base(os="debian12")\n'


class DanluPeer:
    """The embedded builder."""

    title = "danlu"
    locks = True

    def __init__(self, setting: PeerSetting) -> None:
        self.setting = setting
        self.directory = setting.directory / "danlu"
        self.home = self.directory / "home"
        self.program = Path(sys.executable).with_name("danlu")
        self.environment = {"DANLU_HOME": str(self.home), "NO_COLOR": "1"}

    def start(self) -> None:
        if not self.program.exists():
            raise PeerMissingError("no danlu next to this Python: make setup")
        # `inside` returns only a command line, so the home is set in this process's environment.
        os.environ.update(self.environment)
        # Users' machines cache byte code.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        base = self.directory / "base"
        base.mkdir(parents=True)
        (base / "build.envd").write_text(BASE)
        self.build(base)
        subprocess.run(["cp", "-a", self.home / "store", self.directory / "store"], check=True)

    def stop(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        return output(str(self.program), "--version").split()[-1]

    def _run_danlu(self, project: Path, *arguments: str | Path) -> float:
        return run_timed_command([self.program, *arguments], log=self.setting.log, cwd=project)

    def describe(self, project: Path, work: BuildWorkload) -> None:
        (project / "build.envd").write_text(build_envd(work))

    def lock(self, project: Path) -> None:
        self._run_danlu(project, "lock")

    def forget(self) -> None:
        """Restore the store with only the base; keep the download caches."""
        self._wait_for_upkeep()
        shutil.rmtree(self.home / "store")
        subprocess.run(["cp", "-a", self.directory / "store", self.home / "store"], check=True)

    def build(self, project: Path, *, fresh: bool = False) -> float:
        return self._run_danlu(project, "build", "--progress", "plain")

    def write(self, project: Path, destination: Path) -> float:
        return self._run_danlu(project, "build", "-o", f"type=dir,dest={destination}")

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        self._wait_for_upkeep()
        return [str(self.program), "run", "--", *command]

    def _wait_for_upkeep(self) -> None:
        """Wait until the background process of a build has compiled the bytecode and ended."""
        time.sleep(1)
        subprocess.run(["flock", self.home / "upkeep.lock", "true"], check=True)
