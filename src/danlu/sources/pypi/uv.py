"""Run uv: find the program, and the options and environment that all calls share."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from danlu.errors import MachineError, TemporaryError
from danlu.sandbox.machine_settings import WHEN_LOCKED, Decision
from danlu.sandbox.pip_indexes import render_uv_toml
from danlu.sources.pypi.indexes import IndexSettings, select_uv_settings, uv_environment
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv_errors import (
    denies_access,
    find_missing_extras,
    names_unknown_package,
)
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


#: How long uv may do nothing: longer than it waits for another uv's lock.
_STUCK_SECONDS = 900.0


class UvCommand(msgspec.Struct, frozen=True):
    """A command of uv: its arguments, environment and working directory.

    ``settings`` is the text of the only configuration file that it reads.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    settings: str = ""

    async def run(self, on_message: Callable[[str], None] | None = None) -> tuple[int, str, str]:
        """Run the command and return exit code, stdout and stderr.

        ``on_message`` is called with each part of stderr when it comes.
        """
        from danlu.util.process import run  # loads anyio, which `start` does not need

        with self._open_settings() as (environment, descriptors):
            try:
                done = await run(
                    self.args,
                    env=environment,
                    cwd=self.directory,
                    umask=_UMASK,
                    pass_fds=descriptors,
                    is_stuck=lambda idle: idle > _STUCK_SECONDS,
                    on_stderr=on_message,
                )
            except TimeoutError as error:
                raise TemporaryError(
                    f"uv did nothing for {_STUCK_SECONDS / 60:.0f} minutes",
                    hint="check the network and the disk, and try again",
                ) from error
        return done.code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def start(self, messages: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the command without waiting; its stderr goes to the file ``messages``."""
        with self._open_settings() as (environment, descriptors):
            return subprocess.Popen(
                with_parent_death_signal(self.args),
                env=environment,
                cwd=self.directory,
                umask=_UMASK,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                pass_fds=descriptors,
            )

    @contextmanager
    def _open_settings(self) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """Yield the environment, and the file descriptors to pass, for the configuration file.

        The file is in memory only, because addresses in it may contain passwords.
        """
        # Messages are read line by line, and wrapped when they are shown.
        environment = {**self.environment, "UV_NO_CONFIG": "1", "UV_NO_WRAP": "1"}
        environment.pop("UV_CONFIG_FILE", None)
        if not self.settings:
            yield environment, ()
            return
        with open(os.memfd_create("uv.toml"), "wb") as file:
            file.write(self.settings.encode())
            file.flush()
            descriptor = file.fileno()
            yield (
                {**environment, "UV_CONFIG_FILE": f"/proc/self/fd/{descriptor}"},
                (descriptor,),
            )


def _ignore_extra(package: str, extra: str) -> None:
    """Drop a warning: most commands of uv resolve nothing."""


#: Called with the name of a package, how many bytes of its file have arrived, and its size.
DownloadReport = Callable[[str, int, int], None]


def _ignore_download(package: str, current: int, total: int) -> None:
    """Drop a report: most commands of uv download nothing."""


class Uv(msgspec.Struct, frozen=True):
    """uv with a private cache, configured for a project.

    ``cache`` must be on the store's file system, because installed files are hard links into it.
    ``report_extra`` takes each package and extra of a resolution that the package does not have.
    ``decisions`` are those of the machine's settings that apply.
    """

    cache: Path
    project: Path
    indexes: IndexSettings = msgspec.field(default_factory=IndexSettings)
    offline: bool = False
    report_extra: Callable[[str, str], None] = _ignore_extra
    report_download: DownloadReport = _ignore_download
    decisions: frozenset[Decision] = WHEN_LOCKED

    async def run(
        self, command: Sequence[str], options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str, str]:
        """Run ``uv <command> <options>`` and return exit code, stdout and stderr."""
        return await self.prepare(command, options, offline=offline).run()

    async def compile_requirements(
        self, options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str]:
        """Run ``uv pip compile <options>`` and return exit code and stderr."""
        # Not quiet: that drops warnings as well.
        command = self.prepare(("pip", "compile"), options, offline=offline, quiet=False)
        code, _, messages = await command.run()
        if code:
            return code, await self.add_denied_access(messages)
        for package, extra in find_missing_extras(messages):
            self.report_extra(package, extra)
        return code, messages

    async def add_denied_access(self, messages: str) -> str:
        """Return uv's ``messages``, with its hints about indexes that deny access.

        They are about a package that was not found.
        """
        if not names_unknown_package(messages) or self.offline or denies_access(messages):
            return messages
        return "\n".join(filter(None, (messages, await self.find_denied_access())))

    async def find_denied_access(self) -> str:
        """Return uv's hints about an index that denies access; empty if none does.

        If uv searches all indexes for the best version, it passes over such an index. So it is
        asked, with the strategy that has the hints, for a package that none of them has.
        """
        target = str(self.cache / "no-such-directory")
        options = ["--dry-run", "--no-deps", "--target", target, "danlu-no-such-package"]
        command = self.prepare(("pip", "install"), options)
        environment = {**command.environment, "UV_INDEX_STRATEGY": "first-index"}
        code, _, messages = await replace(command, environment=environment).run()
        return "\n".join(line for line in messages.splitlines() if code and denies_access(line))

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
        untrusted code on this machine; no setting that uv gets overrides ``--no-build``.
        """
        self.cache.mkdir(parents=True, exist_ok=True)
        set_topdir_flag(self.cache)
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
        prepared = self._prepare_command((*command, *common, *options))
        # UV_NO_INDEX is ours: this is the only index option for which uv has no variable.
        if not prepared.environment.get("UV_NO_INDEX"):
            return prepared
        return replace(prepared, args=(*prepared.args, "--no-index"))

    def _prepare_command(self, words: Iterable[str]) -> UvCommand:
        environment = uv_environment(self.indexes, self.project, decisions=self.decisions)
        settings = select_uv_settings(environment, self.project, self.decisions)
        return UvCommand(
            (str(find_uv()), *words), environment, self.project, render_uv_toml(settings)
        )

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
        words = ("cache", "clean", "--quiet", "--cache-dir", str(self.cache), *wanted)
        prepared = self._prepare_command(words)
        environment = {**prepared.environment, **_SHORT_LOCK_TIMEOUT}
        await replace(prepared, environment=environment).run()

    @property
    def _fetched_directory(self) -> Path:
        return self.cache / "fetched"
