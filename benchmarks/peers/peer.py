"""What a builder must be able to do to stand in the table."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.base import Base
from benchmarks.machine import SYSTEM_PATH
from benchmarks.workload import Workload


class Missing(Exception):
    """This machine lacks the builder; the text says what."""


@dataclass(frozen=True)
class Setting:
    """Where a builder may work, the base it starts from, and where its output goes."""

    directory: Path
    base: Base
    log: Path


class Peer(Protocol):
    """A builder. ``project`` is a directory that :meth:`describe` filled."""

    title: str
    locks: bool
    """Whether packages can be resolved beforehand, apart from building."""

    def start(self) -> None:
        """Make ready, untimed: daemon, base image. Raises :class:`Missing`."""

    def stop(self) -> None:
        """End what was started."""

    def version(self) -> str:
        """Of the builder."""

    def describe(self, project: Path, work: Workload) -> None:
        """Write the files that ask for ``work``."""

    def lock(self, project: Path) -> None:
        """Resolve, without building."""

    def forget(self) -> None:
        """Forget all that was built but the base; downloads stay."""

    def build(self, project: Path, *, fresh: bool = False) -> float:
        """Seconds to build; ``fresh`` uses no earlier result (downloads may be reused)."""

    def write(self, project: Path, destination: Path) -> float:
        """Seconds to write the image, already built, to the OCI layout ``destination``."""

    def inside(
        self, project: Path, command: Sequence[str], *, host_network: bool = False
    ) -> list[str] | None:
        """The command line that runs ``command`` in a fresh container, where there is one."""


def timed(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> float:
    """Seconds that ``command`` takes as a whole process; its output goes to ``log``."""
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
    """Until ``ready`` succeeds. Raises :class:`Missing` where the daemon ends or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise Missing(f"{process.args!r} did not get ready")
