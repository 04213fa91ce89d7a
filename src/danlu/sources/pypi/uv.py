"""Run uv: find the program, and the options and environment that all calls share."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from danlu.errors import MachineError, ResolveError
from danlu.sandbox.pip_uv_config import find_uv_build_setting
from danlu.sources.pypi.indexes import IndexSettings, uv_environment, without_resolver_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv_errors import find_missing_extras
from danlu.util.files import set_topdir_flag
from danlu.util.pdeathsig import with_parent_death_signal

#: Fixed, because the modes of files in uv's cache become modes in images.
_UMASK = 0o022

#: Cleaning the cache waits at most 5 seconds: another build may be downloading for minutes.
_SHORT_LOCK_TIMEOUT = {"UV_LOCK_TIMEOUT": "5"}


@functools.cache
def find_uv() -> Path:
    """Return the uv program: the one installed with danlu, or else the one in PATH."""
    installed = Path(sys.executable).with_name("uv")
    if installed.is_file():
        return installed
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        program = shutil.which("uv")
    if program is None:
        raise MachineError("uv not found", hint="pip install uv")
    return Path(program)


def target_options(target: PlatformTarget) -> list[str]:
    """Return options that make uv resolve for ``target``, not for danlu's own Python."""
    return ["--python-version", target.python, "--python-platform", target.uv_platform]


class UvCommand(msgspec.Struct, frozen=True):
    """A command of uv: its arguments, environment and working directory."""

    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path

    async def run(self) -> tuple[int, str, str]:
        """Run the command and return exit code, stdout and stderr."""
        from danlu.util.process import run  # loads anyio, which `start` does not need

        done = await run(self.args, env=self.environment, cwd=self.directory, umask=_UMASK)
        return done.code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def start(self, messages: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the command without waiting; its stderr goes to the file ``messages``."""
        return subprocess.Popen(
            with_parent_death_signal(self.args),
            env=self.environment,
            cwd=self.directory,
            umask=_UMASK,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )


def _ignore_extra(package: str, extra: str) -> None:
    """Drop a warning: most commands of uv resolve nothing."""


class Uv(msgspec.Struct, frozen=True):
    """uv with a private cache, configured for a project.

    ``cache`` must be on the store's file system, because installed files are hard links into it.
    ``report_extra`` takes each package and extra of a resolution that the package does not have.
    """

    cache: Path
    project: Path
    indexes: IndexSettings = msgspec.field(default_factory=IndexSettings)
    offline: bool = False
    report_extra: Callable[[str, str], None] = _ignore_extra

    async def run(
        self, command: Sequence[str], options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str, str]:
        """Run ``uv <command> <options>`` and return exit code, stdout and stderr.

        Raises the same errors as :meth:`prepare`.
        """
        return await self.prepare(command, options, offline=offline).run()

    async def compile_requirements(
        self, options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str]:
        """Run ``uv pip compile <options>`` and return exit code and stderr.

        Raises the same errors as :meth:`prepare`.
        """
        # Not quiet: that drops warnings as well.
        command = self.prepare(("pip", "compile"), options, offline=offline, quiet=False)
        code, _, messages = await command.run()
        if code == 0:
            for package, extra in find_missing_extras(messages):
                self.report_extra(package, extra)
        return code, messages

    def prepare(
        self,
        command: Sequence[str],
        options: Iterable[str],
        *,
        offline: bool = False,
        quiet: bool = True,
    ) -> UvCommand:
        """Return the command ``uv <command> <options>`` in the project's directory, to be run or
        started.

        ``command`` is a subcommand of ``uv pip``. It never builds packages, because a build runs
        untrusted code. Raises :class:`ResolveError` if uv's own settings would make it build
        something nevertheless.
        """
        self._refuse_builds()
        self.cache.mkdir(parents=True, exist_ok=True)
        set_topdir_flag(self.cache)
        # A build would run untrusted code on this machine. `_refuse_builds` has already rejected
        # settings of uv that override --no-build.
        common = [
            *(("--quiet",) if quiet else ()),
            "--no-build",
            "--cache-dir",
            str(self.cache),
            "--python",
            sys.executable,
        ]
        if self.offline or offline:
            common.append("--offline")
        environment = uv_environment(self.indexes, self.project)
        # UV_NO_INDEX is ours: this is the only index option for which uv has no variable.
        if environment.pop("UV_NO_INDEX", ""):
            common.append("--no-index")
        return UvCommand((str(find_uv()), *command, *common, *options), environment, self.project)

    def prepare_install(
        self, options: Iterable[str], settings_file: Path, *, offline: bool = False
    ) -> UvCommand:
        """Return the command ``uv pip install <options>`` for files that are locked.

        ``settings_file`` is written if uv must not read the user's settings as they are. Raises
        the same errors as :meth:`prepare`.
        """
        command = self.prepare(("pip", "install"), options, offline=offline)
        environment = without_resolver_settings(command.environment, self.project, settings_file)
        return msgspec.structs.replace(command, environment=environment)

    def has_fetched(self, digests: Iterable[str]) -> bool:
        """Return whether all files with these sha256 digests were downloaded through this cache."""
        return all((self._fetched_directory / digest).exists() for digest in digests)

    def note_fetched(self, digests: Iterable[str]) -> None:
        """Remember that these files were downloaded, in the cache itself."""
        self._fetched_directory.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            (self._fetched_directory / digest).touch()

    async def clean_cache(self, names: Iterable[str]) -> None:
        """Remove these packages from the cache, unless another uv process keeps it locked."""
        wanted = tuple(names)
        if not wanted:
            return  # without names, uv would clean everything
        environment = {**uv_environment(self.indexes, self.project), **_SHORT_LOCK_TIMEOUT}
        words = ("cache", "clean", "--quiet", "--cache-dir", str(self.cache), *wanted)
        await UvCommand((str(find_uv()), *words), environment, self.project).run()

    @property
    def _fetched_directory(self) -> Path:
        return self.cache / "fetched"

    def _refuse_builds(self) -> None:
        setting_file = find_uv_build_setting(os.environ, Path(os.path.realpath(self.project)))
        if setting_file is not None:
            path, setting = setting_file
            raise ResolveError(
                f"uv's setting {setting} in {path} would build packages on this machine",
                hint="remove it; use --no-binary in a requirements file to build in the sandbox",
            )
