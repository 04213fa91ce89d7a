"""A private apt: the machine's own programs with package lists, caches and settings of danlu.

One directory per archive and architecture in ``Paths.cache/"apt"/"homes"``. Resolving neither reads
the machine's apt state nor writes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from danlu.errors import OutsideError, StoreError, TemporaryError, UsageError
from danlu.sources.apt.archive import AptArchive
from danlu.sources.apt.errors import update_error
from danlu.sources.apt.host_config import HostApt, release_fields
from danlu.sources.apt.sources_list import format_deb822
from danlu.util.disk_cache import read_cache, write_cache
from danlu.util.disk_full import disk_full_error, ran_out_of_space
from danlu.util.files import remove_tree, write_atomic
from danlu.util.locks import try_file_lock
from danlu.util.process import CompletedProcess, run

T = TypeVar("T")

#: Package lists are refreshed when they are older than this (seconds).
LIST_MAX_AGE = 15 * 60

#: Directories whose lists have not been refreshed for this long (seconds) are removed.
UNUSED_MAX_AGE = 30 * 24 * 3600

#: How long (seconds) apt may do nothing: longer than its own time limits and delays.
STUCK_SECONDS = 180.0
LOW_DISK_STUCK_SECONDS = 45.0

#: About the space that the package lists of a release and apt's caches of them need.
_LISTS_BYTES = 200 << 20

# The empty status file makes apt resolve as if nothing were installed. "Sandbox::User root" keeps
# apt from switching to the user _apt, who cannot read this directory. "Error-Mode any" makes an
# update fail if any list fails. danlu has its own locks, which allow parallel readers.
_CONFIGURATION = """\
Acquire::Retries "2";
{settings}
Dir "{home}/";
Dir::State "{home}/state";
Dir::State::lists "{home}/state/lists";
Dir::State::status "{home}/empty";
Dir::State::extended_states "{home}/state/extended_states";
Dir::Cache "{home}/cache";
Dir::Cache::archives "{home}/cache/archives";
Dir::Etc "{home}/etc";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{home}/etc/none";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{home}/etc/sources.list.d";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{home}/etc/none";
Dir::Etc::trusted "{trusted}";
Dir::Etc::trustedparts "{trusted_parts}";
Dir::Etc::netrc "{netrc}";
Dir::Etc::netrcparts "{netrc_parts}";
Dir::Log "{home}/log";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Default-Release "";
APT::Cmd::Pattern-Only "true";
APT::Get::Assume-Yes "true";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
Acquire::PDiffs "false";
Debug::NoLocking "true";
"""


@asynccontextmanager
async def hold_lock(path: Path, *, shared: bool = False) -> AsyncIterator[None]:
    """Hold the lock ``path``. Polls, because a blocking wait in a thread could not be cancelled."""
    while True:
        with try_file_lock(path, shared=shared) as held:
            if held:
                yield
                return
        await anyio.sleep(0.05)


class PrivateApt(msgspec.Struct, frozen=True):
    """A private apt in ``directory``."""

    archive: AptArchive
    directory: Path

    @property
    def release_name(self) -> str:
        """The release, as build files spell it."""
        return self.archive.distribution.name

    @property
    def lists(self) -> Path:
        """The directory of downloaded package lists."""
        return self.directory / "state" / "lists"

    @property
    def stamp(self) -> Path:
        """A file whose modification time is that of the last update; contains the mirror number."""
        return self.directory / "updated"

    async def cache_answer(
        self, question: object, kind: type[T], ask: Callable[[], Awaitable[T]]
    ) -> T:
        """Return ``ask()``, cached until the lists change: apt takes 0.3 s per call."""
        asked = [self.stamp.read_text(), self.stamp.stat().st_mtime_ns, question]
        answer = read_cache(self._answers_directory, asked, kind)
        if answer is None:
            answer = await ask()
            write_cache(self._answers_directory, asked, answer)
        return answer

    @property
    def _answers_directory(self) -> Path:
        return self.directory / "answers"

    @property
    def environment(self) -> dict[str, str]:
        """The environment for apt's programs: ours, including proxies, and the private apt.conf."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
        kept.pop("LANGUAGE", None)
        return kept | {
            "APT_CONFIG": str(self.directory / "apt.conf"),
            "LC_ALL": "C.UTF-8",
            # Signatures are checked with temporary files: if /tmp is full, apt calls them invalid.
            "TMPDIR": str(self.directory / "tmp"),
        }

    def write_configuration(self, host: HostApt) -> None:
        """Create the directories, apt.conf and the sources."""
        for name in ("state/lists/partial", "cache/archives/partial", "etc/none", "log", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "empty").touch()
        text = _CONFIGURATION.format(
            settings="\n".join(host.settings),
            home=self.directory,
            architecture=self.archive.architecture,
            trusted=host.trusted,
            trusted_parts=host.trusted_parts,
            netrc=host.netrc,
            netrc_parts=host.netrc_parts,
        )
        _write_if_different(self.directory / "apt.conf", text)

    async def run(self, *args: str, options: Mapping[str, str] | None = None) -> CompletedProcess:
        """Run one of apt's programs with this configuration.

        Raises :class:`StoreError` if the disk is full, and :class:`TemporaryError` if the program
        is stuck: on a full disk apt can wait for its own downloads for ever.
        """
        extra = [
            part for name, value in (options or {}).items() for part in ("-o", f"{name}={value}")
        ]
        command = [args[0], *extra, *args[1:]]
        try:
            result = await run(command, env=self.environment, is_stuck=self._is_stuck)
        except TimeoutError as error:
            if self._is_disk_low():
                raise self._disk_full_error() from error
            raise TemporaryError(
                f"{Path(args[0]).name} did nothing for {STUCK_SECONDS:.0f} seconds",
                hint="check the network and the disk, and try again",
            ) from error
        output = (result.stdout + result.stderr).decode(errors="replace").splitlines()
        if result.code and ran_out_of_space(self.directory, output):
            raise self._disk_full_error()
        return result

    def _is_stuck(self, idle: float) -> bool:
        return idle > STUCK_SECONDS or (idle > LOW_DISK_STUCK_SECONDS and self._is_disk_low())

    def _is_disk_low(self) -> bool:
        # What apt could not write completely it may have removed again.
        return ran_out_of_space(self.directory, full_below=_LISTS_BYTES)

    def _disk_full_error(self) -> StoreError:
        return disk_full_error(f"danlu's downloads, for the package lists of {self.release_name}")

    def list_age(self) -> float:
        """Return the age of the package lists in seconds; infinite without lists."""
        try:
            age = time.time() - self.stamp.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        # A stamp in the future means that the clock was wrong, then or now.
        return age if age > -60 else float("inf")

    async def refresh(self, *, force: bool = False, offline: bool = False) -> None:
        """Download the package lists if they are missing, older than :data:`LIST_MAX_AGE`, or
        with ``force``.

        Raises :class:`OutsideError` naming the host that could not be reached.
        """
        if offline:
            if self.list_age() == float("inf"):
                raise OutsideError(
                    f"no cached package lists of {self.release_name}, and --offline is set",
                    hint="run `danlu lock` once without --offline",
                )
            return
        began = time.time()
        if not force and self.list_age() < LIST_MAX_AGE:
            return
        async with hold_lock(self.directory / "lock"):
            # Another process may have refreshed them while we waited.
            if self.list_age() > (time.time() - began if force else LIST_MAX_AGE):
                await self._update_lists()

    async def _update_lists(self) -> None:
        output = ""
        dropped: set[str] = set()
        for choice in range(self.archive.mirror_count):
            self.write_sources(choice, dropped)
            output = await self._fetch_lists()
            missing = self._find_missing_optional(output) - dropped
            if output and missing:
                dropped |= missing
                self.write_sources(choice, dropped)
                output = await self._fetch_lists()
            if not output:
                write_atomic(self.stamp, str(choice).encode(), sync=False)
                remove_tree(self._answers_directory)
                self._remove_unused_homes()
                return
        raise update_error(output, what=self.release_name)

    def _remove_unused_homes(self) -> None:
        """Remove directories no longer used: each has hundreds of megabytes."""
        for other in self.directory.parent.iterdir():
            stamp = other / "updated"
            if not stamp.exists() or time.time() - stamp.stat().st_mtime < UNUSED_MAX_AGE:
                continue
            with try_file_lock(other / "lock") as held:
                if held:
                    remove_tree(other)

    async def _fetch_lists(self) -> str:
        """Run ``apt-get update``; return its output if it failed, else an empty text."""
        result = await self.run("apt-get", "-q", "update")
        text = (result.stdout + result.stderr).decode(errors="replace")
        # apt before 2.1 has no Error-Mode and exits with 0 after a warning.
        if result.code == 0 and "Some index files failed to download" not in text:
            return ""
        return text or f"apt-get update: exit code {result.code}"

    def _find_missing_optional(self, output: str) -> set[str]:
        optional = {entry.suite for entry in self.archive.entries if entry.optional}
        missing = re.findall(r"repository '\S+ (\S+) Release' does not have a Release file", output)
        return optional & set(missing)

    def write_sources(self, choice: int, dropped: set[str]) -> None:
        """Write the source entries with mirror number ``choice`` of each."""
        entries = [entry for entry in self.archive.entries if entry.suite not in dropped]
        directory = self.directory / "etc" / "sources.list.d"
        directory.mkdir(parents=True, exist_ok=True)
        _write_if_different(directory / "danlu.sources", format_deb822(entries, choice=choice))

    def mirror_index(self) -> int:
        """Return which mirror the last successful update used."""
        try:
            return int(self.stamp.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def release_date(self) -> int:
        """Return the newest Date of the downloaded Release files, in seconds since 1970 UTC."""
        dates = [0]
        for entry in self.archive.entries:
            if entry.suite in self.archive.distribution.suites:
                uri = entry.uris[min(self.mirror_index(), len(entry.uris) - 1)]
                text = release_fields(self.lists, uri, entry.suite).get("date", "")
                if text:
                    dates.append(int(parsedate_to_datetime(text).timestamp()))
        if max(dates) == 0:
            raise OutsideError(f"the Release files of {self.release_name} have no date")
        return max(dates)

    def archive_roots(self, suite: str) -> list[str]:
        """Return URLs that may have a file of ``suite``: its own archive first."""
        order = sorted(self.archive.entries, key=lambda entry: entry.suite != suite)
        choice = self.mirror_index()
        first = [entry.uris[min(choice, len(entry.uris) - 1)] for entry in order]
        others = [uri for entry in order for uri in entry.uris]
        return list(dict.fromkeys(uri.rstrip("/") for uri in (*first, *others)))


def _write_if_different(path: Path, text: str) -> None:
    """Write ``text`` unless the file has it: apt rebuilds its caches if a source file is newer."""
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        write_atomic(path, data, sync=False)


def _archive_digest(archive: AptArchive) -> str:
    text = format_deb822(archive.entries) + archive.architecture
    text += "".join(uri for entry in archive.entries for uri in entry.uris)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_private_apt(archive: AptArchive, cache: Path, host: HostApt) -> PrivateApt:
    """Open the private apt of ``archive`` in ``cache`` (``Paths.cache/"apt"``).

    Raises :class:`UsageError` if the path cannot be written in an apt.conf.
    """
    name = f"{archive.distribution.codename}-{archive.architecture}-{_archive_digest(archive)}"
    home = PrivateApt(archive, (cache / "homes" / name).absolute())
    if any(sign in str(home.directory) for sign in '"\\\n'):
        raise UsageError(  # apt.conf(5) cannot escape these characters
            f"apt cannot use {home.directory}: the path contains a quote or a backslash",
            hint="set DANLU_HOME to another directory",
        )
    home.write_configuration(host)
    return home
