"""The operations of a builder in the table."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.base import BaseImage
from benchmarks.machine import SYSTEM_PATH
from benchmarks.workload import BuildWorkload


class PeerMissingError(Exception):
    """The builder is not installed on this machine."""


@dataclass(frozen=True)
class PeerSetting:
    """A builder's work directory, base image and log."""

    directory: Path
    base: BaseImage
    log: Path


class BuilderPeer(Protocol):
    """A builder. ``project`` is a directory that :meth:`describe` filled."""

    title: str
    locks: bool
    """Whether packages can be locked before they are built."""

    def start(self) -> None:
        """Start the daemon and load the base image; raises :class:`PeerMissingError`."""

    def stop(self) -> None:
        """Stop what was started."""

    def version(self) -> str:
        """Return the version of the builder."""

    def describe(self, project: Path, work: BuildWorkload) -> None:
        """Write the build files for ``work``."""

    def lock(self, project: Path) -> None:
        """Lock the packages without building."""

    def forget(self) -> None:
        """Remove everything that was built except the base; keep downloads."""

    def build(self, project: Path, *, fresh: bool = False) -> float:
        """Build and return the seconds; ``fresh`` reuses downloads but no earlier result."""

    def write(self, project: Path, destination: Path) -> float:
        """Write the built image to the OCI layout ``destination`` and return the seconds."""

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        """Return the command line that runs ``command`` in a fresh container, if supported."""


def run_timed_command(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> float:
    """Run ``command`` with its output in ``log`` and return the seconds of the whole process."""
    environ = {**os.environ, "PATH": SYSTEM_PATH, **(environment or {})}
    words = [str(word) for word in command]
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(words)}\n".encode())
        file.flush()
        begin = time.perf_counter()
        done = subprocess.run(
            words,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        )
        seconds = time.perf_counter() - begin
        file.write(f"[{seconds:.3f} s, exit {done.returncode}]\n".encode())
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}; see {log}")
    return seconds


def wait_for(
    ready: Sequence[str], process: subprocess.Popen[bytes], *, seconds: float = 60
) -> None:
    """Wait until ``ready`` succeeds.

    Raises:
        PeerMissingError: The daemon ended or takes too long.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise PeerMissingError(f"{process.args!r} did not get ready")
