"""Other sides for tests: the real scripts in real shells, with faults on demand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from danlu.errors import OutsideError
from danlu.project_sync.project_copy import ProjectCopy
from danlu.project_sync.types import CopyPlace

#: What an image with BusyBox has.
_BUSYBOX_PROGRAMS = (
    *("cat", "chmod", "find", "mkdir", "mv", "readlink", "rm", "rmdir"),
    *("sh", "sha256sum", "stat", "tar"),
)


class LocalShell:
    """Runs scripts on this machine, with another home directory.

    ``cut`` returns how much a script can read before the connection is lost, or None; ``answer``
    may change what it prints. After ``programs_left`` programs, the script is killed.
    """

    name = "box"

    def __init__(self, home: Path, *, programs: Path | None = None) -> None:
        self.home = home
        self.path = str(programs) if programs else os.environ["PATH"]
        self.programs_left: int | None = None
        self.scripts: list[str] = []
        self.cut: Callable[[bytes], int | None] = lambda data: None
        self.answer: Callable[[bytes], bytes] = lambda data: data

    def pipe_script(
        self, script: str, *args: str, source: BinaryIO, target: BinaryIO, limit: int
    ) -> None:
        """See :class:`~danlu.project_sync.types.ScriptRunner`."""
        self.scripts.append(script)
        data = source.read()
        length = self.cut(data)
        path = self.path if self.programs_left is None else f"{self._install_killers()}:{self.path}"
        done = subprocess.run(
            ["sh", "-c", script, "danlu", *args],
            input=data[:length],
            capture_output=True,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": path},
            check=False,
        )
        if length is not None:
            raise OutsideError("the connection was lost")
        if done.returncode:
            raise OutsideError(f"failed: {done.stderr.decode(errors='replace')}")
        output = self.answer(done.stdout)
        assert len(output) <= limit
        target.write(output)

    def _install_killers(self) -> Path:
        """Return a directory with programs that kill the script when the count is down."""
        directory = self.home / "killers"
        directory.mkdir(exist_ok=True)
        count = directory / "count"
        count.write_text(f"{self.programs_left}\n")
        for name in ("chmod", "mkdir", "mv", "rm", "tar"):
            program = shutil.which(name, path=self.path)
            (directory / name).write_text(
                "#!/bin/sh\n"
                f"read -r count <{count}; echo $((count - 1)) >{count}\n"
                '[ "$count" -gt 0 ] || kill -9 $PPID\n'
                f'exec {program} "$@"\n'
            )
            (directory / name).chmod(0o755)
        return directory


#: Whose programs the other side has. Tests with BusyBox run where it is installed.
SHELLS = (
    "gnu",
    pytest.param("busybox", marks=[pytest.mark.real, pytest.mark.needs("busybox")]),
)


def install_busybox(directory: Path) -> Path:
    """Fill a directory with BusyBox's programs and return it."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    directory.mkdir()
    for name in _BUSYBOX_PROGRAMS:
        (directory / name).symlink_to(busybox)
    return directory


class TwoSides:
    """A project in ``here``, and its copy in ``there``, below another home directory."""

    def __init__(self, directory: Path, *, programs: Path | None = None) -> None:
        self.here = directory / "here/project"
        self.here.mkdir(parents=True)
        self.home = directory / "home"
        self.home.mkdir()
        self.there = self.home / "projects/key/project"
        self.shell = LocalShell(self.home, programs=programs)
        self.records = directory / "state/records.json"

    def copy(self) -> ProjectCopy:
        """The copy, as a command that has just started sees it."""
        place = CopyPlace(
            "projects/key/project", "projects/key.stage", volume_file="projects/key.volume"
        )
        return ProjectCopy(self.shell, self.here, self.records, place)
