"""Running uv: where it is, and what every call of ours says."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from danlu.errors import MachineError, ResolveError
from danlu.sandbox.installerconfig import uv_builds
from danlu.sources.pypi.indexes import Indexes, uv_environment
from danlu.sources.pypi.target import Target
from danlu.util.files import spread_below
from danlu.util.lifeline import dies_with_us

__all__ = ["Call", "Uv", "find_uv", "target_options"]

#: Modes of files in uv's cache become modes in images.
_UMASK = 0o022


@functools.cache
def find_uv() -> Path:
    """The uv program: the one of danlu's own dependency, else the one in PATH."""
    beside = Path(sys.executable).with_name("uv")
    if beside.is_file():
        return beside
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MachineError("uv is missing", hint="pip install uv")
    return Path(found)


def target_options(target: Target) -> list[str]:
    """The options that make uv choose for ``target`` and not for the Python that runs danlu."""
    return ["--python-version", target.python, "--python-platform", target.uv_platform]


class Call(msgspec.Struct, frozen=True):
    """One call of uv: its words, all its variables, and the directory it runs in."""

    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path

    async def run(self) -> tuple[int, str, str]:
        """Run it to its end: exit code, output, messages."""
        from danlu.util.process import run

        done = await run(self.args, env=self.environment, cwd=self.directory, umask=_UMASK)
        return done.code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def start(self, messages: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it without waiting; what it has to say goes to the file ``messages``."""
        return subprocess.Popen(
            dies_with_us(self.args),
            env=self.environment,
            cwd=self.directory,
            umask=_UMASK,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )


class Uv(msgspec.Struct, frozen=True):
    """uv with a private cache, set up for one project.

    ``cache`` must lie on the store's file system: what is installed are hard links into it.
    """

    cache: Path
    project: Path
    indexes: Indexes = msgspec.field(default_factory=Indexes)
    offline: bool = False

    async def run(
        self, command: Sequence[str], options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str, str]:
        """Run ``uv <command> <options>``: exit code, output, messages.

        Raises what :meth:`call` raises.
        """
        return await self.call(command, options, offline=offline).run()

    def call(
        self, command: Sequence[str], options: Iterable[str], *, offline: bool = False
    ) -> Call:
        """``uv <command> <options>`` in the project's directory, to be run or started.

        ``command`` is one of ``uv pip``'s, and builds nothing: a build runs a stranger's code.
        Raises :class:`ResolveError` where uv's own settings would have it build something all the
        same.
        """
        self._refuse_builds()
        self.cache.mkdir(parents=True, exist_ok=True)
        spread_below(self.cache)
        common = [
            "--quiet",
            "--no-build",
            "--cache-dir",
            str(self.cache),
            "--python",
            sys.executable,
        ]
        if self.offline or offline:
            common.append("--offline")
        environment = uv_environment(self.indexes, self.project)
        # Of all index options this one alone has no variable that uv reads.
        if environment.pop("UV_NO_INDEX", ""):
            common.append("--no-index")
        return Call((str(find_uv()), *command, *common, *options), environment, self.project)

    def has_fetched(self, digests: Iterable[str]) -> bool:
        """Whether all files of these sha256 digests came through this cache before."""
        return all((self._fetched / digest).exists() for digest in digests)

    def note_fetched(self, digests: Iterable[str]) -> None:
        """Remember that these came; whatever empties the cache takes the notes with it."""
        self._fetched.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            (self._fetched / digest).touch()

    @property
    def _fetched(self) -> Path:
        return self.cache / "fetched"

    def _refuse_builds(self) -> None:
        found = uv_builds(os.environ, Path(os.path.realpath(self.project)))
        if found is not None:
            path, setting = found
            raise ResolveError(
                f"uv's setting {setting} in {path} would have packages built on this machine",
                hint="take it out; --no-binary in a requirements file builds in the sandbox",
            )
